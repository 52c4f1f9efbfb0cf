"""The GPUs for which a CUDA library has code, from the headers of its fat binaries.

The section ``.nv_fatbin`` holds containers one after another, one for each translation unit: a
header of 16 bytes (magic, version, its own size, the size of the rest) and entries, each a header
and its code. NVIDIA documents no layout; this one was read from files that CUDA 13's ``fatbinary``
made, and agrees with ``cuobjdump --list-elf --list-ptx``. Code may be compressed, headers never
are, so only headers and the smallest pieces need to be read.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from tsuku_publish.errors import PublishError

SECTION = ".nv_fatbin"

_CONTAINER = struct.Struct("<IHHQ")
_MAGIC = 0xBA55ED50
_ENTRY = struct.Struct("<HHIQ12xI8xQ")
"""Kind, version, size of this header, size of the code, ..., architecture, ..., flags."""

_PTX, _SASS = 1, 2
_ONE_DEVICE = 1 << 20
"""The flag of ``sm_90a``: code for devices of exactly this architecture."""
_FAMILY = 1 << 21
"""The flag of ``sm_100f``: as machine code equal to ``sm_100``, as PTX for fewer devices."""
_WORD = 8
_SMALL = 1 << 12
"""Bytes of machine code without a kernel at most; the smallest kernel's has 3 KB."""


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """Architectures as a release file names them ("8.6", "12.0a"), lowest first."""

    sass: tuple[str, ...]
    ptx: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Code:
    kind: int
    architecture: int
    flags: int

    @property
    def name(self) -> str:
        major, minor = divmod(self.architecture, 10)
        return f"{major}.{minor}{'a' if self.flags & _ONE_DEVICE else ''}"

    @property
    def is_ptx(self) -> bool:
        """Whether it is PTX that any later device can compile, not that of one device or family."""
        return self.kind == _PTX and not self.flags & (_ONE_DEVICE | _FAMILY)


def device_code(file: BinaryIO, start: int, size: int) -> DeviceCode | None:
    """Return what every container of a section has code for; None if none has any.

    A device needs each of a library's kernels, so architectures that only some containers have are
    left out. Raises ``PublishError`` for a section with another layout.
    """
    # A container without device code does not count.
    containers = [set(codes) for codes in _containers(file, start, start + size)]
    filled = [codes for codes in containers if codes]
    if not filled:
        return None
    common = sorted(set.intersection(*filled), key=lambda code: (code.architecture, code.flags))
    return DeviceCode(
        sass=tuple(dict.fromkeys(code.name for code in common if code.kind == _SASS)),
        ptx=tuple(code.name for code in common if code.is_ptx),
    )


def _containers(file: BinaryIO, at: int, end: int) -> Iterator[list[_Code]]:
    while at < end:
        if _read(file, at, _WORD, end) == bytes(_WORD):
            at += _WORD  # a linker's padding between two objects
            continue
        magic, _, header, size = _CONTAINER.unpack(_read(file, at, _CONTAINER.size, end))
        first, after = at + header, at + header + size
        if magic != _MAGIC or header < _CONTAINER.size or after > end:
            raise _malformed(at)
        yield list(_entries(file, first, after))
        at = after


def _entries(file: BinaryIO, at: int, end: int) -> Iterator[_Code]:
    while at < end:
        entry = _ENTRY.unpack(_read(file, at, _ENTRY.size, end))
        kind, _, header, size, architecture, flags = entry
        if header < _ENTRY.size or at + header + size > end:
            raise _malformed(at)
        if kind == _PTX or (kind == _SASS and not _is_bare(file, at + header, size, end)):
            yield _Code(kind, architecture, flags & (_ONE_DEVICE | _FAMILY))
        at += header + size


def _is_bare(file: BinaryIO, at: int, size: int, end: int) -> bool:
    """Tell whether machine code has no kernel.

    nvcc's device link adds such code without PTX to what it links itself. Kernels are in sections
    named .text.NAME; a compressed piece does not begin as an ELF file and counts as one with them.
    """
    if size > _SMALL:
        return False
    code = _read(file, at, size, end)
    return code.startswith(b"\x7fELF") and b".text." not in code


def _read(file: BinaryIO, at: int, size: int, end: int) -> bytes:
    file.seek(at)
    data = file.read(size)
    if at + size > end or len(data) != size:
        raise _malformed(at)
    return data


def _malformed(at: int) -> PublishError:
    return PublishError(f"its CUDA code is not laid out as expected at byte {at}")
