"""A download as others see it: its progress, and its bytes, which only verified can be read."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import Interrupted
from tsuku_llm.ground.files import read_at


class Progress(Protocol):
    """A receiver of progress reports.

    The calls ``begin``, ``advance`` and ``end`` about one artifact come from one thread. Several
    threads download the artifacts of a variant and call the same object.
    """

    def begin(self, name: str, total: int | None, there: int = 0) -> None:
        """Start or start again: ``name`` is a file name, ``total`` is in bytes or None.

        ``there`` bytes were left by an earlier run.
        """
        ...

    def advance(self, size: int) -> None:
        """Add ``size`` bytes that have arrived."""
        ...

    def end(self) -> None:
        """Finish, after a success or a failure."""
        ...

    def stage(self, name: str, what: str) -> None:
        """Say what is done with a file, perhaps while it arrives: ``unpacking``, ``checking``."""
        ...

    def finish(self) -> None:
        """Finish with all files, after a success or a failure."""
        ...


class Silent:
    """A receiver that shows nothing."""

    def begin(self, *_: object, **__: object) -> None:
        """Do nothing."""

    advance = end = stage = finish = begin


_BUFFER = 256 << 10
_LOOK = 0.5
"""Seconds of one wait. On Windows, Ctrl-C cannot interrupt a wait without a timeout."""

_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class VerifiedStream:
    """One artifact, shared by the thread that downloads it and the one that unpacks it.

    The reader may use the first ``verified`` bytes: all pieces that match their digests.
    Without pieces in the manifest, it must wait until the whole artifact is verified.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        # Guards all attributes. The downloading thread changes them, the reader waits for them.
        self._changed = threading.Condition()
        self._descriptor: int | None = None
        self._folder = Path()
        self._verified = 0
        self._complete = False
        self._failure: BaseException | None = None

    def opened(self, path: Path) -> None:
        """Open the file at ``path`` for the reader. Raises ``StoreError``."""
        # A second descriptor: the reader can go on after the downloading thread closes its own.
        with disk_errors("opening a download", path.parent):
            descriptor = os.open(path, _FLAGS)
        with self._changed:  # a reader may be in read_at(), which holds the lock as well
            self._close()
            self._descriptor, self._folder = descriptor, path.parent

    def grow(self, verified: int) -> None:
        """Tell the reader that the first ``verified`` bytes are verified."""
        with self._changed:
            self._verified = verified
            self._changed.notify_all()  # a reader may wait for these bytes

    def complete(self) -> None:
        """Tell the reader that the whole file is verified. Raises ``StoreError``."""
        with self._changed:
            # After a close() there is no reader, and the size does not matter.
            if self._descriptor is not None:
                # A manifest without a size: the file has it, now that its digest is right.
                with disk_errors("reading a download", self._folder):
                    self._size = self._verified = os.fstat(self._descriptor).st_size
            # Last: `there` reads it without the lock, and then relies on the rest.
            self._complete = True
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Make the readers raise ``failure``. The first failure counts."""
        with self._changed:
            # Every downloading thread fails all streams; the later errors follow from the first.
            self._failure = self._failure or failure
            self._changed.notify_all()

    @property
    def there(self) -> bool:
        """Whether the whole artifact is verified, so its download is over."""
        return self._complete  # no lock: it changes once, from False to True

    def wait(self) -> None:
        """Wait until the whole artifact is verified; raise the download's error."""
        self._wait(sys.maxsize)  # no artifact is that long, so only complete() or fail() ends it

    def size(self) -> int:
        """Get the size in bytes; if the manifest lacks it, wait until it is known."""
        if self._size is None:
            # Without a size, no byte is verified before the whole file is.
            self._wait(0)
        return self._size or 0

    def read_at(self, offset: int, size: int) -> bytes:
        """Wait until the byte at ``offset`` is verified, then read up to ``size`` bytes.

        Returns only verified bytes, and b"" at the end. Raises the download's error, and
        ``Interrupted`` after ``close``.
        """
        self._wait(offset)
        # The read holds the lock: otherwise close() could close the descriptor meanwhile, and
        # the system could give its number to another file.
        with self._changed:
            length = min(size, self._verified - offset)
            if length <= 0:
                return b""
            if self._descriptor is None:
                raise Interrupted("the download was cancelled")
            return read_at(self._descriptor, length, offset)

    def _wait(self, offset: int) -> None:
        with self._changed:
            while not (self._complete or self._failure or offset < self._verified):
                self._changed.wait(_LOOK)  # releases the lock, so the download can go on
            # Even if the bytes are there: another artifact failed, and the install with it.
            if self._failure:
                raise self._failure

    def close(self) -> None:
        """Close the file; no reader needs it any more."""
        with self._changed:  # waits for a read in another thread
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # read-only: no written data can be lost
                os.close(descriptor)

    def file(self) -> BinaryIO:
        """Make a file object to read and to seek in."""
        # Each file object has a position and a buffer; several readers do not disturb each other.
        return io.BufferedReader(_Raw(self), _BUFFER)


class _Raw(io.RawIOBase):
    """A file object that reads a ``VerifiedStream``: it holds one reader's position."""

    def __init__(self, stream: VerifiedStream) -> None:
        self._stream = stream
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read_at(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        # Only SEEK_END asks for the size, as that may wait for the end of the download.
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        self._position = offset + (self._stream.size() if start is None else start)
        return self._position
