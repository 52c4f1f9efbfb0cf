"""The AMD GPUs for which a HIP library has code, from the headers of its offload bundles.

The section ``.hip_fatbin`` (``.hip_fat`` in Windows files) holds bundles one after another, one for
each translation unit. Clang's documentation describes them (ClangOffloadBundler): a magic string,
the number of entries, and for each entry the place and size of its code and its target. With
``--offload-compress`` a bundle is one compressed stream after a header of its own.
"""

import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from tsuku_publish.errors import PublishError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SECTIONS = (".hip_fatbin", ".hip_fat")

_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
_COUNT = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQQ")
"""Place of the code, its size, length of the target's name."""
_COMPRESSED = b"CCOB"
_HEADERS = {2: struct.Struct("<4sHHIIQ"), 3: struct.Struct("<4sHHQQQ")}
"""Magic, version, method, size with this header, size of the bundle, hash; by version."""
_ZLIB, _ZSTD = 0, 1
_STEP = 8
_LARGEST_TABLE = 1 << 16
"""Bytes at most of a bundle's table of entries; the names of forty GPUs have 3 KB."""
_LARGEST_START = 1 << 18
"""Bytes at most of a stream for its table: zstd unpacks a block of up to 128 KiB as a whole."""
_LARGEST_WINDOW = 27
"""The binary logarithm of the largest window of zstd: clang's, with matches over long distances."""


def gfx_targets(file: BinaryIO, start: int, size: int) -> tuple[str, ...] | None:
    """Return the targets that every bundle of a section has code for, in their order.

    None if there is no code for a GPU, or if a bundle is compressed by a method that clang did not
    have when this was written. Raises ``PublishError`` for a section with another layout.
    """
    found: list[tuple[str, ...]] = []
    for targets in _bundles(file, start, start + size):
        if targets is None:
            return None
        found += [targets] if targets else []
    if not found:
        return None
    # A device needs every kernel of the library, so only common targets count.
    common = set.intersection(*map(set, found))
    return tuple(target for target in dict.fromkeys(found[0]) if target in common)


def _bundles(file: BinaryIO, at: int, end: int) -> Iterator[tuple[str, ...] | None]:
    """Yield the targets of each bundle; None for one that cannot be read."""
    while at < end:
        start = _read(file, at, min(len(_MAGIC), end - at))
        if not start.strip(b"\0"):
            at += len(start)  # padding up to the next page
        elif start == _MAGIC:
            plain, size = _entries(_read(file, at, min(_LARGEST_TABLE, end - at)))
            if at + size > end:
                raise _malformed(at)
            yield plain
            at += size
        elif start.startswith(_COMPRESSED):
            targets, size = _compressed(file, at, end)
            yield targets
            at += size
        elif start[0] == 0:
            # A bundle begins at a multiple of eight bytes, not always of 24.
            at += _STEP
        else:
            raise _malformed(at)


def _entries(data: bytes) -> tuple[tuple[str, ...], int]:
    """Return the targets of a bundle that begins here, and the bundle's size."""
    try:
        (count,) = _COUNT.unpack_from(data, len(_MAGIC))
        place, last, targets = len(_MAGIC) + _COUNT.size, 0, []
        for _ in range(count):
            offset, size, length = _ENTRY.unpack_from(data, place)
            place += _ENTRY.size
            name = data[place : place + length]
            if len(name) != length:
                raise _malformed(place)
            place += length
            last = max(last, offset + size)
            if size:
                targets.append(name.decode("ascii"))
    except (struct.error, UnicodeDecodeError) as error:
        raise _malformed(0) from error
    gpus = (target.rpartition("--")[2].partition(":")[0] for target in targets)
    return tuple(dict.fromkeys(gpu for gpu in gpus if gpu.startswith("gfx"))), max(last, place)


def _compressed(file: BinaryIO, at: int, end: int) -> tuple[tuple[str, ...] | None, int]:
    """Return the same for a compressed bundle, and its size as it is stored."""
    version, method = struct.unpack("<HH", _read(file, at + len(_COMPRESSED), 4))
    header = _HEADERS.get(version)
    if header is None:
        raise _malformed(at)
    *_, size, _whole, _hash = header.unpack(_read(file, at, header.size))
    if size < header.size or at + size > end:
        raise _malformed(at)
    # The table is at the front; the code after it may have hundreds of megabytes.
    stream = _read(file, at + header.size, min(size - header.size, _LARGEST_START))
    limits: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: _LARGEST_WINDOW}
    try:
        # The limit of the output also holds for a stream that says that it unpacks to terabytes.
        if method == _ZLIB:
            start = zlib.decompressobj().decompress(stream, _LARGEST_TABLE)
        elif method == _ZSTD:
            start = zstd.ZstdDecompressor(options=limits).decompress(stream, _LARGEST_TABLE)
        else:
            return None, size
    except (zlib.error, zstd.ZstdError) as error:
        raise _malformed(at) from error
    return _entries(start)[0], size


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    data = file.read(size)
    if len(data) != size:
        raise _malformed(at)
    return data


def _malformed(at: int) -> PublishError:
    return PublishError(f"its HIP code is not laid out as expected at byte {at}")
