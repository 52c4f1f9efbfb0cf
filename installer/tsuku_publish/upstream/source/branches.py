"""The branches of ``if``, where a condition may be unknown: for scripts and for CMake files."""

from __future__ import annotations

from tsuku_publish.upstream.source.expressions import UNKNOWN, Unknown

Condition = bool | Unknown


class Branches:
    """The open branches, one within another; ``runs`` says whether what follows is run."""

    def __init__(self) -> None:
        # For each open "if": whether this branch runs, and whether it or one before it does.
        self._open: list[tuple[Condition, Condition]] = []

    def begin(self, here: Condition) -> None:
        """Begin an ``if``."""
        self._open.append((here, here))

    def go_on(self, here: Condition = True) -> None:  # noqa: FBT002 - a condition
        """Begin an ``elif`` or, without a condition, an ``else``."""
        if not self._open:
            return
        before = self._open.pop()[1]
        if before is True:
            self._open.append((False, True))
        elif before is UNKNOWN:
            self._open.append((False if here is False else UNKNOWN, UNKNOWN))
        else:
            self._open.append((here, here))

    def end(self) -> None:
        """End an ``if``."""
        if self._open:
            self._open.pop()

    @property
    def runs(self) -> Condition:
        """Whether the present place runs; unknown if a condition on the way there is."""
        found = [runs for runs, _ in self._open]
        return False if False in found else UNKNOWN if UNKNOWN in found else True
