"""Bytes in order, out of a gzip stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Protocol

from tsuku_llm.archive.budget import Spending
from tsuku_llm.archive.inflating import GZIP, inflated
from tsuku_llm.archive.member import malformed, unsafe

_INPUT = 256 << 10
_FIRST_INPUT = 4 << 10
"""What a member is given first: what lies behind its end is copied and given to the next one."""

_MOST_MEMBERS = 1 << 18
"""Gzip members of one archive: as many as bgzip makes of 16 GiB, 64 KiB in each."""


class Reader(Protocol):
    """Bytes in order; fewer than asked for at the end only."""

    def read(self, size: int) -> bytes:
        """Give up to ``size`` bytes."""
        ...


class GzipReader:
    """The content of a gzip stream of one or more members, counted against a budget.

    Zero padding after the last member is allowed, as tape blocks bring it; anything else
    there is not. Both ways to read raise ``UnsafeArchive`` for a malformed stream.
    """

    def __init__(self, file: BinaryIO, spending: Spending) -> None:
        self._chunks = _content(file)
        self._spending = spending
        self._ready = memoryview(b"")

    def some(self, size: int) -> memoryview:
        """Give at least one byte and at most ``size``, without copying; none at the end."""
        if not self._ready:
            self._ready = memoryview(next(self._chunks, b""))
            self._spending.spend(len(self._ready))
        taken, self._ready = self._ready[:size], self._ready[size:]
        return taken

    def read(self, size: int) -> bytes:
        """Give ``size`` bytes, fewer at the end."""
        found = bytearray()
        while len(found) < size and (part := self.some(size - len(found))):
            found += part
        return bytes(found)


def _content(file: BinaryIO) -> Iterator[bytes]:
    source = _Source(file)
    for _ in range(_MOST_MEMBERS):
        source.skip_padding()
        first = source.more()
        if not first:
            return
        rest = yield from inflated(
            GZIP, first, source.more, "it is no gzip file, or a part of it is wrong"
        )
        source.put_back(rest)
    source.skip_padding()
    if source.more():
        raise unsafe("it has more gzip members than it may", facts=(f"limit: {_MOST_MEMBERS}",))


class _Source:
    """A file's bytes in portions that begin small for each gzip member, and grow.

    Many tiny members then cost what they are long, and not a whole block for each.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._block = b""
        self._position = 0
        self._portion = _FIRST_INPUT

    def more(self) -> bytes:
        """Give the next portion; none at the end."""
        if self._position == len(self._block):
            self._block, self._position = self._file.read(_INPUT), 0
        portion = self._block[self._position : self._position + self._portion]
        self._position += len(portion)
        self._portion = min(2 * self._portion, _INPUT)
        return portion

    def put_back(self, rest: bytes) -> None:
        """Take back what lies behind a member: the end of the last portion."""
        self._position -= len(rest)
        self._portion = _FIRST_INPUT

    def skip_padding(self) -> None:
        """Skip zero bytes."""
        while portion := self.more():
            if rest := portion.lstrip(b"\0"):
                self.put_back(rest)
                return


def exact(reader: Reader, size: int) -> bytes:
    """Give exactly ``size`` bytes; raises ``UnsafeArchive`` if there are fewer."""
    data = reader.read(size)
    if len(data) != size:
        raise malformed("it ends early")
    return data
