"""Inflation in bounded memory, by ISA-L where the extra ``fast`` brought it, else by zlib.

Both have the same interface and check the same checksums; ISA-L takes half the time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from types import ModuleType

from tsuku_llm.archive.member import CHUNK, malformed

RAW = -15
"""Window bits for a bare deflate stream, as zip members are."""

GZIP = 31
"""Window bits for a gzip member, its CRC and length checked at the end."""


def fastest() -> ModuleType:
    """The fastest library that is installed."""
    try:
        from isal import isal_zlib  # noqa: PLC0415
    except ImportError:  # no wheel for this platform, or not asked for
        return zlib
    library: ModuleType = isal_zlib
    return library


LIBRARY = fastest()


def inflated(
    bits: int, data: bytes, more: Callable[[], bytes], what: str
) -> Generator[bytes, None, bytes]:
    """Yield the content of one stream, at most ``CHUNK`` bytes at a time.

    The stream begins with ``data`` and goes on with what ``more`` gives, "" at the end;
    what was read beyond the stream's own end is returned. Raises ``UnsafeArchive``, with
    ``what`` when the stream is wrong.
    """
    inflate = LIBRARY.decompressobj(bits)
    while not inflate.eof:
        try:
            content = inflate.decompress(data, CHUNK)
        except (zlib.error, LIBRARY.error) as error:
            raise malformed(what) from error
        data = inflate.unconsumed_tail
        if content:
            yield content
        elif not inflate.eof and not data:  # nor is there any output held back for want of room
            data = more()
            if not data:
                raise malformed("it ends early")
    rest: bytes = inflate.unused_data
    return rest
