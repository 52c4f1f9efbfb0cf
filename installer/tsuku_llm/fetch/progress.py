"""How a download tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Somebody who shows progress, or does not.

    All calls about one artifact come from one thread, ``begin`` first and ``end`` last.
    Artifacts of a variant are fetched by several threads at once with the same object.
    """

    def begin(self, name: str, total: int | None) -> None:
        """Start, or start over: ``name`` is a file name, ``total`` is in bytes if known."""
        ...

    def advance(self, size: int) -> None:
        """``size`` more bytes are there, those of an earlier run included."""
        ...

    def end(self) -> None:
        """Nothing more comes, whether it went well or not."""
        ...


class Silent:
    """Shows nothing."""

    def begin(self, name: str, total: int | None) -> None:
        """Do nothing."""

    def advance(self, size: int) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""
