"""Waiting for other processes without sleeping: on their pipes and on the kernel's word."""

import os
import select
import time
from pathlib import Path

_LIMIT_MS = 600_000
"""Only so that a broken test ends: what is waited for takes milliseconds."""


def gone(pid: int) -> bool:
    """Wait until the process has ended (or is a zombie); return False if it does not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(_LIMIT_MS))
    finally:
        os.close(descriptor)


def stopped(pid: int) -> bool:
    """Wait, by giving way to it, until a process that was told to stop has stopped."""
    end = time.monotonic() + _LIMIT_MS / 1000
    while time.monotonic() < end:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        if status.rpartition(")")[2].split()[0] == "T":
            return True
        os.sched_yield()
    return False


def only_child(pid: int) -> int:
    """The one child of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return int(child)


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    mask = next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1]
    return bool(int(mask, 16) >> (number - 1) & 1)
