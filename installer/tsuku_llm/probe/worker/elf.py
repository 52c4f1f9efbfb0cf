"""A reader of the symbol versions that a shared library defines; it does not load the library.

Layout: the System V ABI's ELF chapters and the Linux Standard Base's "Symbol Versioning".
"""

from __future__ import annotations

import mmap
import struct
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SHT_GNU_VERDEF = 0x6FFFFFFD
MOST_NAMES, LONGEST_NAME = 4096, 256
"""Limits for a damaged file: a C++ library defines about 60 versions, with names of 15 bytes."""


def version_definitions(data: bytes | mmap.mmap) -> list[str]:
    """Return the names in ``.gnu.version_d``, such as GLIBCXX_3.4.30.

    Raises ``ValueError`` if the data is not a 64-bit little-endian ELF file.
    """
    try:
        return list(islice(_definitions(data), MOST_NAMES))
    except (struct.error, IndexError) as error:
        raise ValueError(str(error)) from error


def machine(data: bytes | mmap.mmap) -> int:
    """Return the processor (``e_machine``) of a 64-bit little-endian ELF file.

    Raises ``ValueError`` if the data is not such a file.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        message = "not a 64-bit little-endian ELF file"
        raise ValueError(message)
    try:
        return int(struct.unpack_from("<H", data, 18)[0])
    except struct.error as error:
        raise ValueError(str(error)) from error


def _definitions(data: bytes | mmap.mmap) -> Iterator[str]:
    machine(data)
    sections = [_section(data, index) for index in range(_half(data, 60))]
    for kind, offset, size, link, count in sections:
        # The section's "link" is the index of its string table, "info" the number of definitions.
        if kind == SHT_GNU_VERDEF:
            names = sections[link][1]
            yield from _names(data, offset, size, names, count)


def _section(data: bytes | mmap.mmap, index: int) -> tuple[int, int, int, int, int]:
    """Return type, offset, size, link and info of one section."""
    (table,) = struct.unpack_from("<Q", data, 40)
    at = table + index * _half(data, 58)
    kind, _, _, offset, size, link, info = struct.unpack_from("<IQQQQII", data, at + 4)
    return kind, offset, size, link, info


def _names(
    data: bytes | mmap.mmap, offset: int, size: int, names: int, count: int
) -> Iterator[str]:
    end = offset + size
    for _ in range(min(count, size)):
        first, following = struct.unpack_from("<II", data, offset + 12)
        (name,) = struct.unpack_from("<I", data, offset + first)
        start = names + name
        yield data[start : start + LONGEST_NAME].partition(b"\0")[0].decode("ascii", "replace")
        # An entry gives the distance to the next one; 0 marks the last.
        offset += following
        if not following or offset >= end:
            return


def _half(data: bytes | mmap.mmap, offset: int) -> int:
    return int(struct.unpack_from("<H", data, offset)[0])
