"""Follow a start: when the server is ready, where it computes, and what to make of that."""

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
"""Seconds between two questions for the server's health; the time between them grows."""

_ALONE = 1.0
"""Seconds after which a good answer counts whose server's log does not say that it listens:
until then it may be another server's, on a port that ours could not have."""


class Start(NamedTuple):
    """What is known of a start before it is made.

    ``draft`` is the report as far as it can be filled in, ``listed`` the build's own list of
    devices (None: not asked). With ``require_gpu`` a server that is not on one is ended; else
    ``warn`` is told, unless its own arguments keep it from there. ``recheck`` raises where the
    tree is not what it was any more; it is called once more when everything has been loaded.
    ``beside`` is called when the server runs.
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
    """One start, followed in a thread of its own; ``failure`` is why it was ended, if it was."""

    def __init__(self, start: Start, sink: Sink, leash: Leash) -> None:
        self.ready = False
        self.failure: TsukuError | None = None
        self.report = start.draft
        self._start = start
        self._sink = sink
        self._leash = leash
        self._log = LogReader()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def started(self, pid: int) -> None:
        """The server runs: begin to follow it."""
        self.report = self.report._replace(pid=pid)
        self._thread.start()

    def heard(self, data: bytes) -> None:
        """The server's stderr; once it is ready, nothing more is read out of it."""
        if not self.ready:
            self._log.feed(data)

    def ended(self) -> None:
        """The server is gone: stop."""
        self._over.set()
        self._thread.join(health.LIMIT)

    def _follow(self) -> None:
        self._tell()
        self._start.beside()
        before = self._gpu_memory()
        if not self._becomes_ready():
            return
        try:
            self._start.recheck()
            self._judge(before)
        except TsukuError as error:
            self.failure = error
            self.report = self.report._replace(ready=False)
            self._leash.end(error.message)
        self.ready = True
        self._tell()

    def _tell(self) -> None:
        self._sink(self.report)

    def _becomes_ready(self) -> bool:
        """Ask until the answer is good; False where the server ends first."""
        pause, alone = _SHORTEST, 0.0
        while not self._over.wait(pause):
            listens = self._log.facts.listens
            address = self._address()
            if (address.tls and listens) or (address.port and health.is_healthy(address)):
                if listens or alone >= _ALONE:
                    return True
                alone += pause
            pause = min(pause * 1.25, _LONGEST)
        return False

    def _address(self) -> Address:
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
            risen=max(0, after.used - before.used) if before and after else None,
            model_size=_model_size(start.plan),
        )


def _silent_cpu(report: StartReport) -> SilentCpu:
    """The refusal of a server that is not on a GPU, with every sign of it."""
    return SilentCpu(
        f"the server does not run on the GPU: {report.selected} was to use one",
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
    counted = after.processes.get(pid) if after else None
    return counted if counted is not None else sight.memory


_MODEL = ("-m", "--model")
_FIRST_PART = re.compile(r"-0*1-of-(\d+)\.gguf$")


def _model_size(plan: Plan) -> int | None:
    """The size of the model that was named, in bytes; of all its parts, if it has several."""
    words = [*pairwise(plan.argv), ("-m", plan.env.get("LLAMA_ARG_MODEL", ""))]
    path = next((path for option, path in words if option in _MODEL and path), None)
    if path is None:
        return None
    with suppress(OSError):
        return sum(os.stat(part).st_size for part in _parts(path))  # noqa: PTH116
    return None


def _parts(path: str) -> list[str]:
    found = _FIRST_PART.search(path)
    if found is None:
        return [path]
    total = found[1]
    stem = path[: found.start()]
    return [f"{stem}-{n:0{len(total)}}-of-{total}.gguf" for n in range(1, int(total) + 1)]
