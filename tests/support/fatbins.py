"""CUDA fat binaries without a compiler: the headers as NVIDIA's ``fatbinary`` writes them.

The code in them is zeros, unless a test says otherwise. ``library`` compiles a shared library that
carries such a section.
"""

import struct
from pathlib import Path

from support.builds import compile_library

PTX, SASS = 1, 2
ONE_DEVICE, FAMILY, COMPRESSED = 1 << 20, 1 << 21, 1 << 15


def entry(
    kind: int, architecture: int, flags: int = 0, *, code: bytes = bytes(24), more: int = 0
) -> bytes:
    """One piece of device code; ``more`` bytes follow the 64 of its header, as for Blackwell."""
    header = struct.pack("<HHIQ", kind, 0x101, 64 + more, len(code))
    header += struct.pack("<IIIIQQQQ", 0, 64 if more else 0, 0x80007, architecture, 0, flags, 0, 0)
    return header.ljust(64 + more, b"\0") + code


def container(*entries: bytes) -> bytes:
    """What one translation unit brings."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(path: Path, section: bytes, *flags: str) -> Path:
    """A shared library of that name whose ``.nv_fatbin`` is ``section``."""
    blob = path.with_name(f"{path.name}.fatbin")
    blob.write_bytes(section)
    code = f'__asm__(".section .nv_fatbin, \\"a\\"\\n.balign 8\\n.incbin \\"{blob}\\"\\n.text");'
    compile_library(path, code, *flags)
    blob.unlink()
    return path


def windows_library(section: bytes, name: bytes = b".nv_fatb") -> bytes:
    """A DLL of one section (PE/COFF), padded as linkers pad it."""
    optional = bytes(240)
    padded = section.ljust(-(-len(section) // 512) * 512, b"\0")
    table = struct.pack("<8sIIII16x", name, len(section), 0x1000, len(padded), 512)
    head = struct.pack("<4sHH12xHH", b"PE\0\0", 0x8664, 1, len(optional), 0x2022)
    stub = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    return (stub + head + optional + table).ljust(512, b"\0") + padded
