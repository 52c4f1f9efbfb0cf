"""The missing bytes of a file, and the division of them among connections. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tsuku_llm.fetch.limits import Limits

_GAIN = 1.05
"""Factor by which more connections must be faster than before to be worth it."""

_STEP = 2
"""Connections that are added at a time."""


class ConnectionScaler:
    """The number of connections: one, then several, then more while the download gets faster.

    It stays at one until the server has answered a range. Only the downloading thread uses
    it, and all attempts at one source share it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._growing = True
        self._given_up = False
        self._rests_until = math.inf
        self._best = 0.0
        self._since: float | None = None
        self._received = 0
        self.lanes = 1

    @property
    def _probing(self) -> bool:
        return self._growing and not self._given_up and self.lanes == 1

    def answered(self) -> None:
        """Note that the server answers ranges: allow several connections."""
        if self._probing:
            self.lanes = self._limits.initial_connections

    def refused(self) -> None:
        """Go back to one connection for good: the server got too many requests."""
        self._given_up = True
        self.lanes = 1

    def lost(self) -> None:
        """Use one connection less and try no more: one has failed.

        The only connection stays.
        """
        if self.lanes > 1:
            self._given_up = True
            self.lanes -= 1

    def outrun(self, now: float) -> None:
        """Use one connection less and try more after a rest: one delayed the others."""
        if self.lanes > 1:
            self._growing = False
            self._rests_until = now + self._limits.cooldown
            self.lanes -= 1

    def look(self, received: int, now: float, active: int) -> None:
        """Measure the speed by the bytes ``received`` so far, and add connections if it grew."""
        # With fewer connections than allowed, the speed says nothing about the allowed number.
        if self._since is None or active < self.lanes:
            self._since, self._received = now, received
            return
        # After the rest the line may be different: forget the best speed.
        if now >= self._rests_until:
            self._growing, self._best, self._rests_until = True, 0.0, math.inf
        elapsed = now - self._since
        if (
            not self._growing
            or self._given_up
            or self._probing
            or elapsed < self._limits.sample_interval
        ):
            return
        speed = (received - self._received) / elapsed
        if speed > self._best * _GAIN:
            self._best = speed
            self.lanes = min(self._limits.connections, self.lanes + _STEP)
        else:
            self._growing = False
        self._since = None  # measure the next step from its start


Gap = tuple[int, int]
"""Missing bytes: the offset of the first one, and the offset after the last one."""

_SHARE = 2
"""Parts into which each lane's share of the waiting bytes is cut.

So segments get smaller towards the end of the file, and all lanes end at about one time.
"""

_SLOW = 3
"""A lane is too slow if another lane gets this many bytes for each byte that it gets."""


@dataclass(slots=True, eq=False)
class Segment:
    """The bytes that one lane downloads, from ``start`` to ``end``.

    Bytes before ``done`` are written; those up to ``claimed`` are being written. Another lane
    may take over the bytes after ``claimed``. If it does so because this lane is too slow,
    the segment is ``outrun``. ``beside`` maps the start of each other segment in work to its
    ``done`` at the time when this one was handed out.

    Its lane alone writes its bytes. ``Plan`` alone changes it, under the lock of ``Crew``.
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
    """List the gaps of a file of ``size`` bytes: the noted ones, and all after ``there``.

    The gaps are in order, none is empty, and none overlap. Notes outside the file are cut.
    """
    found: list[Gap] = []
    for start, end in sorted([*noted, (there, size)]):
        # The note is only a hint and may be damaged: any numbers must give valid gaps.
        start, end = max(0, start), min(end, size)  # noqa: PLW2901
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif start < end:
            found.append((start, end))
    return found


class SegmentPlan:
    """The gaps of a file of known size; some are waiting, some are in work as segments.

    A gap is closed when its bytes are written, not before. The plan does not lock: with
    several threads, the caller holds a lock (``Crew`` does).
    """

    def __init__(self, size: int, gaps: Iterable[Gap], segment: tuple[int, int]) -> None:
        self.size = size
        self._waiting = list(gaps)
        self._taken: list[Segment] = []
        self._least, self._most = segment

    @property
    def gaps(self) -> list[Gap]:
        """All bytes that are not written yet."""
        return gaps_of(
            self.size, self.size, [*self._waiting, *((each.done, each.end) for each in self._taken)]
        )

    @property
    def frontier(self) -> int:
        """The offset of the first missing byte."""
        return min((start for start, _ in self.gaps), default=self.size)

    @property
    def missing(self) -> int:
        """The number of bytes that are not written yet."""
        return sum(end - start for start, end in self.gaps)

    def take(self, lanes: int, before: Segment | None = None) -> Segment | None:
        """Hand out the next segment for one of ``lanes`` lanes; None if no work is left.

        The first gap comes first, so that the file grows from its start. If a slow lane
        delays that, the lane that has just downloaded the segment ``before`` continues the
        slow lane's segment. If nothing is waiting, the longest segment in work is divided.
        """
        if straggler := before and self._held_up_by(before):
            straggler.outrun = True  # its lane ends when it sees this
            # Cut after the claimed bytes: the slow lane may be writing those at this moment.
            end, straggler.end = straggler.end, straggler.claimed
            return self._hand_out(straggler.end, end)
        if not self._waiting:
            return self._divide()
        length = self._length(lanes)
        start, end = self._waiting.pop(0)
        # Do not leave a rest that is not worth a request.
        if end - start - length < self._least:
            length = end - start
        if start + length < end:
            self._waiting.insert(0, (start + length, end))
        return self._hand_out(start, start + length)

    def _length(self, lanes: int) -> int:
        """Compute the length of a new segment."""
        waiting = sum(end - start for start, end in self._waiting)
        return max(self._least, min(self._most, waiting // (_SHARE * lanes)))

    def _held_up_by(self, fetched: Segment) -> Segment | None:
        """Find the first segment in work, if it got too few bytes while ``fetched`` came.

        A new connection starts slowly while others fill the line, and a dead one is silent
        for a long time. Until its bytes come, the bytes after it cannot be used.
        """
        # A segment whose rest is all claimed is nearly done: nothing is left to take over.
        working = (each for each in self._taken if each.claimed < each.end)
        first = min(working, key=lambda each: each.done, default=None)
        # A segment that began after `fetched` had less time: the comparison would be unfair.
        if first is None or first.start not in fetched.beside:
            return None
        # A waiting gap is even earlier: the lane must serve that one first.
        if self._waiting and self._waiting[0][0] < first.done:
            return None
        came = first.done - fetched.beside[first.start]
        # A segment below the smallest size comes too fast to say anything about another lane.
        return first if fetched.done - fetched.start >= max(self._least, _SLOW * came) else None

    @property
    def work(self) -> bool:
        """Whether ``take`` has a segment for one more lane."""
        return bool(self._waiting) or self._divisible() is not None

    def _divisible(self) -> Segment | None:
        """Find the longest segment in work, if enough of it is left to divide.

        Dividing wastes some bytes: those that the server has already sent to the first lane.
        """
        longest = max(self._taken, key=lambda each: each.end - each.claimed, default=None)
        if longest is None or longest.end - longest.claimed < self._least:
            return None
        return longest

    def _divide(self) -> Segment | None:
        longest = self._divisible()
        if longest is None:
            return None
        # Its lane goes on to the middle. Not before `claimed`: those bytes are being written.
        middle = (longest.claimed + longest.end) // 2
        end, longest.end = longest.end, middle
        return self._hand_out(middle, end)

    def _hand_out(self, start: int, end: int) -> Segment:
        segment = Segment(start, end, {each.start: each.done for each in self._taken})
        self._taken.append(segment)
        return segment

    def take_all(self, segment: Segment) -> bool:
        """Extend a segment to the whole file; False if anything else is done or in work.

        A server that ignores ranges sends the whole file: this uses that answer.
        """
        if self._taken != [segment] or segment.done or self.missing != self.size:
            return False
        self._waiting.clear()
        segment.end = self.size
        return True

    def claim(self, segment: Segment, length: int) -> int:
        """Reserve the next ``length`` received bytes for writing; return how many are allowed.

        Fewer are allowed if another lane has taken over the end of the segment.
        """
        allowed = min(length, segment.end - segment.done)
        segment.claimed = segment.done + allowed
        return allowed

    def written(self, segment: Segment) -> None:
        """Mark the claimed bytes as written, which closes their gap."""
        segment.done = segment.claimed

    def release(self, segment: Segment) -> None:
        """Take back a segment from its lane; bytes that are not written wait again."""
        self._taken.remove(segment)
        self.open(segment.done, segment.end)  # an empty gap if all is written; that changes nothing

    def open(self, start: int, end: int) -> None:
        """Mark bytes as missing, or as missing again."""
        self._waiting = gaps_of(self.size, self.size, [*self._waiting, (start, end)])
