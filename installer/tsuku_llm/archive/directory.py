"""The directory of a zip file (APPNOTE.TXT 6.3), compared with everything else in the file.

The file must be covered by its entries from the first byte to the last: no prefix, no
gaps, no overlap, nothing behind; and the local headers must say what the central
directory says. Whoever reads it in another way then finds the same members.

Every byte of the directory is read once: time and memory grow with its size, up to
``_LARGEST_DIRECTORY`` bytes and the budget's number of members.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import BinaryIO

from tsuku_llm.archive.budget import Spending
from tsuku_llm.archive.gzips import exact
from tsuku_llm.archive.member import malformed, unsafe

_EOCD = struct.Struct("<4s4H2LH")
_EOCD64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_EXTRA = struct.Struct("<2H")

STORED, DEFLATED = 0, 8
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_DESCRIPTOR = 0x0008
_PATCHED = 0x0020
_UTF8 = 0x0800
_UNIX, _DARWIN = 3, 19
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_LONGEST_COMMENT = 0xFFFF
_LARGEST_DIRECTORY = 64 << 20
_LONGEST_EXTRA = 1 << 10
"""Bytes of a member's extra field; what packers write (times, owners, zip64) takes below 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file or folder as the directory has it; ``data`` is where its content begins."""

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


def read_directory(file: BinaryIO, spending: Spending) -> list[Entry]:
    """Every entry in the order of the directory, each compared with its local header.

    Raises ``UnsafeArchive`` for what two readers could read differently, for encryption,
    and for a malformed or shortened file.
    """
    entries, start = _directory(file, spending)
    ends = _extents(entries, start)
    return [replace(entry, data=_data_offset(file, entry, ends[entry.offset])) for entry in entries]


def _extents(entries: list[Entry], start: int) -> dict[int, int]:
    """Where each entry's bytes end, by where they begin; the first begins the file."""
    offsets = sorted(entry.offset for entry in entries)
    if (offsets[0] if offsets else start) != 0:
        raise unsafe("something stands before the first member")
    if len(set(offsets)) != len(offsets):
        raise unsafe("members overlap")
    return dict(zip(offsets, [*offsets[1:], start], strict=True))


def _data_offset(file: BinaryIO, entry: Entry, end: int) -> int:
    """Where an entry's data begins, its local header having been compared."""
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
    said = (crc, packed, size)
    if said != (entry.crc, entry.packed, entry.size) and not (described and not any(said)):
        raise unsafe("a member's two headers differ", entry.name)
    rest = end - data - entry.packed
    if rest and not (described and _is_descriptor(file, entry, data + entry.packed, rest)):
        raise unsafe("members overlap, or something stands between them", entry.name)
    return data


def _is_descriptor(file: BinaryIO, entry: Entry, offset: int, size: int) -> bool:
    """Whether the bytes behind an entry's data are its data descriptor, in one of its forms."""
    forms = [struct.pack("<L2Q", entry.crc, entry.packed, entry.size)]
    if max(entry.packed, entry.size) <= _MAX32:
        forms.append(struct.pack("<3L", entry.crc, entry.packed, entry.size))
    forms += [b"PK\7\x08" + form for form in forms]
    if size not in map(len, forms):
        return False
    file.seek(offset)
    return exact(file, size) in forms


def _directory(file: BinaryIO, spending: Spending) -> tuple[list[Entry], int]:
    count, size, start = _end(file)
    spending.check_members(count)
    if size > _LARGEST_DIRECTORY:
        raise unsafe("the directory is too large")
    file.seek(start)
    data = exact(file, size)
    entries = []
    position = 0
    for _ in range(count):
        spending.member()
        entry, length = _central(data, position)
        entries.append(entry)
        position += length
    if position != size:
        raise unsafe("the directory has more than its entries")
    return entries, start


def _end(file: BinaryIO) -> tuple[int, int, int]:
    """Number of entries, size of the directory, where it begins."""
    length = file.seek(0, 2)
    tail_at = max(0, length - _LONGEST_COMMENT - _EOCD.size)
    file.seek(tail_at)
    tail = file.read()
    found = tail.rfind(b"PK\5\6")
    if found < 0 or len(tail) - found < _EOCD.size:
        raise malformed("it is no zip file, or its end is missing")
    _, disk, first, here, count, size, start, comment = _EOCD.unpack_from(tail, found)
    if found + _EOCD.size + comment != len(tail):
        raise unsafe("something stands behind the end of the archive")
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
    """Read the entry at a position; gives its length too. Only its own bytes are copied."""
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
    name = _name(raw, flags)
    _require_short(extra_size, name)
    if disk or flags & (_ENCRYPTED | _PATCHED) or method not in (STORED, DEFLATED):
        raise unsafe("a member is encrypted or packed in an unusual way", name)
    extra = data[extra_at : extra_at + extra_size]
    size, packed, offset = _zip64(extra, (size, packed, offset), name)
    if method == STORED and size != packed:
        raise unsafe("a member's sizes do not fit", name)
    mode = attributes >> 16 if made >> 8 in (_UNIX, _DARWIN) else 0
    entry = Entry(
        raw=raw, name=name, flags=flags, method=method, crc=crc, packed=packed, size=size,
        offset=offset, mode=mode,
    )  # fmt: skip
    return entry, length


def _require_short(extra_size: int, name: str) -> None:
    if extra_size > _LONGEST_EXTRA:
        raise unsafe("a member's extra field is too long", name)


def _name(raw: bytes, flags: int) -> str:
    """A member's name; without the UTF-8 flag only ASCII is one thing to everybody."""
    try:
        return raw.decode("utf-8" if flags & _UTF8 else "ascii")
    except UnicodeDecodeError as error:
        raise unsafe("a name is not UTF-8", repr(raw)) from error


def _zip64(extra: bytes, values: tuple[int, ...], name: str) -> tuple[int, ...]:
    """The values, those that say "see the zip64 field" taken from it."""
    wide = iter(_zip64_field(extra, name))
    try:
        return tuple(next(wide) if value == _MAX32 else value for value in values)
    except (StopIteration, RuntimeError) as error:
        raise unsafe("a member's zip64 field is missing or short", name) from error


def _zip64_field(extra: bytes, name: str) -> tuple[int, ...]:
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
        if tag == 0x7075:  # noqa: PLR2004
            raise unsafe("a member has a second name", name)
        if tag == 1:
            if found is not None:
                raise unsafe("a member's extra field is malformed", name)
            found = struct.unpack_from(f"<{length // 8}Q", body)
    return found or ()
