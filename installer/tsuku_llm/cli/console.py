"""Notes, questions and progress for people while a command works, on stderr."""

from __future__ import annotations

import sys
from typing import TextIO

from tsuku_llm.cli import streams
from tsuku_llm.cli.progress_bar import Bars, Lines, SparseStatus, Status
from tsuku_llm.safe_text import printable


class Console:
    """The user's console, one per run; ``command`` is the command that the arguments name.

    ``stdout`` is the stream for the document while a command runs with ``--json``. ``simulated``
    names the recorded machine that replaces this one, if there is one.
    """

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.command = ""
        self.stdout: TextIO | None = None
        self.simulated: str | None = None
        drawn = not json and streams.is_terminal(sys.stderr)
        self.progress = Bars() if drawn else Lines(self.note)
        self.status = Status() if drawn else SparseStatus(self.note)

    def note(self, text: str) -> None:
        """Print one line for people at once."""
        if isinstance(self.progress, Bars):
            self.progress.note(printable(streams.as_typed(text)))
        else:
            streams.note(sys.stderr, text)

    @property
    def can_ask(self) -> bool:
        """Whether a user can see a question and answer it."""
        return (
            not self.json
            and streams.is_terminal(sys.stderr)
            and sys.stdin is not None
            and sys.stdin.isatty()
        )

    def ask(self, question: str) -> bool:
        """Ask the user; return False without a terminal, and for every answer but yes."""
        if not self.can_ask:
            return False
        # The progress would be drawn over the question.
        self.progress.hide()
        self.note(f"{question} [y/N]")
        return sys.stdin.readline().strip().lower() in ("y", "yes")
