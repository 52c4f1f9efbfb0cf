"""The program in a real terminal emulator (tmux), whose screen a test reads and resizes."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.tools import require_tool

_CONFIG = "set -g remain-on-exit on\nset -g remain-on-exit-format ''\nset -g status off\n"


@dataclass(frozen=True)
class Screen:
    """One terminal with one program."""

    tmux: tuple[str, ...]
    status: Path

    def _run(self, *words: str) -> str:
        done = subprocess.run([*self.tmux, *words], capture_output=True, text=True, check=True)
        return done.stdout

    @property
    def lines(self) -> list[str]:
        """What is on the screen now, without the empty lines at its end."""
        return self._run("capture-pane", "-p").rstrip().splitlines()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def coloured(self) -> str:
        """The screen with its escape sequences for colours."""
        return self._run("capture-pane", "-p", "-e")

    def wait_for(self, seen: Callable[[str], object]) -> list[str]:
        """Read the screen until ``seen`` is true of its text; return its lines.

        Fails if the program ends before.
        """
        while not seen("\n".join(lines := self.lines)):
            if self._status() and not seen(self.text):
                raise AssertionError(f"it ended before:\n{self.text}")
            os.sched_yield()
        return lines

    def keys(self, *keys: str) -> None:
        """Type keys, such as ``y``, ``Enter`` or ``C-c``."""
        self._run("send-keys", *keys)

    def resize(self, columns: int) -> None:
        self._run("resize-window", "-x", str(columns))

    def exit_code(self) -> int:
        """Wait for the end of the program."""
        while not (status := self._status()):
            os.sched_yield()
        return int(status)

    def _status(self) -> str:
        """The exit code, empty while the program runs."""
        return self.status.read_text("ascii").strip() if self.status.exists() else ""


@contextmanager
def screen(
    folder: Path, command: Sequence[str], env: Mapping[str, str], *, columns: int, rows: int = 24
) -> Iterator[Screen]:
    """Run a command in a terminal of this size; end both at the end of the block."""
    program = require_tool("tmux")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "tmux.conf"
    config.write_text(_CONFIG, encoding="ascii")
    # A relative socket: its path may be no longer than a hundred characters.
    tmux = (program, "-u", "-S", os.path.relpath(folder / "s"), "-f", str(config))
    size = ("-x", str(columns), "-y", str(rows))
    environ = {**env, "LC_ALL": "C.UTF-8"}
    environ.pop("TMUX", None)
    status = folder / "status"
    # tmux itself forgets the exit code of a program that ends at the wrong moment.
    shell = ("sh", "-c", f'trap : INT; "$@"; echo $? >{status}.new; mv {status}.new {status}', "sh")
    line = [*tmux, "new-session", "-d", *size, *shell, *command]
    subprocess.run(line, env=environ, check=True)
    try:
        yield Screen(tmux, status)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
