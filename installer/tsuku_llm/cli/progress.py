"""Progress of downloads where there is no terminal: one line per archive."""

from __future__ import annotations

from collections.abc import Callable

from tsuku_llm.cli.render import text


class Lines:
    """One line when an archive begins; ``note`` prints it."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def begin(self, name: str, total: int | None) -> None:
        """Say what is fetched now; ``total`` in bytes, None where it is not known."""
        self._note(f"fetching {name} ({text.size(total)})")

    def advance(self, size: int) -> None:
        """Nothing is said of the bytes in between."""

    def end(self) -> None:
        """Nothing is said at the end: what was installed is."""

    def close(self) -> None:
        """Nothing is open."""
