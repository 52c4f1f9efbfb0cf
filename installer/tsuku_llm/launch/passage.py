"""The thread that copies the server's stderr to ours and keeps the last 64 KiB."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from tsuku_llm.launch.child import Tail

_READY = (b"model loaded", b"listening on")
"""What the server logs once it serves; every version so far logs one of the two."""

_CHUNK = 64 * 1024
_LIMIT = 5.0
"""Seconds to wait for the thread when the reader of our stderr has stopped reading."""


class Passage(threading.Thread):
    """The thread that copies the child's stderr to ours as it arrives, and keeps its end.

    It goes on reading when our stderr is closed: a closed terminal must not end a server
    that never wrote to it. ``heard`` gets a copy of everything, in this thread.
    """

    def __init__(self, source: IO[bytes] | None, heard: Callable[[bytes], None]) -> None:
        # Daemon: a write to a stopped terminal can block forever and must not keep us alive.
        super().__init__(daemon=True)
        # Only this thread writes these two. The supervisor reads them after ``finish``; a
        # thread that is still alive then costs at most the newest bytes.
        self.tail = Tail()
        self.ready = False
        self._source = source
        self._heard = heard
        self.start()

    def run(self) -> None:
        """Copy until the child and every process that it started have closed the pipe."""
        if self._source is None:
            return
        # Unbuffered: a line reaches the terminal when the server writes it, not 64 KiB later.
        while data := os.read(self._source.fileno(), _CHUNK):
            # Ignore a closed stderr of ours: without a reader the pipe fills up, and the
            # server blocks in its next log line.
            with suppress(OSError):
                _write_all(2, data)
            self.tail.feed(data)
            self.ready = self.ready or self.tail.has_late(_READY, len(data))
            # The observer's code runs in this thread: nothing is copied until it returns.
            self._heard(data)

    def finish(self) -> None:
        """Wait until everything is copied, for 5 seconds at most."""
        # The child has ended, so the pipe usually ends too. The thread stays alive if the
        # reader of our stderr has stopped, or if a grandchild still holds the pipe open.
        self.join(_LIMIT)
        # Close only what the thread no longer reads: the number of a closed descriptor can
        # be given to another file, which the thread would then read.
        if self._source is not None and not self.is_alive():
            self._source.close()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    # A write to a pipe or terminal may take only a part.
    while view:
        view = view[os.write(descriptor, view) :]
