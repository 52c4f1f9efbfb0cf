"""The members of a zip file, after its directory is read and compared with the rest."""

from __future__ import annotations

import stat
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from tsuku_llm.archive.formats.gzips import RAW, exact, inflated
from tsuku_llm.archive.formats.member import CHUNK, Chunk, Member, Spending, malformed, unsafe
from tsuku_llm.archive.formats.zip_directory import DEFLATED, Entry, read_directory

_INPUT = 256 << 10


def zip_members(file: BinaryIO, spending: Spending) -> Iterator[Member]:
    """Yield every member in the order of the central directory; each file is ``alone``.

    Any thread may read a content at any time, but only one thread each. Raises
    ``UnsafeArchive`` for anything that two readers could read differently, for encryption,
    and for a malformed or shortened file.
    """
    lock = threading.Lock()

    # The threads that inflate members share the file and its position: without the lock,
    # another one could move it between our seek and our read.
    def read(offset: int, size: int) -> bytes:
        with lock:
            file.seek(offset)
            return exact(file, size)

    for entry in read_directory(file, spending):
        yield _member(_Packed(entry, read), spending)


def _member(packed: _Packed, spending: Spending) -> Member:
    entry = packed.entry
    kind = stat.S_IFMT(entry.mode)
    if entry.name.endswith("/"):
        if entry.size or kind not in (0, stat.S_IFDIR):
            raise unsafe("a folder has content or another type", entry.name)
        return Member(name=entry.name, kind="folder")
    if kind not in (0, stat.S_IFREG):
        raise unsafe("a member is not a regular file", entry.name)

    # Not a generator: the size is counted at once, by the thread that calls this, as the budget
    # has no lock. _Packed.content() holds the member to that size.
    def content() -> Iterator[Chunk]:
        spending.spend(entry.size)
        return packed.content()

    return Member(
        name=entry.name,
        kind="file",
        size=entry.size,
        executable=bool(entry.mode & 0o111),
        content=content,
        alone=True,
    )


class _Packed:
    """The packed bytes of one member; ``read(offset, size)`` reads them. One thread uses it."""

    def __init__(self, entry: Entry, read: Callable[[int, int], bytes]) -> None:
        self.entry = entry
        self._read = read
        self._left = entry.packed

    def content(self) -> Iterator[bytes]:
        """Yield the unpacked bytes; compare their length and checksum at the end."""
        crc = size = 0
        for chunk in self._inflated() if self.entry.method == DEFLATED else self._stored():
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
            # At each chunk, before it is written: a member must not exceed what was counted.
            if size > self.entry.size:
                raise unsafe("a member is longer than it says", self.entry.name)
            yield chunk
        if size != self.entry.size or crc != self.entry.crc:
            raise malformed("a member's length or checksum is wrong")

    def _more(self, size: int = _INPUT) -> bytes:
        """Read the next packed bytes of the member; empty at its end."""
        end = self.entry.data + self.entry.packed
        data = self._read(end - self._left, min(size, self._left))
        self._left -= len(data)
        return data

    def _stored(self) -> Iterator[bytes]:
        while chunk := self._more(CHUNK):
            yield chunk

    def _inflated(self) -> Iterator[bytes]:
        rest = yield from inflated(RAW, b"", self._more, "a member cannot be decompressed")
        # The stream ended before the member's packed size: the rest could be something hidden.
        if self._left or rest:
            raise unsafe("a member has data after its end", self.entry.name)
