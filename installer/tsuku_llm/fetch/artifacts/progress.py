"""The port through which a download reports its progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A receiver of progress reports.

    The calls ``begin``, ``advance`` and ``end`` about one artifact come from one thread. Several
    threads download the artifacts of a variant and call the same object.
    """

    def begin(self, name: str, total: int | None, there: int = 0) -> None:
        """Start or start again: ``name`` is a file name, ``total`` is in bytes or None.

        ``there`` bytes were left by an earlier run.
        """
        ...

    def advance(self, size: int) -> None:
        """Add ``size`` bytes that have arrived."""
        ...

    def end(self) -> None:
        """Finish, after a success or a failure."""
        ...

    def stage(self, name: str, what: str) -> None:
        """Say what is done with a file, perhaps while it arrives: ``unpacking``, ``checking``."""
        ...

    def finish(self) -> None:
        """Finish with all files, after a success or a failure."""
        ...


class Silent:
    """A receiver that shows nothing."""

    def begin(self, *_: object, **__: object) -> None:
        """Do nothing."""

    advance = end = stage = finish = begin
