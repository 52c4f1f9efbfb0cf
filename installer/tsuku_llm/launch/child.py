"""One question to a build in a child process, with a limit on time and on output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, NamedTuple

from tsuku_llm.launch.planning import LaunchPlan

TAIL_BYTES = 64 * 1024
_CHUNK = 64 * 1024
_KILLED_LIMIT = 5.0
"""Seconds that a killed process gets to end: one that is stuck in a driver call never ends."""


class Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int = TAIL_BYTES) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Add ``data`` and drop the oldest bytes beyond the limit."""
        self._bytes += data
        del self._bytes[: -self._limit]

    def has_late(self, marks: tuple[bytes, ...], size: int) -> bool:
        """Tell whether one of ``marks`` lies in the last ``size`` bytes, or reaches into them."""
        # A mark can begin in the chunk before: look back by the length of the longest one.
        late = self._bytes[-(size + max(map(len, marks))) :]
        return any(mark in late for mark in marks)

    def text(self) -> str:
        """Decode the kept bytes; U+FFFD replaces what is not UTF-8."""
        return self._bytes.decode("utf-8", "replace")


class ProcessResult(NamedTuple):
    """The child's end and output: ``code`` is negative for a signal, None after a timeout."""

    code: int | None
    stdout: str
    stderr: str


def ask(plan: LaunchPlan, limit: float) -> ProcessResult:
    """Run ``plan`` to its end, or for ``limit`` seconds. Raises OSError if it cannot start.

    The child leads a new session, so that we can kill it together with every process that
    it started. It also means that Ctrl-C at the terminal reaches only us.
    """
    child = subprocess.Popen(
        plan.argv,
        cwd=plan.cwd,
        env=dict(plan.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    # One thread for each pipe, before the wait: a full pipe that is not read blocks the child.
    readers = [_Reader(stream) for stream in (child.stdout, child.stderr) if stream]
    try:
        code = _wait(child, limit)
    finally:
        # Kill first, on every way out: the readers end when the last writer is gone.
        end(child)
        stdout, stderr = (reader.finish() for reader in readers)
    return ProcessResult(code, stdout, stderr)


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and what is left of its process group, and reap the child."""
    if sys.platform == "win32":
        child.kill()
    else:
        # The child may have been reaped already. Its group lives on while it has a member,
        # and until then the kernel gives the child's number to no other process.
        with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a zombie's group
            os.killpg(child.pid, signal.SIGKILL)
    # A driver call in the kernel can delay even SIGKILL: do not wait for it without a limit.
    with suppress(subprocess.TimeoutExpired):
        child.wait(_KILLED_LIMIT)


class _Reader(threading.Thread):
    """The thread that empties one pipe into a tail, so that the child never blocks on it."""

    def __init__(self, stream: IO[bytes]) -> None:
        # Daemon: a process that left the group can hold the pipe open for as long as it runs.
        super().__init__(daemon=True)
        self._stream = stream
        self._tail = Tail()
        self.start()

    def run(self) -> None:
        # Ends when every process that holds the other end of the pipe has closed it.
        while data := os.read(self._stream.fileno(), _CHUNK):
            self._tail.feed(data)

    def finish(self) -> str:
        """Return the text; leave the pipe to the thread if a grandchild still holds it open."""
        self.join(_KILLED_LIMIT)
        # Close only what the thread no longer reads: the descriptor's number may be reused.
        if not self.is_alive():
            self._stream.close()
        return self._tail.text()


def _wait(child: subprocess.Popen[bytes], limit: float) -> int | None:
    try:
        return child.wait(limit)
    except subprocess.TimeoutExpired:
        return None
