"""Bytes in order, out of a gzip stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Protocol

from tsuku_llm.archive.budget import Spending
from tsuku_llm.archive.inflating import GZIP, inflated
from tsuku_llm.archive.member import damaged

_INPUT = 256 << 10


class Reader(Protocol):
    """Bytes in order; fewer than asked for at the end only."""

    def read(self, size: int) -> bytes:
        """Give up to ``size`` bytes."""
        ...


class GzipReader:
    """The content of a gzip stream of one or more members, counted against a budget.

    Zero padding after the last member is allowed, as tape blocks bring it; anything else
    there is not. Both ways to read raise ``BodyError`` for damage.
    """

    def __init__(self, file: BinaryIO, spending: Spending) -> None:
        self._chunks = _content(file)
        self._spending = spending
        self._ready = memoryview(b"")

    def some(self, size: int) -> memoryview:
        """Give at least one byte and at most ``size``, without copying; none at the end."""
        if not self._ready:
            self._ready = memoryview(next(self._chunks, b""))
            self._spending.spend(len(self._ready))
        taken, self._ready = self._ready[:size], self._ready[size:]
        return taken

    def read(self, size: int) -> bytes:
        """Give ``size`` bytes, fewer at the end."""
        found = bytearray()
        while len(found) < size and (part := self.some(size - len(found))):
            found += part
        return bytes(found)


def _content(file: BinaryIO) -> Iterator[bytes]:
    rest = file.read(_INPUT)
    while rest:
        rest = yield from inflated(
            GZIP, rest, lambda: file.read(_INPUT), "it is no gzip file, or a part of it is wrong"
        )
        rest = _behind_padding(rest, file)


def _behind_padding(rest: bytes, file: BinaryIO) -> bytes:
    while not (rest := rest.lstrip(b"\0")):
        rest = file.read(_INPUT)
        if not rest:
            break
    return rest


def exact(reader: Reader, size: int) -> bytes:
    """Exactly ``size`` bytes; raises ``BodyError`` if there are fewer."""
    data = reader.read(size)
    if len(data) != size:
        raise damaged("it ends early")
    return data
