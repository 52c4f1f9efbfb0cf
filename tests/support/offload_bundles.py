"""Offload bundles as clang writes them into HIP libraries: one entry for each kind of GPU."""

import struct
import sys
import zlib
from pathlib import Path

from support.builds import compile_library

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZLIB, ZSTD = 0, 1
MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
_PAGE = 4096


def bundle(*targets: str, size: int = 24) -> bytes:
    """A bundle with code of ``size`` zeros for each target, and the host's empty entry."""
    triples = [
        "host-x86_64-unknown-linux-gnu-",
        *(f"hipv4-amdgcn-amd-amdhsa--{t}" for t in targets),
    ]
    at = _PAGE
    table = b""
    for triple in triples:
        length = 0 if triple.startswith("host") else size
        table += struct.pack("<QQQ", at, length, len(triple)) + triple.encode()
        at += length
    head = MAGIC + struct.pack("<Q", len(triples)) + table
    return head.ljust(_PAGE, b"\0") + bytes(at - _PAGE)


def compressed(whole: bytes, version: int = 2, method: int = ZLIB) -> bytes:
    """The same bundle as ``--offload-compress`` writes it: a header and one stream."""
    return framed(packed_zstd(whole) if method == ZSTD else zlib.compress(whole), version, method)


def packed_zstd(whole: bytes, window: int = 27) -> bytes:
    """A stream as clang makes it: matches over long distances, in a window of 2 to the power."""
    options: dict[int, int] = {
        zstd.CompressionParameter.enable_long_distance_matching: 1,
        zstd.CompressionParameter.window_log: window,
    }
    # In two steps: a stream whose size is known gets a window of that size only.
    packer = zstd.ZstdCompressor(options=options)
    found: bytes = packer.compress(whole) + packer.flush()
    return found


def framed(stream: bytes, version: int = 2, method: int = ZSTD, size: int | None = None) -> bytes:
    """Any stream after the header of a compressed bundle of ``size`` bytes."""
    layout = {2: "<4sHHIIQ", 3: "<4sHHQQQ"}[version]
    whole = struct.calcsize(layout) + len(stream)
    size = whole if size is None else size
    return struct.pack(layout, b"CCOB", version, method, size, 1 << 20, 0) + stream


def hip_library(path: Path, section: bytes, *flags: str) -> Path:
    """A shared library of that name whose ``.hip_fatbin`` is ``section``."""
    blob = path.with_name(f"{path.name}.hip")
    blob.write_bytes(section)
    code = f'__asm__(".section .hip_fatbin, \\"a\\"\\n.balign 16\\n.incbin \\"{blob}\\"\\n.text");'
    compile_library(path, code, *flags)
    blob.unlink()
    return path
