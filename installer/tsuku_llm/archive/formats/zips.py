"""The members of a zip file, after its directory is read and compared with the rest.

The entries of the directory (APPNOTE.TXT 6.3) must cover the file from the first byte to the last:
no prefix, no gaps, no overlap, nothing at the end. The local headers must say what the central
directory says. Then every other program that reads the file finds the same members.

Every byte of the directory is read once: time and memory grow with its size, up to
``_LARGEST_DIRECTORY`` bytes and the budget's number of members.
"""

from __future__ import annotations

import stat
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

from tsuku_llm.archive.formats.gzips import RAW, exact, inflated
from tsuku_llm.archive.formats.member import CHUNK, Budget, Chunk, Member, malformed, unsafe

_EOCD = struct.Struct("<4s4H2LH")
_EOCD64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_EXTRA = struct.Struct("<2H")

STORED, DEFLATED = 0, 8
# Bits of a member's flags (APPNOTE.TXT 4.4.4).
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_DESCRIPTOR = 0x0008
_PATCHED = 0x0020
_UTF8 = 0x0800
# Systems whose file modes are those of Unix (4.4.2).
_UNIX, _DARWIN = 3, 19
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_LONGEST_COMMENT = 0xFFFF
_LARGEST_DIRECTORY = 64 << 20
_LONGEST_EXTRA = 1 << 10
"""Bytes of a member's extra field; packers write below 100 (times, owners, zip64)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file or folder of the directory; ``data`` is the offset of its content."""

    raw: bytes
    name: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    mode: int
    data: int = 0


def read_directory(file: BinaryIO, budget: Budget, *, begins: int = 0) -> list[Entry]:
    """Read all entries in the directory's order; compare each with its local header.

    The first member must begin at the offset ``begins``. Raises ``UnsafeArchive`` for anything
    that two readers could read differently, for encryption, and for a malformed or shortened file.
    """
    count, size, start = _end(file)
    # Both before the read: the numbers come from the archive and decide how much memory we use.
    budget.check_members(count)
    if size > _LARGEST_DIRECTORY:
        raise unsafe("the directory is too large")
    file.seek(start)
    data = exact(file, size)
    entries: list[Entry] = []
    position = 0
    for _ in range(count):
        budget.member()
        entry, length = _central(data, position)
        entries.append(entry)
        position += length
    if position != size:
        raise unsafe("the directory has more than its entries")
    offsets = sorted(entry.offset for entry in entries)
    # A prefix can be a program or a second archive, which another reader would find.
    if (offsets[0] if offsets else start) != begins:
        raise unsafe("there are bytes before the first member")
    if len(set(offsets)) != len(offsets):
        raise unsafe("members overlap")
    # Where the bytes of each entry end. Not strict: an archive without a member has no offset, and
    # still ``start``.
    ends = dict(zip(offsets, [*offsets[1:], start], strict=False))
    return [replace(entry, data=_data_offset(file, entry, ends[entry.offset])) for entry in entries]


def _data_offset(file: BinaryIO, entry: Entry, end: int) -> int:
    """Compare an entry's local header with the directory; return where its data begins."""
    file.seek(entry.offset)
    head = _LOCAL.unpack(exact(file, _LOCAL.size))
    signature, _, flags, method, _, _, crc, packed, size, name_size, extra_size = head
    _require_short(extra_size, entry.name)
    if signature != b"PK\3\4":
        raise unsafe("a member is not where the directory says", entry.name)
    name = exact(file, name_size)
    extra = exact(file, extra_size)
    if name != entry.raw or flags != entry.flags or method != entry.method:
        raise unsafe("a member's two headers differ", entry.name)
    data: int = entry.offset + _LOCAL.size + name_size + extra_size
    described = bool(flags & _DESCRIPTOR)
    size, packed = _zip64(extra, (size, packed), entry.name)
    # With a data descriptor, a local header may have zeros: the writer did not know them yet.
    said = (crc, packed, size)
    if said != (entry.crc, entry.packed, entry.size) and not (described and not any(said)):
        raise unsafe("a member's two headers differ", entry.name)
    # Only a descriptor may stand between the data and the next entry. Negative: an overlap.
    rest = end - data - entry.packed
    if rest and not (described and _is_descriptor(file, entry, data + entry.packed, rest)):
        raise unsafe("members overlap, or there are bytes between them", entry.name)
    return data


def _is_descriptor(file: BinaryIO, entry: Entry, offset: int, size: int) -> bool:
    """Return whether the bytes after an entry's data are its data descriptor.

    There are four forms: sizes of 32 or 64 bits, with or without a signature.
    """
    forms = [struct.pack("<L2Q", entry.crc, entry.packed, entry.size)]
    if max(entry.packed, entry.size) <= _MAX32:
        forms.append(struct.pack("<3L", entry.crc, entry.packed, entry.size))
    forms += [b"PK\7\x08" + form for form in forms]
    if size not in map(len, forms):
        return False
    file.seek(offset)
    return exact(file, size) in forms


def _end(file: BinaryIO) -> tuple[int, int, int]:
    """Find the end record; return the number of entries, the directory's size and its start."""
    length = file.seek(0, 2)
    tail_at = max(0, length - _LONGEST_COMMENT - _EOCD.size)
    file.seek(tail_at)
    tail = file.read()
    found = tail.rfind(b"PK\5\6")
    if found < 0 or len(tail) - found < _EOCD.size:
        raise malformed("it is not a zip file, or its end is missing")
    _, disk, first, here, count, size, start, comment = _EOCD.unpack_from(tail, found)
    # The last signature must be the right one: in a comment it would hide another directory.
    if found + _EOCD.size + comment != len(tail):
        raise unsafe("there are bytes after the end of the archive")
    end = tail_at + found
    if _MAX16 in (here, count) or _MAX32 in (size, start):
        return _end64(file, end)
    if disk or first or here != count:
        raise unsafe("the archive has several volumes")
    if start + size != end:
        raise unsafe("the directory does not end where it must")
    return count, size, start


def _end64(file: BinaryIO, end: int) -> tuple[int, int, int]:
    if end < _LOCATOR.size + _EOCD64.size:
        raise malformed("its zip64 end is missing")
    file.seek(end - _LOCATOR.size)
    signature, disk, offset, disks = _LOCATOR.unpack(exact(file, _LOCATOR.size))
    if signature != b"PK\6\7" or disk or disks > 1:
        raise unsafe("the archive's zip64 end is malformed")
    if offset + _EOCD64.size != end - _LOCATOR.size:
        raise unsafe("the archive's zip64 end is not where it must be")
    file.seek(offset)
    fields = _EOCD64.unpack(exact(file, _EOCD64.size))
    signature, length, _, _, disk, first, here, count, size, start = fields
    if signature != b"PK\6\6" or length != _EOCD64.size - 12 or disk or first or here != count:
        raise unsafe("the archive's zip64 end is malformed")
    if start + size != offset:
        raise unsafe("the directory does not end where it must")
    return count, size, start


def _central(data: bytes, position: int) -> tuple[Entry, int]:
    """Read the entry at a position; return it and its length. Copy only its own bytes."""
    if len(data) - position < _CENTRAL.size:
        raise malformed("its directory ends early")
    fields = _CENTRAL.unpack_from(data, position)
    signature, made, _, flags, method, _, _, crc, packed, size = fields[:10]
    name_size, extra_size, comment_size, disk, _, attributes, offset = fields[10:]
    length = _CENTRAL.size + name_size + extra_size + comment_size
    if signature != b"PK\1\2" or len(data) - position < length:
        raise malformed("its directory is malformed")
    name_at = position + _CENTRAL.size
    extra_at = name_at + name_size
    raw = data[name_at:extra_at]
    try:
        # Without the UTF-8 flag, readers agree on ASCII only.
        name = raw.decode("utf-8" if flags & _UTF8 else "ascii")
    except UnicodeDecodeError as error:
        raise unsafe("a name is not UTF-8", repr(raw)) from error
    _require_short(extra_size, name)
    if disk or flags & (_ENCRYPTED | _PATCHED) or method not in (STORED, DEFLATED):
        raise unsafe("a member is encrypted or packed in an unusual way", name)
    extra = data[extra_at : extra_at + extra_size]
    size, packed, offset = _zip64(extra, (size, packed, offset), name)
    if method == STORED and size != packed:
        raise unsafe("a member's sizes do not fit", name)
    # Other systems leave something else in these bits.
    mode = attributes >> 16 if made >> 8 in (_UNIX, _DARWIN) else 0
    entry = Entry(
        raw=raw, name=name, flags=flags, method=method, crc=crc, packed=packed, size=size,
        offset=offset, mode=mode,
    )  # fmt: skip
    return entry, length


def _require_short(extra_size: int, name: str) -> None:
    if extra_size > _LONGEST_EXTRA:
        raise unsafe("a member's extra field is too long", name)


def _zip64(extra: bytes, values: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Replace the values that mean "see the zip64 field" by those of that field."""
    found: tuple[int, ...] | None = None
    position = 0
    while position < len(extra):
        if len(extra) - position < _EXTRA.size:
            raise unsafe("a member's extra field is malformed", name)
        tag, length = _EXTRA.unpack_from(extra, position)
        start = position + _EXTRA.size
        position = start + length
        body = extra[start:position]
        if len(body) != length:
            raise unsafe("a member's extra field is malformed", name)
        # Info-ZIP's Unicode path: some readers would use that name instead.
        if tag == 0x7075:
            raise unsafe("a member has a second name", name)
        if tag == 1:
            # Of two, one reader takes the first and another the last.
            if found is not None:
                raise unsafe("a member's extra field is malformed", name)
            found = struct.unpack_from(f"<{length // 8}Q", body)
    wide = iter(found or ())
    try:
        return tuple(next(wide) if value == _MAX32 else value for value in values)
    except (StopIteration, RuntimeError) as error:
        raise unsafe("a member's zip64 field is missing or short", name) from error


_INPUT = 256 << 10


def zip_members(file: BinaryIO, budget: Budget) -> Iterator[Member]:
    """Yield every member in the order of the central directory; each file is ``alone``.

    Any thread may read a content at any time, but only one thread each. Raises
    ``UnsafeArchive`` for anything that two readers could read differently, for encryption,
    and for a malformed or shortened file.
    """
    lock = threading.Lock()
    for entry in read_directory(file, budget):
        yield _member(_Packed(entry, file, lock), budget)


def _member(packed: _Packed, budget: Budget) -> Member:
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
        budget.spend(entry.size)
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
    """The packed bytes of one member in the archive's ``file``. One thread uses it."""

    def __init__(self, entry: Entry, file: BinaryIO, lock: threading.Lock) -> None:
        self.entry = entry
        self._file = file
        self._lock = lock
        self._left = entry.packed

    def content(self) -> Iterator[bytes]:
        """Yield the unpacked bytes; compare their length and checksum at the end."""
        crc = size = 0
        stored = iter(lambda: self._more(CHUNK), b"")
        for chunk in self._inflated() if self.entry.method == DEFLATED else stored:
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
        # The threads that inflate members share the file and its position: without the lock,
        # another one could move it between our seek and our read.
        with self._lock:
            self._file.seek(end - self._left)
            data = exact(self._file, min(size, self._left))
        self._left -= len(data)
        return data

    def _inflated(self) -> Iterator[bytes]:
        rest = yield from inflated(RAW, b"", self._more, "a member cannot be decompressed")
        # The stream ended before the member's packed size: the rest could be something hidden.
        if self._left or rest:
            raise unsafe("a member has data after its end", self.entry.name)
