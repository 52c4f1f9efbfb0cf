"""What of a file is missing, and which connection fetches which part of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Gap = tuple[int, int]
"""Bytes that are missing: the first one, and the one behind the last."""

_SHARE = 2
"""Segments that each lane gets of what waits: they shrink towards the end, as it nears."""


@dataclass(slots=True, eq=False)
class Segment:
    """What one lane fetches. It has ``done``, is writing up to ``claimed``, and stops at ``end``.

    Another lane without work may take over the last part of it, behind ``claimed``.
    """

    done: int
    end: int
    claimed: int = 0

    def __post_init__(self) -> None:
        self.claimed = self.done


def gaps_of(size: int, there: int, noted: Iterable[Gap] = ()) -> list[Gap]:
    """The gaps of a file of ``size`` bytes of which ``there`` are on the disk, noted gaps apart.

    In order, none empty, none overlapping; notes that lie outside of the file are cut.
    """
    found: list[Gap] = []
    for start, end in sorted([*noted, (there, size)]):
        start, end = max(0, start), min(end, size)  # noqa: PLW2901
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif start < end:
            found.append((start, end))
    return found


class Plan:
    """The gaps of a file of known size, some of them in work.

    A gap is closed when its bytes are written, not before. Not synchronised: whoever uses
    it from several threads holds a lock.
    """

    def __init__(self, size: int, gaps: Iterable[Gap], segment: tuple[int, int]) -> None:
        self.size = size
        self._waiting = list(gaps)
        self._taken: list[Segment] = []
        self._least, self._most = segment

    @property
    def gaps(self) -> list[Gap]:
        """All that is not written yet."""
        return gaps_of(
            self.size, self.size, [*self._waiting, *((each.done, each.end) for each in self._taken)]
        )

    @property
    def frontier(self) -> int:
        """Up to where nothing is missing."""
        return min((start for start, _ in self.gaps), default=self.size)

    @property
    def missing(self) -> int:
        """Bytes that are not written yet."""
        return sum(end - start for start, end in self.gaps)

    def take(self, lanes: int) -> Segment | None:
        """The next segment for one of so many lanes; None when there is no work left.

        The first gap is served first, so that what is there grows from the start. Where
        nothing waits, the longest segment in work is divided.
        """
        if not self._waiting:
            return self._divide()
        start, end = self._waiting.pop(0)
        waiting = end - start + sum(stop - begin for begin, stop in self._waiting)
        length = max(self._least, min(self._most, waiting // (_SHARE * lanes)))
        if end - start - length < self._least:
            length = end - start
        if start + length < end:
            self._waiting.insert(0, (start + length, end))
        return self._hand_out(start, start + length)

    @property
    def work(self) -> bool:
        """Whether ``take`` would give something."""
        return bool(self._waiting) or self._divisible() is not None

    def _divisible(self) -> Segment | None:
        """The longest segment in work, if enough of it is left.

        The server has sent some of it already that its lane will not take any more.
        """
        longest = max(self._taken, key=lambda each: each.end - each.claimed, default=None)
        if longest is None or longest.end - longest.claimed < self._least:
            return None
        return longest

    def _divide(self) -> Segment | None:
        longest = self._divisible()
        if longest is None:
            return None
        middle = (longest.claimed + longest.end) // 2
        end, longest.end = longest.end, middle
        return self._hand_out(middle, end)

    def _hand_out(self, start: int, end: int) -> Segment:
        segment = Segment(start, end)
        self._taken.append(segment)
        return segment

    def take_all(self, segment: Segment) -> bool:
        """Let one segment grow over the whole file, if nothing else is there or in work."""
        if self._taken != [segment] or segment.done or self.missing != self.size:
            return False
        self._waiting.clear()
        segment.end = self.size
        return True

    def claim(self, segment: Segment, length: int) -> int:
        """How many of ``length`` bytes that came the segment's lane is to write now."""
        allowed = min(length, segment.end - segment.done)
        segment.claimed = segment.done + allowed
        return allowed

    def written(self, segment: Segment) -> None:
        """What was claimed is written."""
        segment.done = segment.claimed

    def release(self, segment: Segment) -> None:
        """A lane is through with its segment; what it did not fetch waits for another."""
        self._taken.remove(segment)
        self.open(segment.done, segment.end)

    def open(self, start: int, end: int) -> None:
        """These bytes are missing, or missing again."""
        self._waiting = gaps_of(self.size, self.size, [*self._waiting, (start, end)])
