"""Inflation in bounded memory, by ISA-L if the extra ``fast`` is installed, else by zlib.

Both have the same interface and check the same checksums. ISA-L takes half the time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from types import ModuleType

from tsuku_llm.archive.member import CHUNK, malformed

RAW = -15
"""Window bits for a bare deflate stream, as in zip members."""

GZIP = 31
"""Window bits for a gzip member, whose CRC and length the library checks at the end."""


def fastest() -> ModuleType:
    """Import the fastest library that is installed."""
    try:
        from isal import isal_zlib  # noqa: PLC0415
    except ImportError:  # no wheel for this platform, or the extra is not installed
        return zlib
    library: ModuleType = isal_zlib
    return library


LIBRARY = fastest()


def inflated(
    bits: int, data: bytes, more: Callable[[], bytes], what: str
) -> Generator[bytes, None, bytes]:
    """Yield the content of one stream, at most ``CHUNK`` bytes at a time.

    The stream begins with ``data`` and continues with the results of ``more``, which is
    empty at the end. Returns the bytes that were read after the stream's end. Raises
    ``UnsafeArchive``, with ``what`` as its text if the stream is wrong.
    """
    inflate = LIBRARY.decompressobj(bits)
    while not inflate.eof:
        try:
            # The limit: a kilobyte can inflate to a megabyte, and the caller counts in between.
            content = inflate.decompress(data, CHUNK)
        except (zlib.error, LIBRARY.error) as error:
            raise malformed(what) from error
        data = inflate.unconsumed_tail
        if content:
            yield content
        # No content, no rest of the input: only new input can continue the stream.
        elif not inflate.eof and not data:
            data = more()
            if not data:
                raise malformed("it ends early")
    rest: bytes = inflate.unused_data
    return rest
