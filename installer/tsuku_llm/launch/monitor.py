"""The monitor of one start: when the server is ready, and where it computes.

Two threads use a ``StartMonitor``. The supervisor calls ``on_started`` and ``on_ended``. The
monitor's own thread, ``_follow``, does the rest. A third thread copies the server's stderr
into the ``Readiness`` that both share.
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
from tsuku_llm.launch.gpu_use import Observed, backend_in_use, collect_signs, verdict
from tsuku_llm.launch.log import LogFacts
from tsuku_llm.launch.planning import Build, LaunchPlan, refusal_in
from tsuku_llm.launch.proc import sample_process
from tsuku_llm.launch.report import Sink, StartReport, Verdict
from tsuku_llm.launch.supervise import StopHandle

_MODEL = ("-m", "--model")
_FIRST_PART = re.compile(r"-0*1-of-(\d+)\.gguf$")


class StartContext(NamedTuple):
    """The facts about a start before it is made.

    ``draft`` is the report as far as it can be filled in. ``listed`` is the build's own list
    of devices (None: not asked). A server on the CPU is ended with ``require_gpu``; otherwise
    ``warn`` is called. Neither happens if the user's arguments keep the server from the GPU.
    ``recheck`` raises if the tree has changed; it is called when the server has loaded
    everything. ``on_running`` is called when the server runs, and ``on_loading`` while it
    loads, with its pid and the bytes that it has logged; what that raises ends the server. All
    of them run in the monitor's thread.
    """

    build: Build
    plan: LaunchPlan
    draft: StartReport
    listed: tuple[ListedDevice, ...] | None = None
    require_gpu: bool = False
    files: Collection[str] = ()
    recheck: Callable[[], None] = lambda: None
    warn: Callable[[SilentCpu], None] = lambda _: None
    on_running: Callable[[], None] = lambda: None
    on_loading: Callable[[int, int], None] = lambda _pid, _log: None


class StartMonitor:
    """The observer of one start; ``failure`` is why it ended the server, None if it did not."""

    def __init__(self, start: StartContext, sink: Sink, stop_handle: StopHandle) -> None:
        # The monitor's thread writes these two once the server runs. The supervisor reads
        # them after ``on_ended``: single assignments, so without a lock.
        self.failure: TsukuError | None = None
        self.report = start.draft
        self._start = start
        self._sink = sink
        self._stop_handle = stop_handle
        # Set by the supervisor; the monitor's thread sleeps on it and ends once it is set.
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def on_started(self, pid: int, readiness: health.Readiness) -> None:
        """Begin to follow the server, which runs now."""
        # Before the thread starts, which owns the report from then on.
        self.report = self.report._replace(pid=pid)
        # Daemon: a driver's library or a server that does not answer must not keep us alive.
        self._thread = threading.Thread(target=self._follow, args=(readiness,), daemon=True)
        self._thread.start()

    def on_ended(self) -> None:
        """Stop following the server, which has ended."""
        self._over.set()
        # The thread may be in a question that lasts: /health for 2 seconds, a driver for
        # longer. It ends after that, and is a daemon; do not wait for it without a limit.
        if self._thread:
            self._thread.join(health.LIMIT)

    def _follow(self, readiness: health.Readiness) -> None:
        # The whole life of the monitor's thread. First tell the sink that the server runs, so
        # that its process is on record before anything here takes time.
        self._sink(self.report)
        self._start.on_running()
        # As early as possible: memory that the server has taken before is not in the rise.
        before = self._gpu_memory()
        pid = self.report.pid
        try:
            # The server ended first: the supervisor explains why, or there is nothing to say.
            if not readiness.wait(self._over, lambda: self._start.on_loading(pid, readiness.said)):
                return
            # The libraries and plugins are loaded now. A tree that changed during the load
            # may have put foreign code into the server.
            self._start.recheck()
            self._judge(readiness, before)
        except TsukuError as error:
            # First the failure, then the end of the server: the supervisor reads ``failure``
            # after the server has ended.
            self.failure = error
            self.report = self.report._replace(ready=False)
            self._stop_handle.end(error.message)
        # Last, since the log is not read any more then. After a failure too: the server did
        # serve, so its end is not explained as a failed start.
        readiness.confirm()
        self._sink(self.report)

    def _gpu_memory(self) -> nvml.GpuMemory | None:
        if self._start.build.backend == "cpu":
            return None
        return nvml.gpu_memory(self._start.plan.env)

    def _judge(self, readiness: health.Readiness, before: nvml.GpuMemory | None) -> None:
        """Complete the report of a server that is ready. Raises SilentCpu."""
        address = readiness.address
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
        # One look at the log's facts: the copying thread may replace them meanwhile.
        seen = self._observe(readiness.facts, before, after)
        self.report = _completed(report, seen, after)
        # A user who keeps the server from the GPU is not told that it is not there.
        if self.report.verdict is Verdict.ON_CPU and seen.refusal is None:
            error = _silent_cpu(self.report)
            if self._start.require_gpu:
                raise error
            self._start.warn(error)

    def _observe(
        self, log: LogFacts, before: nvml.GpuMemory | None, after: nvml.GpuMemory | None
    ) -> Observed:
        """Put together all that is known of the running server."""
        start, pid = self._start, self.report.pid
        process = sample_process(pid)
        # NVIDIA's library first: its driver does not appear in the kernel's own count.
        counted = after.processes.get(pid) if after else None
        return Observed(
            backend=start.build.backend,
            files=frozenset(start.files),
            refusal=refusal_in(start.plan.argv, start.plan.env),
            listed=start.listed,
            log=log,
            process=process,
            process_memory=counted if counted is not None else process.memory,
            # Less memory in use than before: another program has freed some meanwhile.
            risen=max(0, after.used - before.used) if before and after else None,
            model_size=_model_size(start.plan),
        )


def _silent_cpu(report: StartReport) -> SilentCpu:
    """Make the error for a server that is not on a GPU, with every sign of that."""
    return SilentCpu(
        f"the server does not run on the GPU: {report.selected} should use one",
        facts=tuple(
            f"{sign.name}: {sign.evidence}"
            for sign in report.signals
            if sign.says is Verdict.ON_CPU
        ),
        hint="tsuku-llm doctor finds the first broken link; or run on the CPU: "
        "tsuku-llm config set llm.backend cpu",
    )


def _completed(report: StartReport, seen: Observed, after: nvml.GpuMemory | None) -> StartReport:
    """Fill in what the observations say; the log's own words before the list's."""
    found = collect_signs(seen)
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


def _model_size(plan: LaunchPlan) -> int | None:
    """Return the size of the given model in bytes, with all its parts; None if unknown."""
    # An argument before the variable, as the server has it.
    words = [*pairwise(plan.argv), ("-m", plan.env.get("LLAMA_ARG_MODEL", ""))]
    path = next((path for option, path in words if option in _MODEL and path), None)
    if path is None:
        return None
    # The user names the first part, and the server finds the others by their numbers.
    parts = [path]
    if found := _FIRST_PART.search(path):
        stem, total = path[: found.start()], found[1]
        numbers = range(1, int(total) + 1)
        parts = [f"{stem}-{n:0{len(total)}}-of-{total}.gguf" for n in numbers]
    with suppress(OSError):
        return sum(os.stat(part).st_size for part in parts)  # noqa: PTH116
    return None
