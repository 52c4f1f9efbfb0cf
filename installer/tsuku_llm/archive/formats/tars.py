"""The members of a tar stream: ustar with the PAX and GNU extensions for long names.

This is our own loop (POSIX.1-2017 "pax", and GNU's tar.h), so that all Python versions
behave alike. It refuses everything that two readers could read differently: sparse files,
hard links, devices, malformed sizes, global overrides, data after the end.

Every byte is read once. A header extension is limited in length and in records, and counts
as a member. So the work grows with the archive and has a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tsuku_llm.archive.formats.gzips import GzipReader, exact
from tsuku_llm.archive.formats.member import CHUNK, Budget, Chunk, Member, malformed, unsafe

BLOCK = 512
_LARGEST_EXTENSION = 16 << 10
"""Bytes of a PAX header or a long name: a path has at most 255, the rest is for attributes."""

_MOST_RECORDS = 100
"""Limit on records of one PAX header; packers write a dozen."""

_LARGEST = 1 << 40
_END = bytes(BLOCK)

_FILE = (b"0", b"\0")
_KNOWN_PAX = frozenset({"path", "linkpath", "size"})
_IDENTITY_PAX = frozenset({"path", "linkpath", "size", "hdrcharset"})

_REFUSED = {
    b"1": "a member is a hard link",
    b"3": "a member is a device",
    b"4": "a member is a device",
    b"6": "a member is a fifo",
    b"7": "a member has a special type",
    b"S": "a member is a sparse file",
    b"M": "a member continues another volume",
    b"V": "a member is a volume label",
}


@dataclass(frozen=True, slots=True)
class _Header:
    name: str
    mode: int
    size: int
    typeflag: bytes
    target: str


def tar_members(reader: GzipReader, budget: Budget) -> Iterator[Member]:
    """Yield every member in order.

    Raises ``UnsafeArchive`` for everything that no build needs, and for a malformed or
    shortened stream.
    """
    extensions: dict[str, str] = {}
    described = False  # whether an extension waits for its member
    while (block := exact(reader, BLOCK)) != _END:
        budget.member()
        header = _parse(block)
        if header.typeflag in (b"x", b"g", b"L", b"K"):
            if header.size > _LARGEST_EXTENSION:
                raise unsafe("a header extension is too large")
            data = exact(reader, header.size)
            exact(reader, -header.size % BLOCK)
            _extend(extensions, header, data)
            described = described or header.typeflag != b"g"  # a global one describes no member
            continue
        yield from _member(reader, _overridden(header, extensions))
        extensions, described = {}, False
    if described:
        raise unsafe("a header describes a member that does not follow")
    # Of one zero block, some readers stop and others read on.
    if exact(reader, BLOCK) != _END:
        raise unsafe("the end of the archive is marked by one block only")
    while rest := reader.read(CHUNK):
        if rest.strip(b"\0"):
            raise unsafe("data follows the end of the archive")


def _member(reader: GzipReader, header: _Header) -> Iterator[Member]:
    name, executable = header.name, bool(header.mode & 0o111)
    if header.typeflag in _FILE:
        content = _Content(reader, header.size)
        yield Member(
            name=name, kind="file", size=header.size, executable=executable, content=content.chunks
        )
        # The caller may have read only a part, or nothing: the next header is after all of it.
        content.skip()
        return
    if header.size:
        raise unsafe("a member that is not a file has content", name)
    if header.typeflag == b"5":
        yield Member(name=name, kind="folder")
    elif header.typeflag == b"2":
        yield Member(name=name, kind="link", target=header.target)
    else:
        raise unsafe(_REFUSED.get(header.typeflag, "a member has an unknown type"), name)


class _Content:
    """The content of one member and the padding after it; it can be read once."""

    def __init__(self, reader: GzipReader, size: int) -> None:
        self._reader = reader
        self._left = size
        self._padding = -size % BLOCK

    def chunks(self) -> Iterator[Chunk]:
        while self._left:
            chunk = self._reader.some(min(CHUNK, self._left))
            if not chunk:
                raise malformed("it ends early")
            self._left -= len(chunk)
            yield chunk

    def skip(self) -> None:
        for _ in self.chunks():
            pass
        exact(self._reader, self._padding)


def _parse(block: bytes) -> _Header:
    if block[257:263] not in (b"ustar\0", b"ustar "):
        raise malformed("a header is not a tar header")
    # POSIX: the sum of all bytes, with blanks in place of the checksum itself.
    stored = _number(block[148:156])
    blank = block[:148] + b" " * 8 + block[156:]
    if stored != sum(blank):
        raise malformed("a header's checksum is wrong")
    name = _text(block[0:100])
    # GNU's own format ("ustar ") has other fields in place of the prefix.
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
    return _Header(
        name=f"{prefix}/{name}" if prefix else name,
        mode=_number(block[100:108]),
        size=_number(block[124:136]),
        typeflag=block[156:157],
        target=_text(block[157:257]),
    )


def _number(field: bytes) -> int:
    """Read an octal number, or one of GNU's base 256; refuse negative and malformed ones."""
    if field[0] == 0x80:
        value = int.from_bytes(field[1:], "big")
    elif field[0] & 0x80:
        raise unsafe("a header has a negative number")
    else:
        digits = field.rstrip(b" \0").lstrip(b" ")
        if digits.strip(b"01234567"):
            raise malformed("a header has a malformed number")
        value = int(digits or b"0", 8)
    if value > _LARGEST:
        raise unsafe("a header has a number that is too large")
    return value


def _text(field: bytes) -> str:
    return _decoded(field.split(b"\0", 1)[0])


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise unsafe("a name is not UTF-8", repr(data)) from error


def _extend(extensions: dict[str, str], header: _Header, data: bytes) -> None:
    if header.typeflag in (b"L", b"K"):
        found = {"path" if header.typeflag == b"L" else "linkpath": _text(data)}
    else:
        found = _pax(data)
        if header.typeflag == b"g":
            if _IDENTITY_PAX.intersection(found):
                raise unsafe("a global header renames members")
            return  # the rest of it, such as git's comment, has no meaning for us
    # PAX and GNU extensions for one member: readers disagree about which one counts.
    if extensions.keys() & found.keys():
        raise unsafe("a member is described twice")
    extensions.update(found)


def _pax(data: bytes) -> dict[str, str]:
    """Read the records (length, keyword, value); return those that have a meaning for us."""
    found: dict[str, str] = {}
    position = records = 0
    while position < len(data):
        # Only the start of the rest is searched: otherwise the work grows with its square.
        digits, space, _ = data[position : position + 20].partition(b" ")
        length = int(digits) if digits.isdigit() and space else 0
        record = data[position + len(digits) + 1 : position + length]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n") or len(digits) + 1 + len(record) != length:
            raise unsafe("a PAX header is malformed")
        position += length
        records += 1
        if records > _MOST_RECORDS:
            raise unsafe("a PAX header has too many records")
        keyword = _decoded(key)
        if keyword.startswith("GNU.sparse") or keyword == "hdrcharset":
            raise unsafe("a member is sparse or has another character set")
        if keyword in _KNOWN_PAX:
            if keyword in found:
                raise unsafe("a member is described twice")
            found[keyword] = _decoded(value[:-1])
    return found


def _overridden(header: _Header, extensions: dict[str, str]) -> _Header:
    size = extensions.get("size", "")
    if size and not (size.isascii() and size.isdigit() and len(size) <= 13):
        raise unsafe("a PAX header has a malformed size", header.name)
    # A reader in C ends the name at the zero byte, another one does not.
    for text in extensions.values():
        if "\0" in text:
            raise unsafe("a PAX header has a zero byte", header.name)
    return replace(
        header,
        name=extensions.get("path", header.name),
        size=int(size) if size else header.size,
        target=extensions.get("linkpath", header.target),
    )
