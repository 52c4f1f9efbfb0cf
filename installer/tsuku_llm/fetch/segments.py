"""What of a file is missing, and which connection fetches which part of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Gap = tuple[int, int]
"""Bytes that are missing: the first one, and the one behind the last."""

_SHARE = 2
"""Segments that each lane gets of what waits: they shrink towards the end, as it nears."""

_SLOW = 3
"""A lane is too slow that brings less than one byte while another brings so many."""


@dataclass(slots=True, eq=False)
class Segment:
    """What one lane fetches. It has ``done``, is writing up to ``claimed``, and stops at ``end``.

    Another lane may take over what lies behind ``claimed``; it is ``outrun`` when that was
    because this one is too slow. ``beside`` says how far each segment in work, by its start,
    was when this one was handed out.
    """

    start: int
    end: int
    beside: Mapping[int, int]
    done: int = field(init=False)
    claimed: int = field(init=False)
    outrun: bool = False

    def __post_init__(self) -> None:
        self.done = self.claimed = self.start


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

    def take(self, lanes: int, before: Segment | None = None) -> Segment | None:
        """The next segment for one of so many lanes; None when there is no work left.

        The first gap is served first, so that what is there grows from the start, unless a
        slow lane holds that up: then a lane that has fetched the segment ``before`` meanwhile
        goes on with the slow one's. Where nothing waits, the longest segment in work is
        divided.
        """
        if straggler := before and self._held_up_by(before):
            straggler.outrun = True
            end, straggler.end = straggler.end, straggler.claimed
            return self._hand_out(straggler.end, end)
        if not self._waiting:
            return self._divide()
        length = self._length(lanes)
        start, end = self._waiting.pop(0)
        if end - start - length < self._least:
            length = end - start
        if start + length < end:
            self._waiting.insert(0, (start + length, end))
        return self._hand_out(start, start + length)

    def _length(self, lanes: int) -> int:
        """Of a new segment."""
        waiting = sum(end - start for start, end in self._waiting)
        return max(self._least, min(self._most, waiting // (_SHARE * lanes)))

    def _held_up_by(self, fetched: Segment) -> Segment | None:
        """The first segment in work, if next to nothing came of it while another was fetched.

        A new connection starts slowly behind those that have filled the line, and a dead one
        says nothing for long: what lies behind cannot be used meanwhile.
        """
        working = (each for each in self._taken if each.claimed < each.end)
        first = min(working, key=lambda each: each.done, default=None)
        if first is None or first.start not in fetched.beside:
            return None
        if self._waiting and self._waiting[0][0] < first.done:
            return None
        came = first.done - fetched.beside[first.start]
        return first if fetched.done - fetched.start >= max(self._least, _SLOW * came) else None

    @property
    def work(self) -> bool:
        """Whether ``take`` would give a further lane something."""
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
        segment = Segment(start, end, {each.start: each.done for each in self._taken})
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
