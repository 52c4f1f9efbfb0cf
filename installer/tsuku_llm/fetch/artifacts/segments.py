"""The missing bytes of a file, how they are divided among connections, and how many of those.

No I/O happens here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

Gap = tuple[int, int]
"""Missing bytes: the offset of the first one, and the offset after the last one."""

_SHARE = 2
"""Parts into which each connection's share of the waiting bytes is cut.

So segments get smaller towards the end of the file, and all connections end at about one time.
"""


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
    """The bytes from ``start`` to ``end``, which one connection alone downloads and writes.

    Those before ``done`` are written. ``SegmentPlan`` alone changes it, under its lock.
    """

    start: int
    end: int
    done: int = field(init=False)

    def __post_init__(self) -> None:
        self.done = self.start


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
            return bool(self._waiting)

    def take(self, connections: int) -> Segment | None:
        """Hand out the next segment to one of some connections; None if no work is left.

        The first gap comes first, so that the file grows from its start.
        """
        # Under the lock, no two connections get the same bytes.
        with self._lock:
            if not self._waiting:
                return None
            start, end = self._waiting.pop(0)
            waiting = end - start + sum(end - start for start, end in self._waiting)
            share = waiting // (_SHARE * connections)
            length = max(self._least, min(self._most, share))
            # A rest below the smallest size is not worth a request.
            if end - start - length < self._least:
                length = end - start
            if start + length < end:
                self._waiting.insert(0, (start + length, end))
            segment = Segment(start, start + length)
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

    def written(self, segment: Segment, length: int) -> None:
        """Mark the next bytes of a segment as written, which closes their gap."""
        # Only after the write: the downloading thread hashes all bytes before the first gap.
        with self._lock:
            segment.done += length

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


class Allowance:
    """The number of connections to a source: one until it has answered a range, then ``most``.

    A connection that fails before it brought much takes one away, for good. Only the downloading
    thread uses it, and all attempts at one source share it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.connections = 1

    def answered(self) -> None:
        """Allow all connections: the server has answered a range correctly."""
        self.connections = self._most

    def failed(self) -> None:
        """Do with one connection less; the only one stays."""
        if self.connections > 1:
            self._most -= 1
            self.connections = self._most

    def refused(self) -> None:
        """Go back to one connection: the server asked for fewer requests."""
        self._most = self.connections = 1
