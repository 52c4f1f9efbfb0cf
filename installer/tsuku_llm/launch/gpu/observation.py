"""The observation of one server: the kernel's, the driver's and the log's facts at one moment.

Only the monitor's thread uses it. ``gpu_use`` reads the facts, and ``verdict`` decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from tsuku_llm.launch.ask.canary import LIMIT, ask_canary
from tsuku_llm.launch.ask.log import LogFacts
from tsuku_llm.launch.gpu import nvml
from tsuku_llm.launch.gpu.gpu_use import Observed, ProcessSample, collect_signs
from tsuku_llm.launch.gpu.proc import (
    computing_processes,
    counts_work,
    mapped_model,
    sample_processes,
)
from tsuku_llm.launch.gpu.verdict import decide
from tsuku_llm.launch.memory.gguf import ModelLayout, read_header, read_layout
from tsuku_llm.launch.memory.memory_options import memory_options
from tsuku_llm.launch.memory.need import estimate_need
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.devices import ListedDevice
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.report import CanaryResult, Verdict
from tsuku_llm.launch.plan.wishes import wishes_in
from tsuku_llm.machine.backends import facts_of

_REQUESTS = (1, 5, 5)
"""Canary requests of each try.

NVIDIA's driver averages the engines' work over 0.2 seconds (measured on an H100): less than 3 ms
of it are 0 %. One token of a small model is that short.
"""

LOOK_LIMIT = 2 * LIMIT
"""Seconds for one look: no request begins after half of them."""

_ALL_LAYERS = 99
"""A number of layers that users give for "all", if the model's own number is not known."""


class GpuObserver:
    """The observer of one server's use of the GPU; make it before the server loads its model.

    ``files`` are the names in the build's folder, ``listed`` is its list of devices.
    """

    def __init__(
        self, plan: LaunchPlan, files: Collection[str], listed: tuple[ListedDevice, ...] | None
    ) -> None:
        self._plan = plan
        self._files = frozenset(files)
        self._listed = listed
        self.wishes = wishes_in(plan.argv, plan.env)
        # As early as possible: memory that the server has taken before is not in the rise.
        self._before = nvml.gpu_memory(plan.env)
        # The server reads the same file now, so this makes no start longer.
        self._model = self.wishes.model
        self._layout = read_layout(self._model) if self._model else None
        self._needed: int | None = None
        self.nvidia: nvml.GpuMemory | None = None
        """NVIDIA's last answer."""

    def look(
        self,
        pid: int,
        log: LogFacts,
        address: ServerAddress,
        *,
        canary: bool,
        has_ended: Callable[[], bool],
        on_wait: Callable[[], None],
    ) -> Observed:
        """Look at a server that is ready, with a canary request if that is wanted.

        ``has_ended`` is asked after a lost connection: of a server that has ended nothing is read.
        ``on_wait`` is called once a second of a request.
        """
        deadline = time.monotonic() + LIMIT
        pids = computing_processes(pid, self._files)
        # A model that the server has fetched (-hf, --model-url). A router's children have one each.
        if self._model is None and self.wishes.names_model:
            self._model = mapped_model(pids)
            self._layout = read_layout(self._model) if self._model else None
        process = sample_processes(pids, self._model)
        if not canary:
            self.nvidia = nvml.gpu_memory(self._plan.env)
        seen = self._observed(pids, log, process, CanaryResult(problem="llm.canary is off"))
        for requests in _REQUESTS if canary else ():
            made = CanaryResult()
            busy, began = process.busy, time.time_ns() // 1000
            for _ in range(requests):
                made = ask_canary(address, self.wishes, on_wait=on_wait)
                if not made.answered or time.monotonic() > deadline:
                    break
            # Soon: the supervisor waits for this, and a driver that has failed may answer late.
            if made.lost and has_ended():
                return self._observed(pids, log, process, made)
            # Again the list of processes: a router may have started one for the request.
            pids = computing_processes(pid, self._files)
            process = sample_processes(pids, self._model)
            self.nvidia = nvml.gpu_memory(self._plan.env, since=began)
            made = made._replace(worked=_worked(busy, process, self.nvidia, pids))
            seen = self._observed(pids, log, process, made)
            # Once more only where NVIDIA's driver can show its work, and nothing else has shown it.
            unseen = made.answered and made.worked is None and self.nvidia is not None
            if not unseen or decide(collect_signs(seen)) is not Verdict.UNKNOWN:
                break
            # The work of requests that take long would have been seen.
            if time.monotonic() > deadline:
                break
        return seen

    def _observed(
        self,
        pids: Collection[int],
        log: LogFacts,
        process: ProcessSample,
        canary: CanaryResult,
    ) -> Observed:
        after = self.nvidia
        if self._needed is None and self._model and self._layout and process.model_mapped:
            self._needed = _need_of_all_layers(self._plan, self._model)
        used = after.used - self._before.used if after and self._before else None
        seen = _observed(self._plan, self._files, self._layout, process, pids, after)
        return seen._replace(
            listed=self._listed,
            log=log,
            # Less memory in use than before: another program has freed some meanwhile.
            risen=None if used is None else max(0, used),
            needed=self._needed,
            canary=canary,
        )


def look_without_log(
    pid: int, plan: LaunchPlan, files: Collection[str], nvidia: nvml.GpuMemory | None
) -> tuple[int | None, Verdict]:
    """Return the GPU memory of a process that has loaded a model, and where that computes.

    For a server whose start was not followed, such as one of a router's. It is asked nothing.
    """
    model = wishes_in(plan.argv, plan.env).model
    layout = read_layout(model) if model else None
    process = sample_processes((pid,), model)
    seen = _observed(plan, frozenset(files), layout, process, (pid,), nvidia)
    seen = seen._replace(canary=CanaryResult(problem="it was not asked"))
    return seen.memory[1] if seen.memory else None, decide(collect_signs(seen))


def _observed(
    plan: LaunchPlan,
    files: frozenset[str],
    layout: ModelLayout | None,
    process: ProcessSample,
    pids: Collection[int],
    nvidia: nvml.GpuMemory | None,
) -> Observed:
    """Put together what is seen of any server, with the sizes of its layers."""
    wishes = wishes_in(plan.argv, plan.env)
    whole = wanted = None
    if layout and layout.layers:
        whole, wanted = layout.on_gpu(None), layout.on_gpu(wishes.layers)
    # Without the table of tensors only "all" has a size, and that of the layers is not known.
    elif layout and (wishes.layers is None or wishes.layers >= _ALL_LAYERS):
        wanted = layout.total
    return Observed(
        backend=plan.backend,
        files=files,
        wishes=wishes,
        process=process,
        nvidia_memory=nvidia.of(pids) if nvidia else None,
        model_size=layout.total if layout else None,
        whole=whole,
        wanted=None if wishes.split or wishes.refusal else wanted,
    )


def _need_of_all_layers(plan: LaunchPlan, model: str) -> int | None:
    """Estimate what a device holds with every layer on it; None for what the header lacks."""
    try:
        header = read_header(model)
    except (OSError, ValueError):
        return None
    need = estimate_need(header, memory_options(plan.argv, plan.env))
    # Without the context's part the estimate could be far too low.
    if not any(need.cache):
        return None
    return need._replace(driver=facts_of(plan.backend).driver_memory).on_device()


def _worked(
    before: int | None,
    after: ProcessSample,
    nvidia: nvml.GpuMemory | None,
    pids: Collection[int],
) -> bool | None:
    """Tell whether the engines worked for these processes; None if no driver tells."""
    # NVIDIA's driver does not see short work, so only a yes of it counts.
    if nvidia and nvidia.working & set(pids):
        return True
    if before is None or after.busy is None:
        return None
    if after.busy > before:
        return True
    # Another GPU may have worked than the one that is counted: a laptop has two.
    return False if all(map(counts_work, after.nodes or ())) else None
