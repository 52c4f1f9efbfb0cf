"""Commands run in turn, so that whatever else the machine does slows all of them alike."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Command = Sequence[str]

_LOOK = 0.005
"""Seconds between two looks at a watched process."""


def nothing() -> None:
    """What comes before or after a run that needs neither."""


@dataclass(frozen=True)
class Run:
    """A command, what puts things in order before it, and what looks at its result after it.

    Neither is measured; ``after`` raises when the work was not done. With ``reports`` the
    command prints its own ``seconds`` and ``cpu`` as JSON, which count instead: a part of
    it is measured. With ``watched`` its own process is looked at while it runs.
    """

    command: Command
    env: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing
    reports: bool = False
    watched: bool = False


@dataclass(frozen=True)
class Sample:
    """One run: seconds of wall and of processor time, that of children included.

    Of a process that was watched, ``memory`` is the peak in bytes, and ``threads`` and
    ``descriptors`` are the most that were seen; children do not count. What the system says
    of others includes the process that they were forked from.
    """

    seconds: float
    cpu: float
    memory: int = 0
    threads: int = 0
    descriptors: int = 0


@dataclass(frozen=True)
class Samples:
    """Every sample of each command, in the order in which they were taken."""

    of: Mapping[str, tuple[Sample, ...]]

    def median(self, name: str, what: str = "seconds") -> float:
        """The median of one command."""
        return statistics.median(getattr(sample, what) for sample in self.of[name])


def interleaved(runs: Mapping[str, Run], rounds: int) -> Samples:
    """Run each once in every round; the first round warms the caches and is dropped.

    Raises ``WrongResult`` when one fails: what did not do its work is not measured.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            run.before()
            os.sync()  # what the last one wrote is not to be paid for by the next
            sample = measured(run)
            run.after()
            if number:
                samples[name].append(sample)
    return Samples({name: tuple(taken) for name, taken in samples.items()})


def measured(run: Run) -> Sample:
    """Run it once."""
    environment = {**os.environ, **run.env}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    with tempfile.TemporaryFile() as complaints:
        start = time.perf_counter()
        child = subprocess.Popen(
            run.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if run.reports else subprocess.DEVNULL,
            stderr=complaints,
        )
        watch = Watch(child.pid) if run.watched else None
        said = child.stdout.read() if child.stdout else b""
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        complaints.seek(0)
        if child.returncode:
            text = complaints.read().decode("utf-8", "replace")
            raise WrongResult(f"{' '.join(run.command)} ended with {child.returncode}:\n{text}")
    cpu = usage.ru_utime + usage.ru_stime
    if run.reports:
        reported = json.loads(said)
        seconds, cpu = reported["seconds"], reported["cpu"]
    if watch:
        watch.join()
        return Sample(seconds, cpu, watch.memory, watch.threads, watch.descriptors)
    return Sample(seconds, cpu)


class WrongResult(Exception):
    """What was measured did not do its work."""


class Watch(threading.Thread):
    """Looks at a process of Linux every few milliseconds until it is gone."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._folder = Path("/proc") / str(pid)
        self.memory = self.threads = self.descriptors = 0
        self.start()

    def run(self) -> None:
        """Look until there is nothing to see."""
        with contextlib.suppress(OSError):
            while self._look():
                time.sleep(_LOOK)

    def _look(self) -> bool:
        status = (self._folder / "status").read_text("ascii", "replace")
        peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        if peak is None:  # it has ended, and waits to be buried
            return False
        threads = len(list((self._folder / "task").iterdir()))
        descriptors = len(list((self._folder / "fd").iterdir()))
        self.memory = max(self.memory, int(peak[1]) * 1024)
        self.threads = max(self.threads, threads)
        self.descriptors = max(self.descriptors, descriptors)
        return True
