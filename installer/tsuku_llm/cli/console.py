"""How a command talks to people while it works: notes and progress, on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tsuku_llm.cli import streams
from tsuku_llm.cli.progress import Bar, Lines

if TYPE_CHECKING:
    from tsuku_llm.host import Host


class Console:
    """One per run. ``command`` is the name of the command that the arguments led to.

    ``host`` is this machine, if it was already asked when the run began.
    ``simulated`` names the recorded machine that stands for this one, if one does.
    """

    def __init__(self, *, json: bool = False, host: Host | None = None) -> None:
        self.json = json
        self.host = host
        self.command = ""
        self.simulated: str | None = None
        self.progress = Bar() if not json and _is_terminal() else Lines(self.note)

    def note(self, text: str) -> None:
        """Tell people one line at once."""
        streams.note(sys.stderr, text)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
