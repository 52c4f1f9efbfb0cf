"""Notes, questions and progress for people while a command works, on stderr."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from tsuku_llm.cli.terminal import streams
from tsuku_llm.cli.terminal.answer import json_line
from tsuku_llm.cli.terminal.progress_bar import (
    Bars,
    JsonLines,
    Lines,
    SparseStatus,
    Status,
)
from tsuku_llm.cli.terminal.style import Style, wants_color
from tsuku_llm.ground.safe_text import printable

_LEAST = 20
"""The fewest columns that a text is wrapped to."""


class Console:
    """The user's console, one per run; ``command`` is the command that the arguments name.

    ``stdout`` is the stream for the document while a command runs with ``--json``. ``simulated``
    names the recorded machine that replaces this one, if there is one. ``verbose`` adds the
    answer's data to its text.
    """

    def __init__(self, *, json: bool = False, color: str = "auto") -> None:
        self.json = json
        self.quiet = False
        self.verbose = False
        # A document has no colours, and what goes with it has none either.
        self._color = "never" if json else color
        self.command = ""
        self.stdout: TextIO | None = None
        self.simulated: str | None = None
        on_terminal = streams.is_terminal(sys.stderr)
        drawn = on_terminal and not json
        self.progress: Bars | Lines | JsonLines = Bars() if drawn else Lines(self.note)
        if json and not on_terminal:
            self.progress = JsonLines(lambda event: streams.control(sys.stderr, json_line(event)))
        self.status: Status | SparseStatus = Status() if drawn else SparseStatus(self.note)

    def be_quiet(self) -> None:
        """Print results, errors and questions only from now on."""
        self.quiet = True
        self.progress = Lines(lambda _: None)
        self.status = SparseStatus(self.note)

    def note(self, text: str) -> None:
        """Print one line for people at once, unless they want results only."""
        if not self.quiet:
            self.tell(text)

    def tell(self, text: str) -> None:
        """Print one line for people at once, also if they want results only."""
        line = self.style(sys.stderr).shaped(printable(text))
        if isinstance(self.progress, Bars):
            self.progress.note(line)
        else:
            streams.control(sys.stderr, f"{line}\n")

    def style(self, stream: TextIO | None) -> Style:
        """Return how this stream shows lines, as its terminal is now."""
        on_terminal = streams.is_terminal(stream)
        width = max(_LEAST, streams.terminal_size(stream)[0]) if on_terminal else None
        return Style(width, wants_color(self._color, os.environ, on_terminal=on_terminal))

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
        self.tell(f"{question} [y/N]")
        try:
            return sys.stdin.readline().strip().lower() in ("y", "yes")
        except KeyboardInterrupt:
            # The terminal has written ^C: what follows begins on a line of its own.
            streams.control(sys.stderr, "\n")
            raise
