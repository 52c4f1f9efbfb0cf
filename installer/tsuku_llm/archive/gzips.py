"""Decompression in bounded memory."""

from __future__ import annotations

import zlib
from typing import BinaryIO, Protocol

from tsuku_llm.archive.budget import Spending
from tsuku_llm.archive.member import CHUNK, damaged

_INPUT = 256 << 10
_GZIP = 31
"""zlib's window bits for: a gzip header, and its CRC and length checked at the end."""


class Reader(Protocol):
    """Bytes in order; fewer than asked for at the end only."""

    def read(self, size: int) -> bytes:
        """Give up to ``size`` bytes."""
        ...


class GzipReader:
    """The content of a gzip stream of one or more members, counted against a budget.

    Zero padding after the last member is allowed, as tape blocks bring it; anything else
    there is not.
    """

    def __init__(self, file: BinaryIO, spending: Spending) -> None:
        self._file = file
        self._spending = spending
        self._inflate = zlib.decompressobj(_GZIP)
        self._input = b""
        self._ready = bytearray()
        self._ended = False

    def read(self, size: int) -> bytes:
        """Give ``size`` bytes, fewer at the end; raises ``BodyError`` for damage."""
        while len(self._ready) < size and not self._ended:
            self._more()
        chunk = bytes(self._ready[:size])
        del self._ready[:size]
        return chunk

    def _more(self) -> None:
        if not self._input:
            self._input = self._file.read(_INPUT)
        if not self._input:
            if not self._inflate.eof:
                raise damaged("it ends early")
            self._ended = True
            return
        if self._inflate.eof:
            self._input = self._input.lstrip(b"\0")
            self._inflate = zlib.decompressobj(_GZIP) if self._input else self._inflate
        if self._input:
            self._decompress()

    def _decompress(self) -> None:
        try:
            content = self._inflate.decompress(self._input, CHUNK)
        except zlib.error as error:
            raise damaged("it is no gzip file, or a part of it is wrong") from error
        self._input = self._inflate.unconsumed_tail or self._inflate.unused_data
        self._spending.spend(len(content))
        self._ready += content


def exact(reader: Reader, size: int) -> bytes:
    """Exactly ``size`` bytes; raises ``BodyError`` if there are fewer."""
    data = reader.read(size)
    if len(data) != size:
        raise damaged("it ends early")
    return data
