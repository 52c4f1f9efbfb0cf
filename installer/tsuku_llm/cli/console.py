"""How a command talks to people while it works: notes and progress, on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from tsuku_llm.cli import streams
from tsuku_llm.cli.progress import Lines

if TYPE_CHECKING:
    from tsuku_llm.cli.bar import Bar
    from tsuku_llm.host import Host


class Console:
    """One per run. ``command`` is the name of the command that the arguments led to.

    ``host`` is this machine, if it was already asked when the run began.
    ``stdout`` is where the document goes, while a command runs with ``--json``.
    ``simulated`` names the recorded machine that stands for this one, if one does.
    """

    def __init__(self, *, json: bool = False, host: Host | None = None) -> None:
        self.json = json
        self.host = host
        self.command = ""
        self.stdout: TextIO | None = None
        self.simulated: str | None = None
        self.progress = _bar() if not json and _is_terminal() else Lines(self.note)

    def note(self, text: str) -> None:
        """Tell people one line at once."""
        streams.note(sys.stderr, text)

    @property
    def can_ask(self) -> bool:
        """Whether somebody sits there who sees a question and can answer it."""
        return not self.json and _is_terminal() and sys.stdin is not None and sys.stdin.isatty()

    def ask(self, question: str) -> bool:
        """Put a question to whoever sits there; False where nobody does, or does not say yes."""
        if not self.can_ask:
            return False
        self.progress.close()
        self.note(f"{question} [y/N]")
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def _bar() -> Bar:
    from tsuku_llm.cli.bar import Bar  # noqa: PLC0415 - services and scripts have no terminal

    return Bar()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
