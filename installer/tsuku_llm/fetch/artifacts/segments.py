"""The missing bytes of a file, how they are divided among connections, and how many of those.

No I/O happens here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Gap = tuple[int, int]
"""Missing bytes: the offset of the first one, and the offset after the last one."""

_SHARE = 2
"""Parts into which each connection's share of the waiting bytes is cut.

So segments get smaller towards the end of the file, and all connections end at about one time.
"""

_SLOW = 3
"""A connection is too slow if another gets this many bytes for each byte that it gets."""

_GAIN = 1.05
"""Factor by which more connections must be faster than before to be worth it."""

_STEP = 2
"""Connections that are added at a time."""


def gaps_of(size: int, there: int, noted: Iterable[Gap] = ()) -> list[Gap]:
    """List the gaps of a file of ``size`` bytes: the noted ones, and all after ``there``.

    The gaps are in order, none is empty, and none overlap. Notes outside the file are cut.
    """
    found: list[Gap] = []
    for first, last in sorted([*noted, (there, size)]):
        # The note is only a hint and may be damaged: any numbers must give valid gaps.
        start, end = max(0, first), min(last, size)
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif start < end:
            found.append((start, end))
    return found


@dataclass(slots=True, eq=False)
class Segment:
    """The bytes that one connection downloads, from ``start`` to ``end``.

    Bytes before ``done`` are written; those up to ``claimed`` are being written. Another
    connection may take over the bytes after ``claimed``. If it does so because this one is too
    slow, the segment is ``superseded``. ``beside`` maps the start of each other segment in work
    to its ``done`` at the time when this one was handed out.

    Its connection alone writes its bytes. ``SegmentPlan`` alone changes it, under its lock.
    """

    start: int
    end: int
    beside: Mapping[int, int]
    done: int = field(init=False)
    claimed: int = field(init=False)
    superseded: bool = False

    def __post_init__(self) -> None:
        self.done = self.claimed = self.start


class SegmentPlan:
    """The gaps of a file of known size; some are waiting, some are in work as segments.

    A gap is closed when its bytes are written, not before. Any thread may use the plan: each
    public method holds the lock for a few operations on numbers, and never waits for anything
    else meanwhile.
    """

    def __init__(self, size: int, gaps: Iterable[Gap], segment: tuple[int, int]) -> None:
        self.size = size
        self._least, self._most = segment
        # Guards these two lists and all segments. A private method needs a caller that holds it.
        self._lock = threading.Lock()
        self._waiting = list(gaps)
        self._taken: list[Segment] = []

    @property
    def gaps(self) -> list[Gap]:
        """All bytes that are not written yet."""
        with self._lock:
            return self._gaps()

    def _gaps(self) -> list[Gap]:
        taken = [(each.done, each.end) for each in self._taken]
        return gaps_of(self.size, self.size, [*self._waiting, *taken])

    @property
    def missing(self) -> int:
        """The number of bytes that are not written yet."""
        return sum(end - start for start, end in self.gaps)

    @property
    def work(self) -> bool:
        """Whether ``take`` has a segment for one more connection."""
        with self._lock:
            return bool(self._waiting) or self._divisible() is not None

    def take(self, connections: int, before: Segment | None = None) -> Segment | None:
        """Hand out the next segment to one of some connections; None if no work is left.

        The first gap comes first, so that the file grows from its start. If a slow connection
        delays that, the connection that has just downloaded the segment ``before`` continues the
        slow one's segment. If nothing is waiting, the longest segment in work is divided.
        """
        # Under the lock, no two connections get the same bytes.
        with self._lock:
            if straggler := before and self._held_up_by(before):
                straggler.superseded = True  # its connection ends when it sees this
                # Cut after the claimed bytes: the slow connection may be writing those right now.
                end, straggler.end = straggler.end, straggler.claimed
                return self._hand_out(straggler.end, end)
            if not self._waiting:
                return self._divide()
            start, end = self._waiting.pop(0)
            waiting = end - start + sum(end - start for start, end in self._waiting)
            share = waiting // (_SHARE * connections)
            length = max(self._least, min(self._most, share))
            # A rest below the smallest size is not worth a request.
            if end - start - length < self._least:
                length = end - start
            if start + length < end:
                self._waiting.insert(0, (start + length, end))
            return self._hand_out(start, start + length)

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
        # A waiting gap is even earlier: the connection must serve that one first.
        if self._waiting and self._waiting[0][0] < first.done:
            return None
        came = first.done - fetched.beside[first.start]
        # A segment below the smallest size comes too fast to say anything about another one.
        return first if fetched.done - fetched.start >= max(self._least, _SLOW * came) else None

    def _divisible(self) -> Segment | None:
        """Find the longest segment in work, if enough of it is left to divide.

        Dividing wastes some bytes: those that the server has already sent to the first connection.
        """
        longest = max(self._taken, key=lambda each: each.end - each.claimed, default=None)
        if longest is None or longest.end - longest.claimed < self._least:
            return None
        return longest

    def _divide(self) -> Segment | None:
        longest = self._divisible()
        if longest is None:
            return None
        # Its connection goes on to the middle. Not before `claimed`: those are being written.
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
        with self._lock:
            # The second: the answer begins with the first byte, so the segment must as well.
            if self._taken != [segment] or segment.done or self._gaps() != [(0, self.size)]:
                return False
            self._waiting.clear()
            segment.end = self.size
            return True

    def claim(self, segment: Segment, length: int) -> int:
        """Reserve the next ``length`` received bytes for writing; return how many are allowed.

        Fewer are allowed if another connection has taken over the end of the segment.
        """
        # From here on, take() in another thread cannot take these bytes over. So the connection
        # can write them without the lock.
        with self._lock:
            allowed = min(length, segment.end - segment.done)
            segment.claimed = segment.done + allowed
            return allowed

    def written(self, segment: Segment) -> None:
        """Mark the claimed bytes as written, which closes their gap."""
        # Only after the write: the downloading thread hashes all bytes before the first gap.
        with self._lock:
            segment.done = segment.claimed

    def release(self, segment: Segment) -> None:
        """Take back a segment from its connection; bytes that are not written wait again."""
        with self._lock:
            self._taken.remove(segment)
            # An empty gap if all is written, which changes nothing.
            self._open(segment.done, segment.end)

    def open(self, start: int, end: int) -> None:
        """Mark bytes as missing again."""
        with self._lock:
            self._open(start, end)

    def _open(self, start: int, end: int) -> None:
        self._waiting = gaps_of(self.size, self.size, [*self._waiting, (start, end)])


class ConnectionScaler:
    """The one rule for the number of connections to a source, in ``connections``.

    | event | connections | afterwards |
    |---|---|---|
    | the start | 1 | until the server answers a range |
    | a range was answered | ``initial`` | |
    | more connections made the download faster | 2 more, ``most`` at most | |
    | they did not | as many | no more |
    | one was too slow, and superseded | 1 fewer, at least 1 | more after ``cooldown`` seconds |
    | one failed before it brought much | 1 fewer, at least 1 | no more |
    | the server asked for fewer requests | 1 | no more |

    Only the downloading thread uses it, and all attempts at one source share it.
    """

    def __init__(self, initial: int, most: int, sample_interval: float, cooldown: float) -> None:
        self.connections = 1
        self._initial = initial
        self._most = most
        self._sample_interval = sample_interval
        self._cooldown = cooldown
        # The time from which more connections may be tried, and whether a failure forbids it.
        self._grows_from = -math.inf
        self._fixed = False
        # The best speed so far; the time and the number of bytes at the start of this sample.
        self._best = 0.0
        self._since: float | None = None
        self._received = 0

    def refused(self) -> None:
        """Go back to one connection for good: the server asked for fewer requests."""
        self._fixed = True
        self.connections = 1

    def failed(self) -> None:
        """Use one connection less and try no more: one has failed. The only one stays."""
        if self.connections > 1:
            self._fixed = True
            self.connections -= 1

    def superseded(self, now: float) -> None:
        """Use one connection less and try more after a while: one delayed the others."""
        if self.connections > 1:
            self.connections -= 1
            self._grows_from = now + self._cooldown
            self._best = 0.0  # the line may be different then

    def sample(self, received: int, now: float, active: int, *, ranges: bool) -> None:
        """Add connections if the download got faster, by the bytes ``received`` so far.

        ``active`` is how many connections work now; ``ranges``: the server has answered one.
        """
        grows = now >= self._grows_from and not self._fixed
        if grows and ranges and self.connections == 1:
            self.connections = self._initial
        # With fewer connections than allowed, the speed says nothing about the allowed number.
        if self._since is None or active < self.connections:
            self._since, self._received = now, received
            return
        elapsed = now - self._since
        if not grows or self.connections == 1 or elapsed < self._sample_interval:
            return
        speed = (received - self._received) / elapsed
        if speed > self._best * _GAIN:
            self._best = speed
            self.connections = min(self._most, self.connections + _STEP)
        else:
            self._grows_from = math.inf
        self._since = None  # measure the next sample from its start
