"""Ask a build one question in a child process: bounded in time and in output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, NamedTuple

from tsuku_llm.launch.planning import Plan

TAIL_BYTES = 64 * 1024
_CHUNK = 64 * 1024
_KILLED_LIMIT = 5.0
"""Seconds that a killed process gets to go: one stuck in a driver call never does."""


class Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int = TAIL_BYTES) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Add ``data`` and forget what is beyond the limit."""
        self._bytes += data
        del self._bytes[: -self._limit]

    def has_late(self, marks: tuple[bytes, ...], size: int) -> bool:
        """Whether one of ``marks`` lies in the last ``size`` bytes, or reaches into them."""
        late = self._bytes[-(size + max(map(len, marks))) :]
        return any(mark in late for mark in marks)

    def text(self) -> str:
        """What is kept, with a mark for each byte that is no UTF-8."""
        return self._bytes.decode("utf-8", "replace")


class Answer(NamedTuple):
    """How the child ended: ``code`` is negative for a signal and None when out of time."""

    code: int | None
    stdout: str
    stderr: str


def ask(plan: Plan, limit: float) -> Answer:
    """Run ``plan`` to its end or for ``limit`` seconds; raises OSError where it cannot start.

    The child leads a session of its own, so that it can be ended with whatever it
    started, and so that a Ctrl-C at the terminal is ours alone to handle.
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
    readers = [_Reader(stream) for stream in (child.stdout, child.stderr) if stream]
    try:
        code = _wait(child, limit)
    finally:
        end(child)
        stdout, stderr = (reader.finish() for reader in readers)
    return Answer(code, stdout, stderr)


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and what is left of its session, and collect it."""
    if sys.platform == "win32":
        child.kill()
    else:
        with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a zombie's group
            os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_KILLED_LIMIT)


class _Reader(threading.Thread):
    """Empties one pipe into a tail, so that the child never blocks on it."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._tail = Tail()
        self.start()

    def run(self) -> None:
        while data := os.read(self._stream.fileno(), _CHUNK):
            self._tail.feed(data)

    def finish(self) -> str:
        """Give the text; a stream that a fugitive grandchild holds open is left behind."""
        self.join(_KILLED_LIMIT)
        if not self.is_alive():
            self._stream.close()
        return self._tail.text()


def _wait(child: subprocess.Popen[bytes], limit: float) -> int | None:
    try:
        return child.wait(limit)
    except subprocess.TimeoutExpired:
        return None
