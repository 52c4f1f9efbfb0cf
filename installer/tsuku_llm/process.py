"""Which process it was: a number alone is soon another's.

A process is known by its number and the moment it started, so that what was written down about
one is never taken for another, and no signal reaches a stranger. Linux is asked directly: its
own clock of starts does not move when somebody sets the time. Elsewhere psutil asks.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PAUSE = 0.02
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Process:
    """``started`` means something only to this machine, and only for a comparison."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this number now; None where there is none."""
        started = _started(pid)
        return None if started is None else cls(pid, started)

    @property
    def is_alive(self) -> bool:
        """Whether it still runs: one that only waits to be collected does not."""
        return _started(self.pid) == self.started

    def send(self, number: int) -> bool:
        """Send a signal to it, and surely to no other; False where it is gone.

        Raises ``OSError`` where it may not be signalled.
        """
        try:
            return _send(self, number)
        except ProcessLookupError:
            return False

    def is_gone_within(self, limit: float, pause: Callable[[float], None] = time.sleep) -> bool:
        """Wait for its end, ``limit`` seconds at most; whether it came."""
        end = time.monotonic() + limit
        while self.is_alive:
            if time.monotonic() >= end:
                return False
            pause(_PAUSE)
        return True


if sys.platform == "linux":

    def _started(pid: int) -> str | None:
        with suppress(OSError):
            state, ticks = _fields(pid)
            if state not in (b"Z", b"X"):
                return f"{_BOOT.read_bytes().strip().decode()}:{ticks}"
        return None

    def _fields(pid: int) -> tuple[bytes, int]:
        """The state and the start of a process, in ticks since boot (proc_pid_stat(5))."""
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return words[0], int(words[19])

    def _send(process: Process, number: int) -> bool:
        try:
            descriptor = os.pidfd_open(process.pid)  # what has this number now, and stays it
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            return _send_by_number(process, number)
        try:
            if not process.is_alive:
                return False
            signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
        return True

else:

    def _started(pid: int) -> str | None:
        import psutil  # noqa: PLC0415

        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                return f"{process.create_time():.3f}"
        return None

    def _send(process: Process, number: int) -> bool:
        return _send_by_number(process, number)


def _send_by_number(process: Process, number: int) -> bool:
    if process.is_alive:
        os.kill(process.pid, number)
        return True
    return False
