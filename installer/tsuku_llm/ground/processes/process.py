"""The identity of a process: its pid and its start time, because the system reuses pids.

So a stored note about one process is never taken for another, and no signal reaches a foreign
process. On Linux, /proc has the start in ticks since boot, which does not change when the time is
set. On other systems, psutil gives the start time.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.ground.foreign import read_kernel
from tsuku_llm.ground.records import documented

_PAUSE = 0.02
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def processor_seconds(pid: int) -> float | None:
    """Return the processor time of a process, also without /proc; None if it is not known."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.Error, OSError):
        return None
    return float(times.user + times.system)


@documented(by="pid")
@dataclass(frozen=True, slots=True)
class Process:
    """A process; ``started`` is only for comparison, on this machine."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has this pid now; None if there is none."""
        started = _started(pid)
        return None if started is None else cls(pid, started)

    @property
    def is_alive(self) -> bool:
        """True if it still runs; a zombie does not."""
        return _started(self.pid) == self.started

    def send(self, number: int) -> bool:
        """Send a signal to it and to no other process; False if it has ended.

        Without pidfd (not Linux, or before 5.3) a short race is left. Raises ``OSError`` if this
        user may not signal it.
        """
        try:
            return _send(self, number)
        except ProcessLookupError:
            return False

    def is_gone_within(self, limit: float) -> bool:
        """Wait at most ``limit`` seconds for its end; return whether it ended."""
        end = time.monotonic() + limit
        while self.is_alive:
            if time.monotonic() >= end:
                return False
            time.sleep(_PAUSE)
        return True


def _send_by_number(process: Process, number: int) -> bool:
    # The race: the process can end after this check, and its pid be reused.
    if process.is_alive:
        os.kill(process.pid, number)
        return True
    return False


if sys.platform == "linux":

    def _started(pid: int) -> str | None:
        with suppress(OSError):
            # The name in parentheses may contain spaces and parentheses: split after the last one.
            # The words are those of proc_pid_stat(5): the state, and the start in ticks.
            words = read_kernel(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            state, ticks = words[0], int(words[19])
            if state not in (b"Z", b"X"):
                # Each boot counts ticks from zero: the boot id tells one boot from another.
                return f"{read_kernel(_BOOT).strip().decode()}:{ticks}"
        return None

    def _send(process: Process, number: int) -> bool:
        try:
            # The descriptor stays with the process that has this pid now, even if that ends and
            # the pid is reused. So check the identity after opening, then signal: both mean the
            # same process.
            descriptor = os.pidfd_open(process.pid)
        except FileNotFoundError:
            # The process has ended, and a thread of another one has its number now.
            return False
        except OSError as error:
            # Linux before 5.3 has no pidfd.
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
        import psutil

        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                return f"{process.create_time():.3f}"
        return None

    _send = _send_by_number


def listener_at(port: int) -> str:
    """Name the program that listens at a port; the system tells other users' to root alone."""
    import psutil

    with suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp"):
            at = each.laddr.port if each.laddr else None
            if each.status == psutil.CONN_LISTEN and at == port and each.pid:
                return f"{psutil.Process(each.pid).name()} (process {each.pid}) listens there"
    return "another program listens there"
