"""Interleaved runs of commands, so that other load on the machine slows all of them alike."""

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
    """Do nothing: the default before and after a run."""


@dataclass(frozen=True)
class Run:
    """A command, with a function that prepares it and one that checks its result.

    Neither function is measured; ``after`` raises if the work was not done. With ``reports`` the
    command prints its own ``seconds`` and ``cpu`` as JSON, which count instead, so that a part of
    the command is measured. With ``watched`` a thread watches the process while it runs.
    """

    command: Command
    env: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing
    reports: bool = False
    watched: bool = False


@dataclass(frozen=True)
class Sample:
    """One run: seconds of wall time and of processor time, with those of children.

    For a watched process, ``memory`` is the peak in bytes, and ``threads`` and ``descriptors`` are
    the highest numbers seen. They do not include children: the system's own figures for children
    include the process that they were forked from.
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
        """Return the median of one command."""
        return float(statistics.median(getattr(sample, what) for sample in self.of[name]))


def interleaved(runs: Mapping[str, Run], rounds: int) -> Samples:
    """Run each command once per round; drop the first round, which warms the caches.

    Raises ``WrongResult`` if one fails: a command that did not do its work is not measured.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            run.before()
            os.sync()  # flush what the last run wrote, so that the next does not pay for it
            sample = measured(run)
            run.after()
            if number:
                samples[name].append(sample)
    return Samples({name: tuple(taken) for name, taken in samples.items()})


def measured(run: Run) -> Sample:
    """Run a command once; raise ``WrongResult`` if it fails."""
    environment = {**os.environ, **run.env}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed programs run from bytecode
    # stderr goes to a file: an unread pipe could fill up and block the child.
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
        # wait4 gives the times of this child alone; Popen must not wait for it as well.
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
        # The process has ended, so the watching thread ends: its figures are final after the join.
        watch.join()
        return Sample(seconds, cpu, watch.memory, watch.threads, watch.descriptors)
    return Sample(seconds, cpu)


class WrongResult(Exception):
    """The error for a measured command that did not do its work."""


class Watch(threading.Thread):
    """A thread that looks at a Linux process every few milliseconds until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._folder = Path("/proc") / str(pid)
        self.memory = self.threads = self.descriptors = 0
        self.start()

    def run(self) -> None:
        """Look until the process has ended."""
        with contextlib.suppress(OSError):
            while self._look():
                time.sleep(_LOOK)

    def _look(self) -> bool:
        status = (self._folder / "status").read_text("ascii", "replace")
        peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        if peak is None:  # a zombie: it has ended and has no memory left
            return False
        threads = len(list((self._folder / "task").iterdir()))
        descriptors = len(list((self._folder / "fd").iterdir()))
        self.memory = max(self.memory, int(peak[1]) * 1024)
        self.threads = max(self.threads, threads)
        self.descriptors = max(self.descriptors, descriptors)
        return True
