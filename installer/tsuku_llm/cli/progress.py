"""Progress of downloads without a terminal: one line per archive."""

from __future__ import annotations

from collections.abc import Callable

from tsuku_llm.cli.render import text


class Lines:
    """One line when an archive begins; ``note`` prints it."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def begin(self, name: str, total: int | None) -> None:
        """Say what is downloaded now; ``total`` is in bytes, None if it is unknown."""
        self._note(f"fetching {name} ({text.size(total)})")

    def advance(self, size: int) -> None:
        """Do nothing: a log needs no line per chunk."""

    def end(self) -> None:
        """Do nothing: the answer says what was installed."""

    def close(self) -> None:
        """Do nothing: there is nothing on the screen to remove."""
