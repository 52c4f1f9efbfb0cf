"""Notes, questions and progress for people while a command works, on stderr."""

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
    """The user's console, one per run; ``command`` is the command that the arguments name.

    ``host`` is this machine, if it was asked before the run began. ``stdout`` is the stream for the
    document while a command runs with ``--json``. ``simulated`` names the recorded machine that
    replaces this one, if there is one.
    """

    def __init__(self, *, json: bool = False, host: Host | None = None) -> None:
        self.json = json
        self.host = host
        self.command = ""
        self.stdout: TextIO | None = None
        self.simulated: str | None = None
        self.progress = _bar() if not json and _is_terminal() else Lines(self.note)

    def note(self, text: str) -> None:
        """Print one line for people at once."""
        streams.note(sys.stderr, text)

    @property
    def can_ask(self) -> bool:
        """Whether a user can see a question and answer it."""
        return not self.json and _is_terminal() and sys.stdin is not None and sys.stdin.isatty()

    def ask(self, question: str) -> bool:
        """Ask the user; return False without a terminal, and for every answer but yes."""
        if not self.can_ask:
            return False
        # The bar would be drawn over the question.
        self.progress.close()
        self.note(f"{question} [y/N]")
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def _bar() -> Bar:
    from tsuku_llm.cli.bar import Bar  # noqa: PLC0415 - services and scripts have no terminal

    return Bar()


def _is_terminal() -> bool:
    # A dumb terminal cannot move the cursor, which the bar needs.
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
