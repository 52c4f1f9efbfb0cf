"""Tarballs of which the same content gives the same bytes.

Nothing of the machine goes in: no times, no owners, no modes but 0644 and 0755, no folders.
The gzip header is written here, as Python's differs between its versions; what is left is the
deflating, which is that of the zlib at hand: another implementation (zlib-ng) gives other
bytes, that unpack to the same.
"""

from __future__ import annotations

import hashlib
import struct
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from tsuku_llm.archive import Unpacked, UnpackedFile, UnpackedLink
from tsuku_llm.disk import disk_errors
from tsuku_llm.errors import UsageError

LEVEL = 6
"""Of zlib; 9 takes five times as long for a fiftieth of the bytes (libggml-vulkan.so)."""

_CHUNK = 1 << 20
_GZIP_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
"""RFC 1952: deflate, no name, no time, no hint of the level, an unknown system."""


def write_tarball(tree: Path, items: Sequence[Unpacked], file: BinaryIO) -> None:
    """Write files and links of a tree into a gzipped tar, in this order.

    Raises ``UsageError`` for a file that is not what ``items`` says of it, and the errors
    of the disk.
    """
    with disk_errors("packing", tree):
        packed = _Gzip(file)
        for item in items:
            packed.write(_header(item))
            if isinstance(item, UnpackedFile):
                _copy(tree / item.path, item, packed)
        packed.write(bytes(2 * tarfile.BLOCKSIZE))
        packed.end()


class _Gzip:
    """One gzip member, its header being the same everywhere."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._crc = self._size = 0
        file.write(_GZIP_HEADER)

    def write(self, data: bytes) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._file.write(self._deflate.compress(data))

    def end(self) -> None:
        self._file.write(self._deflate.flush())
        self._file.write(struct.pack("<LL", self._crc, self._size & 0xFFFFFFFF))


def _header(item: Unpacked) -> bytes:
    entry = tarfile.TarInfo(item.path)
    if isinstance(item, UnpackedLink):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, item.target, 0o777
    else:
        entry.size = item.size
        entry.mode = 0o755 if item.executable else 0o644
    return entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def _copy(path: Path, item: UnpackedFile, packed: _Gzip) -> None:
    digest = hashlib.sha256()
    left = item.size
    with path.open("rb", buffering=0) as file:
        while left and (block := file.read(min(_CHUNK, left))):
            digest.update(block)
            packed.write(block)
            left -= len(block)
        longer = file.read(1)
    if left or longer or digest.hexdigest() != item.sha256:
        raise UsageError(
            "a file changed while it was packed",
            facts=(f"file: {path}",),
            hint="wait until the build is done, then pack it again",
        )
    packed.write(bytes(-item.size % tarfile.BLOCKSIZE))
