"""Reproducible tarballs: the same content gives the same bytes.

The tarball holds nothing of this machine: no times, no owners, no folders. Files have only the
modes 0644 and 0755, links 0777. This module writes the gzip header, because Python's header differs
between versions. The compressed data depend on the local zlib: another implementation (zlib-ng)
gives other bytes, which unpack to the same content.
"""

from __future__ import annotations

import hashlib
import struct
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry, TreeEntry

LEVEL = 6
"""The level for zlib. Level 9 takes five times as long and saves a fiftieth of the bytes
(measured with libggml-vulkan.so)."""

_CHUNK = 1 << 20
_GZIP_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
"""The header of RFC 1952: deflate, no name, no time, no hint of the level, system "unknown"."""


def write_tarball(tree: Path, items: Sequence[TreeEntry], file: BinaryIO) -> None:
    """Write files and links of a tree into a gzipped tar, in the order of ``items``.

    Raises ``UsageError`` for a file that differs from its item, and ``OSError``: only the caller
    knows on which disk the tarball is.
    """
    packed = _Gzip(file)
    for item in items:
        packed.write(_header(item))
        if isinstance(item, FileEntry):
            _copy(tree / item.path, item, packed)
    # Two empty blocks mark the end of a tar.
    packed.write(bytes(2 * tarfile.BLOCKSIZE))
    packed.end()


class _Gzip:
    """One gzip member, with a header that is the same on every machine."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        # Negative wbits: raw deflate, as the header and the trailer are written here.
        self._deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._crc = self._size = 0
        file.write(_GZIP_HEADER)

    def write(self, data: bytes) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._file.write(self._deflate.compress(data))

    def end(self) -> None:
        self._file.write(self._deflate.flush())
        # The trailer of RFC 1952: CRC-32 and size modulo 2^32.
        self._file.write(struct.pack("<LL", self._crc, self._size & 0xFFFFFFFF))


def _header(item: TreeEntry) -> bytes:
    entry = tarfile.TarInfo(item.path)
    if isinstance(item, LinkEntry):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, item.target, 0o777
    else:
        entry.size = item.size
        entry.mode = 0o755 if item.executable else 0o644
    return entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def _copy(path: Path, item: FileEntry, packed: _Gzip) -> None:
    digest = hashlib.sha256()
    left = item.size
    with path.open("rb", buffering=0) as file:
        # The header already says item.size: never write more, even if the file grows meanwhile.
        while left and (block := file.read(min(_CHUNK, left))):
            digest.update(block)
            packed.write(block)
            left -= len(block)
        # One more byte shows that the file is longer than it was when it was described.
        longer = file.read(1)
    if left or longer or digest.hexdigest() != item.sha256:
        raise UsageError(
            "a file changed while it was packed",
            facts=(f"file: {path}",),
            hint="wait until the build is done, then pack it again",
        )
    # Fill the last block with zeros.
    packed.write(bytes(-item.size % tarfile.BLOCKSIZE))
