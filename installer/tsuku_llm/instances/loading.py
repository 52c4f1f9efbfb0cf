"""The progress of a server that loads its model, from the system's own counts.

A large model on a slow disk loads for an hour, so no fixed time tells a slow server from one
that hangs. A server that goes on writes its log, reads and writes files, or takes more memory.
Processor time does not count: a driver that waits for its GPU may use all of a core for ever.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.launch.gpu.proc import sample_processes

if TYPE_CHECKING:
    import psutil

LEAST = 1 << 20
"""Bytes, read, written or taken, that count as progress; fewer may come from waiting threads."""

NOISE = 2048
"""Bytes a second that a waiting server may move: it answers ``/health``, and its threads wake."""

LONGEST_STEP = 10.0
"""Seconds that count between two samples at most: this machine or we may have been stopped."""


class LoadSample(NamedTuple):
    """A sample of a server that does not serve yet, in bytes.

    ``log`` is what it has logged, ``moved`` what it has read and written, ``memory`` what it
    holds of the machine's memory, and ``gpu_memory`` of a GPU's, None if that is not counted.
    ``written`` is the part of ``moved`` that went into files, such as a model's download.
    """

    log: int
    moved: int = 0
    memory: int = 0
    gpu_memory: int | None = None
    written: int = 0


class LoadWatch:
    """The judge of a loading server's samples; ``limit`` is in seconds, 0 for none."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._begun: float | None = None
        self._last = 0.0
        self._still = 0.0
        self._best = LoadSample(0)

    @property
    def seconds(self) -> float:
        """The time from the first sample to the last one."""
        return 0.0 if self._begun is None else self._last - self._begun

    def is_over(self, now: float, sample: LoadSample | None) -> bool:
        """Tell whether the server has made no progress for the limit; ``now`` is in seconds.

        None is a server that cannot be looked at: it is not judged.
        """
        if self._begun is None:
            self._begun = self._last = now
        self._still += min(now - self._last, LONGEST_STEP)
        self._last = now
        if sample is None:
            self._still = 0.0
            return False
        log, moved, memory, gpu_memory, _ = (
            (count or 0) - (best or 0) for count, best in zip(sample, self._best, strict=True)
        )
        if log > 0 or max(moved - NOISE * self._still, memory, gpu_memory) >= LEAST:
            self._still = 0.0
            # The highest values so far: memory that comes and goes is no progress.
            pairs = zip(sample, self._best, strict=True)
            self._best = LoadSample(*(max(count or 0, best or 0) for count, best in pairs))
        return 0 < self._limit <= self._still


def sample_loading(pid: int, log: int) -> LoadSample | None:
    """Take a sample of a server that has logged ``log`` bytes; None if it cannot be looked at.

    ``pid`` is its first process. The others count too: a script may have started the server.
    """
    import psutil

    try:
        first = psutil.Process(pid)
        taken = [_taken(first)]
        others = first.children(recursive=True)
    except (psutil.Error, OSError):
        return None
    for process in others:
        # It has ended meanwhile, or may not be looked at.
        with suppress(psutil.Error, OSError):
            taken.append(_taken(process))
    memory, moved, written = (sum(counts) for counts in zip(*taken, strict=True))
    pids = [pid, *(process.pid for process in others)]
    # Its log is written, too.
    return LoadSample(log, moved, memory, sample_processes(pids).memory, max(0, written - log))


def _taken(process: psutil.Process) -> tuple[int, int, int]:
    """Return the bytes of memory of a process, and those that it has moved, and written alone."""
    memory, moved, written = process.memory_info().rss, 0, 0
    # macOS does not count what a process reads: there, log and memory have to do.
    if hasattr(process, "io_counters"):
        # What the process asked for, and what reached a disk: a mapped file is only in the
        # second count, and one in the kernel's cache only in the first.
        count = process.io_counters()
        written = getattr(count, "write_chars", 0)
        moved = count.read_bytes + count.write_bytes + getattr(count, "read_chars", 0) + written
    return memory, moved, written
