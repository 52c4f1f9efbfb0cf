"""An artifact that is read while it comes; nothing of it can be read that is not verified."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

from tsuku_llm.disk import disk_errors
from tsuku_llm.errors import Interrupted
from tsuku_llm.fetch.places import read_at

_BUFFER = 256 << 10
_LOOK = 0.5
"""Seconds between two looks for Ctrl-C, which Windows gives to nobody who waits for good."""

_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class Arrival:
    """One artifact between the thread that fetches it and the one that unpacks it.

    ``verified`` bytes from the start may be used: up to the last piece that was compared
    with its digest, or where the manifest has no pieces, nothing until the whole was.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._descriptor: int | None = None
        self._verified = 0
        self._complete = False
        self._failure: BaseException | None = None

    def opened(self, path: Path) -> None:
        """It will lie there. Raises ``StoreError``."""
        with disk_errors("opening a download", path.parent):
            descriptor = os.open(path, _FLAGS)
        with self._changed:
            self._close()
            self._descriptor = descriptor

    def grow(self, verified: int) -> None:
        """So many bytes are verified."""
        with self._changed:
            self._verified = verified
            self._changed.notify_all()

    def complete(self) -> None:
        """The whole of it is verified, as it lies there."""
        with self._changed:
            if self._descriptor is not None:
                self._size = self._verified = os.fstat(self._descriptor).st_size
            self._complete = True
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """No more will come; readers raise this. What failed first counts."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    @property
    def there(self) -> bool:
        """Whether the whole of it is verified; then nothing fetches any of it any more."""
        return self._complete

    def wait(self) -> None:
        """Until the whole of it is there."""
        self._wait(sys.maxsize)

    def size(self) -> int:
        """Its size in bytes; where the manifest has none, waits until it is known."""
        if self._size is None:
            self._wait(0)
        return self._size or 0

    def read_at(self, offset: int, size: int) -> bytes:
        """Wait until something there is verified; fewer bytes at the end of what is."""
        self._wait(offset)
        with self._changed:
            length = min(size, self._verified - offset)
            if length <= 0:
                return b""
            if self._descriptor is None:
                raise Interrupted("the download was given up")
            return read_at(self._descriptor, length, offset)

    def _wait(self, offset: int) -> None:
        with self._changed:
            while not (self._complete or self._failure or offset < self._verified):
                self._changed.wait(_LOOK)
            if self._failure:
                raise self._failure

    def close(self) -> None:
        """Nobody reads it any more."""
        with self._changed:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # what was read from it has been compared
                os.close(descriptor)

    def file(self) -> BinaryIO:
        """It as a file to read and to seek in."""
        return io.BufferedReader(_Raw(self), _BUFFER)


class _Raw(io.RawIOBase):
    """The position of one reader."""

    def __init__(self, arrival: Arrival) -> None:
        self._arrival = arrival
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._arrival.read_at(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        self._position = offset + (self._arrival.size() if start is None else start)
        return self._position
