"""A server's stderr on its way to ours, byte by byte, with an ear on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from tsuku_llm.launch.child import Tail

_READY = (b"model loaded", b"listening on")
"""What the server logs once it serves; one of the two in every version so far."""

_CHUNK = 64 * 1024
_LIMIT = 5.0
"""Seconds that a reader of ours which has stopped is waited for."""


class Passage(threading.Thread):
    """Copies the child's stderr to ours as it comes, and keeps its end.

    When ours is gone, it goes on reading: a server must not die of a closed terminal
    that it never wrote to. ``heard`` is given a copy of everything.
    """

    def __init__(self, source: IO[bytes] | None, heard: Callable[[bytes], None]) -> None:
        super().__init__(daemon=True)
        self.tail = Tail()
        self.ready = False
        self._source = source
        self._heard = heard
        self.start()

    def run(self) -> None:
        """Copy until the child and all that it started have closed it."""
        if self._source is None:
            return
        while data := os.read(self._source.fileno(), _CHUNK):
            with suppress(OSError):
                _write_all(2, data)
            self.tail.feed(data)
            self.ready = self.ready or self.tail.has_late(_READY, len(data))
            self._heard(data)

    def finish(self) -> None:
        """Wait until everything has passed; not for a reader of ours that has stopped."""
        self.join(_LIMIT)
        if self._source is not None and not self.is_alive():
            self._source.close()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
