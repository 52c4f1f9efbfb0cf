"""The port through which a download reports its progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A receiver of progress reports.

    All calls about one artifact come from one thread, ``begin`` first and ``end`` last.
    Several threads download the artifacts of a variant and call the same object.
    """

    def begin(self, name: str, total: int | None) -> None:
        """Start or start again: ``name`` is a file name, ``total`` is in bytes or None."""
        ...

    def advance(self, size: int) -> None:
        """Add ``size`` bytes that are there, including those of an earlier run."""
        ...

    def end(self) -> None:
        """Finish, after a success or a failure."""
        ...


class Silent:
    """A receiver that shows nothing."""

    def begin(self, name: str, total: int | None) -> None:
        """Do nothing."""

    def advance(self, size: int) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""
