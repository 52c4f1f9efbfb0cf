"""The observation of a start: when the server is ready, and where it computes.

Three threads use a ``Watch``. The supervisor calls ``started`` and ``ended``. The thread that
copies the server's stderr calls ``heard``. The follower thread, ``_follow``, does the rest.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from tsuku_llm.errors import SilentCpu, TsukuError
from tsuku_llm.launch import health, nvml
from tsuku_llm.launch.devices import ListedDevice, own_devices
from tsuku_llm.launch.health import Address, address_of
from tsuku_llm.launch.kernel import Sight, look_at
from tsuku_llm.launch.leash import Leash
from tsuku_llm.launch.log import LogReader
from tsuku_llm.launch.planning import Build, Plan, refusal_in
from tsuku_llm.launch.report import Sink, StartReport, Verdict
from tsuku_llm.launch.signals import Observed, backend_in_use, signals, verdict

_SHORTEST, _LONGEST = 0.02, 0.5
"""Seconds between two questions for the server's health: the first and the longest pause."""

_ALONE = 1.0
"""Seconds of good answers after which one counts even if the log does not say "listening".

Until then the answer may come from another server, on a port that ours could not get.
"""


class Start(NamedTuple):
    """The facts about a start before it is made.

    ``draft`` is the report as far as it can be filled in. ``listed`` is the build's own list
    of devices (None: not asked). A server on the CPU is ended with ``require_gpu``; otherwise
    ``warn`` is called. Neither happens if the user's arguments keep the server from the GPU.
    ``recheck`` raises if the tree has changed; it is called when the server has loaded
    everything. ``beside`` is called when the server runs. All of them run in the follower
    thread.
    """

    build: Build
    plan: Plan
    draft: StartReport
    listed: tuple[ListedDevice, ...] | None = None
    require_gpu: bool = False
    files: Collection[str] = ()
    recheck: Callable[[], None] = lambda: None
    warn: Callable[[SilentCpu], None] = lambda _: None
    beside: Callable[[], None] = lambda: None


class Watch:
    """The observer of one start; ``failure`` is why it ended the server, None if it did not."""

    def __init__(self, start: Start, sink: Sink, leash: Leash) -> None:
        # The follower thread writes these three once the server runs. The others read
        # ``ready``, and the rest after ``ended``: single assignments, so without a lock.
        self.ready = False
        self.failure: TsukuError | None = None
        self.report = start.draft
        self._start = start
        self._sink = sink
        self._leash = leash
        self._log = LogReader()
        # Set by the supervisor; the follower sleeps on it and ends as soon as it is set.
        self._over = threading.Event()
        # Daemon: a driver's library or a server that does not answer must not keep us alive.
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def started(self, pid: int) -> None:
        """Begin to follow the server, which runs now."""
        # Before the thread starts, which owns the report from then on.
        self.report = self.report._replace(pid=pid)
        self._thread.start()

    def heard(self, data: bytes) -> None:
        """Read the server's stderr until it is ready; ignore the rest."""
        # In the copying thread. A chunk that is read while the follower sets ``ready`` does
        # no harm: the facts have been judged by then.
        if not self.ready:
            self._log.feed(data)

    def ended(self) -> None:
        """Stop following the server, which has ended."""
        self._over.set()
        # The follower may be in a question that lasts: /health for 2 seconds, a driver for
        # longer. It ends after that, and is a daemon; do not wait for it without a limit.
        self._thread.join(health.LIMIT)

    def _follow(self) -> None:
        # The whole life of the follower thread. First tell the sink that the server runs, so
        # that its process is on record before anything here takes time.
        self._tell()
        self._start.beside()
        # As early as possible: memory that the server has taken before is not in the rise.
        before = self._gpu_memory()
        if not self._becomes_ready():
            return
        try:
            # The libraries and plugins are loaded now. A tree that changed during the load
            # may have put foreign code into the server.
            self._start.recheck()
            self._judge(before)
        except TsukuError as error:
            # First the failure, then the end of the server: the supervisor reads ``failure``
            # after the server has ended.
            self.failure = error
            self.report = self.report._replace(ready=False)
            self._leash.end(error.message)
        # Last, since ``heard`` stops reading the log then. After a failure too: the server
        # did serve, so its end is not explained as a failed start.
        self.ready = True
        self._tell()

    def _tell(self) -> None:
        self._sink(self.report)

    def _becomes_ready(self) -> bool:
        """Ask until the answer is good; return False if the server ends first."""
        pause, alone = _SHORTEST, 0.0
        # ``ended`` in the supervisor's thread wakes the wait at once.
        while not self._over.wait(pause):
            # The copying thread goes on reading the log; the next round sees its new facts.
            listens = self._log.facts.listens
            address = self._address()
            # A TLS server cannot be asked: its log is enough. A port of 0 is not known yet.
            if (address.tls and listens) or (address.port and health.is_healthy(address)):
                if listens or alone >= _ALONE:
                    return True
                alone += pause
            pause = min(pause * 1.25, _LONGEST)
        return False

    def _address(self) -> Address:
        # One look at the facts: the copying thread replaces them as a whole.
        plan, facts = self._start.plan, self._log.facts
        address = address_of(plan.argv, plan.env)
        if facts.port is not None:
            address = address._replace(port=facts.port)
        return address

    def _gpu_memory(self) -> nvml.GpuMemory | None:
        if self._start.build.backend == "cpu":
            return None
        return nvml.gpu_memory(self._start.plan.env)

    def _judge(self, before: nvml.GpuMemory | None) -> None:
        address = self._address()
        report = self.report._replace(
            host=address.host,
            port=None if address.is_unix else address.port,
            ready=True,
        )
        if self._start.build.backend == "cpu":
            self.report = report._replace(backend="cpu", verdict=Verdict.ON_CPU)
            return
        # The model is loaded now, so its memory is in use.
        after = self._gpu_memory()
        seen = self._observed(before, after)
        self.report = _judged(report, seen, after)
        if self.report.verdict is Verdict.ON_CPU and seen.refusal is None:
            self._accuse(_silent_cpu(self.report))

    def _accuse(self, error: SilentCpu) -> None:
        if self._start.require_gpu:
            raise error
        self._start.warn(error)

    def _observed(self, before: nvml.GpuMemory | None, after: nvml.GpuMemory | None) -> Observed:
        start = self._start
        sight = look_at(self.report.pid)
        return Observed(
            backend=start.build.backend,
            files=frozenset(start.files),
            refusal=refusal_in(start.plan.argv, start.plan.env),
            listed=start.listed,
            log=self._log.facts,
            sight=sight,
            process_memory=_own_memory(self.report.pid, after, sight),
            # Less memory in use than before: another program has freed some meanwhile.
            risen=max(0, after.used - before.used) if before and after else None,
            model_size=_model_size(start.plan),
        )


def _silent_cpu(report: StartReport) -> SilentCpu:
    """Make the error for a server that is not on a GPU, with every sign of that."""
    return SilentCpu(
        f"the server does not run on the GPU: {report.selected} should use one",
        facts=tuple(
            f"{signal.name}: {signal.evidence}"
            for signal in report.signals
            if signal.says is Verdict.ON_CPU
        ),
        hint="tsuku-llm doctor finds the first broken link; or run on the CPU: "
        "tsuku-llm config set llm.backend cpu",
    )


def _judged(report: StartReport, seen: Observed, after: nvml.GpuMemory | None) -> StartReport:
    found = signals(seen)
    decided = verdict(found)
    own = own_devices(seen.listed or (), seen.backend)
    device = seen.log.device or ", ".join(f"{each.name}: {each.description}" for each in own)
    layers = seen.log.layers if decided is not Verdict.ON_CPU else None
    total = sum(each.memory or 0 for each in own) or (after.total if after else None)
    return report._replace(
        signals=found,
        verdict=decided,
        backend=backend_in_use(seen, decided),
        device=device or None,
        driver=f"NVIDIA {after.driver}" if after else None,
        memory_total=total,
        memory_used=seen.process_memory if seen.process_memory is not None else seen.risen,
        layers_offloaded=layers[0] if layers else 0 if decided is Verdict.ON_CPU else None,
        layers_total=seen.log.layers[1] if seen.log.layers else None,
    )


def _own_memory(pid: int, after: nvml.GpuMemory | None, sight: Sight) -> int | None:
    # NVIDIA's library first: its driver does not appear in the kernel's own count.
    counted = after.processes.get(pid) if after else None
    return counted if counted is not None else sight.memory


_MODEL = ("-m", "--model")
_FIRST_PART = re.compile(r"-0*1-of-(\d+)\.gguf$")


def _model_size(plan: Plan) -> int | None:
    """Return the size of the given model in bytes, with all its parts; None if unknown."""
    # An argument before the variable, as the server has it.
    words = [*pairwise(plan.argv), ("-m", plan.env.get("LLAMA_ARG_MODEL", ""))]
    path = next((path for option, path in words if option in _MODEL and path), None)
    if path is None:
        return None
    with suppress(OSError):
        return sum(os.stat(part).st_size for part in _parts(path))  # noqa: PTH116
    return None


def _parts(path: str) -> list[str]:
    # The user names the first part, and the server finds the others by their numbers.
    found = _FIRST_PART.search(path)
    if found is None:
        return [path]
    total = found[1]
    stem = path[: found.start()]
    return [f"{stem}-{n:0{len(total)}}-of-{total}.gguf" for n in range(1, int(total) + 1)]
