"""Waits for other processes, each with a limit, and reports of what they were doing.

No wait here is endless: a program that hangs is a fault that was found, and it has to be reported
with what was seen.
"""

from __future__ import annotations

import select
from pathlib import Path
from typing import Protocol

PROMPTLY = 120.0
"""Seconds for an act that takes one at most: another process imports, answers, attaches or dies."""

_PROC = Path("/proc")


class Standstill(TimeoutError):
    """The error for an expected event that did not come; its text says what was seen instead."""


class _Stream(Protocol):
    def fileno(self) -> int: ...


def comes(stream: _Stream, seconds: float) -> bool:
    """Tell whether within ``seconds`` there is something to read, even if only the end."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def family(pid: int) -> list[int]:
    """Return a process, its children, and theirs."""
    texts = [_read(path) for path in (_PROC / str(pid) / "task").glob("*/children")]
    return [pid, *(each for text in texts for child in text.split() for each in family(int(child)))]


def seen(pid: int) -> str:
    """Return what every thread of a process and its children is doing, as the kernel reports it.

    Such as ``31 tsuku-llm S futex_wait_queue; 40 worker t ptrace_stop``.
    """
    tasks = [
        task for each in family(pid) for task in sorted((_PROC / str(each) / "task").glob("*"))
    ]
    return "; ".join(filter(None, map(_doing, tasks))) or "the process is gone"


def _doing(task: Path) -> str:
    # The name is in brackets and may contain brackets, so search for the last one.
    name, _, rest = _read(task / "stat").partition("(")[2].rpartition(")")
    return f"{task.name} {name} {rest.split()[0]} {_read(task / 'wchan')}" if rest else ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:  # the process or thread has ended in the meantime
        return ""
