"""Inflation in bounded memory, and a reader of gzip streams that gives the content in order.

ISA-L inflates if the extra ``fast`` is installed, else zlib. Both have the same interface and
check the same checksums. ISA-L takes half the time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator
from types import ModuleType
from typing import BinaryIO

from tsuku_llm.archive.formats.member import CHUNK, Budget, malformed, unsafe

RAW = -15
"""Window bits for a bare deflate stream, as in zip members."""

GZIP = 31
"""Window bits for a gzip member, whose CRC and length the library checks at the end."""

_INPUT = 256 << 10
_FIRST_INPUT = 4 << 10
"""Bytes of a member's first portion. Bytes after the member's end are copied for the next one."""

_MOST_MEMBERS = 1 << 18
"""Limit on gzip members of one archive: as many as bgzip makes of 16 GiB, 64 KiB in each."""


def fastest() -> ModuleType:
    """Import the fastest library that is installed."""
    try:
        from isal import isal_zlib
    except ImportError:  # no wheel for this platform, or the extra is not installed
        return zlib
    library: ModuleType = isal_zlib
    return library


LIBRARY = fastest()


def inflated(
    bits: int, data: bytes, more: Callable[[], bytes], what: str
) -> Generator[bytes, None, bytes]:
    """Yield the content of one stream, at most ``CHUNK`` bytes at a time.

    The stream begins with ``data`` and continues with the results of ``more``, which is
    empty at the end. Returns the bytes that were read after the stream's end. Raises
    ``UnsafeArchive``, with ``what`` as its text if the stream is wrong.
    """
    inflate = LIBRARY.decompressobj(bits)
    while not inflate.eof:
        try:
            # The limit: a kilobyte can inflate to a megabyte, and the caller counts in between.
            content = inflate.decompress(data, CHUNK)
        except (zlib.error, LIBRARY.error) as error:
            raise malformed(what) from error
        data = inflate.unconsumed_tail
        if content:
            yield content
        # No content, no rest of the input: only new input can continue the stream.
        elif not inflate.eof and not data:
            data = more()
            if not data:
                raise malformed("it ends early")
    rest: bytes = inflate.unused_data
    return rest


class GzipReader:
    """The content of a gzip stream of one or more members, counted against a budget.

    Zero padding after the last member is allowed, because tape blocks have it; other bytes
    are not. Both methods raise ``UnsafeArchive`` for a malformed stream.
    """

    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        self._chunks = _content(file)
        self._budget = budget
        self._ready = memoryview(b"")

    def some(self, size: int) -> memoryview:
        """Return at least one byte and at most ``size``, without copying; none at the end."""
        if not self._ready:
            # Counted as soon as it is inflated: also headers and members that are skipped.
            self._ready = memoryview(next(self._chunks, b""))
            self._budget.spend(len(self._ready))
        taken, self._ready = self._ready[:size], self._ready[size:]
        return taken

    def read(self, size: int) -> bytes:
        """Read ``size`` bytes, fewer at the end."""
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
            GZIP, first, source.more, "it is not a gzip file, or it is damaged"
        )
        source.put_back(rest)
    source.skip_padding()
    if source.more():
        raise unsafe("it has more gzip members than allowed", facts=(f"limit: {_MOST_MEMBERS}",))


class _Source:
    """A file's bytes in portions that begin small for each gzip member, and grow.

    So the work for many tiny members grows with their length, and not by a block for each.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._block = b""
        self._position = 0
        self._portion = _FIRST_INPUT

    def more(self) -> bytes:
        """Return the next portion; empty at the end."""
        if self._position == len(self._block):
            self._block, self._position = self._file.read(_INPUT), 0
        portion = self._block[self._position : self._position + self._portion]
        self._position += len(portion)
        self._portion = min(2 * self._portion, _INPUT)
        return portion

    def put_back(self, rest: bytes) -> None:
        """Take back the bytes after a member's end, which are the end of the last portion."""
        # They are still in the block, so moving the position back is enough.
        self._position -= len(rest)
        self._portion = _FIRST_INPUT

    def skip_padding(self) -> None:
        """Skip zero bytes."""
        while portion := self.more():
            if rest := portion.lstrip(b"\0"):
                self.put_back(rest)
                return


def exact(reader: BinaryIO | GzipReader, size: int) -> bytes:
    """Read exactly ``size`` bytes; raise ``UnsafeArchive`` if there are fewer."""
    data = reader.read(size)
    if len(data) != size:
        raise malformed("it ends early")
    return data
