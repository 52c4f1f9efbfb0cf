"""The GPU code in Windows libraries; their needs of the system are not measured.

The layout is that of Microsoft's PE/COFF specification: an offset at byte 60 leads to the
signature; the file header (20 bytes), the optional header and the sections follow it.
"""

import struct
from pathlib import Path
from typing import BinaryIO

from ci.release.elf import Needs
from ci.release.errors import ReleaseError
from ci.release.fatbin import DeviceCode, device_code

_MAGIC = b"MZ"
_SIGNATURE_AT = 60
_HEADERS = struct.Struct("<4sHH12xH2x")
"""Signature, machine, number of sections, ..., size of the optional header, ..."""
_SECTION = struct.Struct("<8sI4xII16x")
"""Name, size in memory, ..., size in the file, place in the file, ..."""
_CUDA = b".nv_fatb"
"""``.nv_fatbin``, cut to eight bytes."""


def needs_of(path: Path) -> Needs | None:
    """Read one file; return None if it is not a Windows program or library.

    Raises ``ReleaseError`` for one that cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
        try:
            return Needs(None, None, frozenset(), _device_code(file))
        except struct.error as error:
            raise ReleaseError(f"{path.name} is a damaged Windows program") from error
        except ReleaseError as error:
            raise ReleaseError(f"{path.name}: {error}") from error


def _device_code(file: BinaryIO) -> DeviceCode | None:
    file.seek(_SIGNATURE_AT)
    (headers,) = struct.unpack("<I", file.read(4))
    file.seek(headers)
    signature, _, sections, optional = _HEADERS.unpack(file.read(_HEADERS.size))
    if signature != b"PE\0\0":
        raise ReleaseError("it is no Windows program")
    file.seek(headers + _HEADERS.size + optional)
    table = file.read(sections * _SECTION.size)
    if len(table) != sections * _SECTION.size:
        raise ReleaseError("its table of sections is cut off")
    for name, in_memory, in_file, place in _SECTION.iter_unpack(table):
        if name == _CUDA:
            # In the file a section is padded to its alignment; in memory it may be longer than in
            # the file.
            return device_code(file, place, min(in_memory, in_file))
    return None
