"""The monitor of one server: when it is ready, where it computes, and how it is until its end.

Two threads use a ``StartMonitor``. The supervisor calls ``on_started`` and ``on_ended``. The
monitor's own thread, ``_follow``, does the rest. A third thread copies the server's stderr
into the ``Readiness`` that both share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import GpuLost, NotOnGpu, SilentCpu, TsukuError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.launch.ask import health
from tsuku_llm.launch.ask.log import LogFacts
from tsuku_llm.launch.compute.canary_answer import Answer, KnownAnswers
from tsuku_llm.launch.gpu.gpu_use import (
    Observed,
    backend_in_use,
    bytes_on_gpu,
    collect_signs,
    gpu_names,
    shortfall,
)
from tsuku_llm.launch.gpu.nvml import GpuMemory
from tsuku_llm.launch.gpu.observation import GpuObserver
from tsuku_llm.launch.gpu.proc import listeners_of
from tsuku_llm.launch.gpu.verdict import decide
from tsuku_llm.launch.plan.addresses import ServerAddress, urls_of, wants_page
from tsuku_llm.launch.plan.devices import ListedDevice, own_devices
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.report import CanaryResult, Sink, StartReport, Trouble, Verdict
from tsuku_llm.launch.plan.wishes import Wishes, wishes_in
from tsuku_llm.launch.run.supervise import StopHandle, oom_kills
from tsuku_llm.launch.run.warm_up import WarmedUp, WarmUp, WarmUpListener

if TYPE_CHECKING:  # a server that does not come to serve needs none of it
    from tsuku_llm.launch.gpu.life import LifeWatch, ServerProblem
    from tsuku_llm.launch.gpu.life_sampling import LifeSampler

_ENDING = 0.5
"""Seconds for the supervisor to see the end of a server whose connection broke."""


class StartContext(NamedTuple):
    """The facts about a start before it is made.

    ``draft`` is the report as far as it can be filled in. ``listed`` is the build's own list
    of devices (None: not asked). With ``require_gpu`` a server is ended if less than
    ``min_gpu_share`` of its model is on the GPU (0 to 1; None: less than the arguments ask for),
    or if that is unknown. Otherwise ``warn`` is called for a server on the CPU. Neither happens
    if the user's arguments keep the server from the GPU. ``canary`` allows a short request to
    the server. ``tell`` gets the report of a server that was judged. ``recheck`` raises if the
    tree has changed; it is called when the server has loaded everything. ``on_running`` is called
    when the server runs, and ``on_loading`` while it loads, with its pid and the bytes that it
    has logged; what that raises ends the server. ``on_judging`` is called once if a server that has
    loaded does not answer at once, and ``require_gpu`` waits for that. With ``warming``, the server
    gets longer requests before it counts as ready, so that its drivers compile now, unless the
    processor computes a part. ``known`` are earlier answers to the canary, and ``on_answer`` is
    called with the first one of this build. ``on_problem`` gets each problem of one that serves;
    ``ends_lost``: one that has lost its GPU, hangs or answers wrongly is ended. All of them run
    in the monitor's thread. Without ``require_gpu`` and ``warming`` the server is ready before it
    is judged.
    """

    plan: LaunchPlan
    draft: StartReport
    listed: tuple[ListedDevice, ...] | None = None
    require_gpu: bool = False
    min_gpu_share: float | None = None
    canary: bool = True
    files: Collection[str] = ()
    recheck: Callable[[], None] = lambda: None
    warn: Callable[[SilentCpu], None] = lambda _: None
    tell: Callable[[StartReport], None] = lambda _: None
    on_running: Callable[[], None] = lambda: None
    on_loading: Callable[[int, int], None] = lambda _pid, _log: None
    on_judging: Callable[[], None] = lambda: None
    warming: WarmUpListener | None = None
    known: KnownAnswers = KnownAnswers()
    on_answer: Callable[[Answer], None] = lambda _: None
    on_problem: Callable[[ServerProblem], None] = lambda _: None
    ends_lost: bool = False


class StartMonitor:
    """The observer of one server; ``failure`` is why it ended the server, None if it did not."""

    def __init__(self, start: StartContext, sink: Sink, stop_handle: StopHandle) -> None:
        # The monitor's thread writes these three once the server runs. The supervisor reads
        # them after ``on_ended``: single assignments, so without a lock.
        self.failure: TsukuError | None = None
        self.oom_kills = 0
        self.report = start.draft
        self._start = start
        self._sink = sink
        self._stop_handle = stop_handle
        # Set by the supervisor; the monitor's thread sleeps on it and ends once it is set.
        self._over = threading.Event()
        # Of the monitor's thread alone: whether a look without the log showed the GPU, and what the
        # canary of the start answered.
        self._seen = False
        self._canary = CanaryResult()
        self._has_told = False
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
        # The thread may be in a question that lasts: /health for 2 seconds, the canary or a
        # driver for longer. It ends after that, and is a daemon: do not wait for it without
        # a limit.
        if self._thread:
            self._thread.join(health.LIMIT)

    def _follow(self, readiness: health.Readiness) -> None:
        # The whole life of the monitor's thread. First tell the sink that the server runs, so
        # that its process is on record before anything here takes time.
        self._sink(self.report)
        self._start.on_running()
        start, pid = self._start, self.report.pid
        gpu = start.plan.backend != "cpu"
        observer = GpuObserver(start.plan, start.files, start.listed) if gpu else None
        try:
            # The server ended first: the supervisor explains why, or there is nothing to say.
            if not readiness.wait(
                self._over,
                lambda: self._start.on_loading(pid, readiness.log.said),
                lambda: listeners_of(pid),
            ):
                return
            # The libraries and plugins are loaded now. A tree that changed during the load
            # may have put foreign code into the server.
            self._start.recheck()
            self.report = _reachable(self.report, readiness.address, self._start.plan)
            # Nothing of ours stands between a server and its users, but a promise about it and
            # drivers that compile. A build for the processor is judged without a question.
            if observer and not (start.require_gpu or start.warming):
                self.report = self.report._replace(ready=True)
                self._sink(self.report)
            if not self._judge(readiness, observer):
                return
        except TsukuError as error:
            # First the failure, then the end of the server: the supervisor reads ``failure``
            # after the server has ended.
            self.failure = error
            self.report = self.report._replace(ready=False)
            self._stop_handle.end(error.message)
        # Last, since the log is not read any more then. After a failure too: it is known why the
        # server ends, so its end is not explained as a failed start.
        readiness.confirm()
        self._sink(self.report)
        if self.failure is None:
            self._look_after(readiness.address, observer)

    def _look_after(self, address: ServerAddress, observer: GpuObserver | None) -> None:
        """Watch a server that serves until it ends, or until it has to be ended."""
        from tsuku_llm.launch.gpu.life import LOOK, LOST, OVER, LifeWatch
        from tsuku_llm.launch.gpu.life_sampling import LifeSampler
        from tsuku_llm.launch.run.answer_watch import AnswerWatch

        start, began = self._start, self.report
        # A user who keeps the server from the GPU does not miss it.
        refused = observer is None or observer.wishes.refusal
        verdict = Verdict.ON_CPU if refused else began.verdict
        wishes = wishes_in(start.plan.argv, start.plan.env)
        answers = AnswerWatch(
            address, wishes, start.known, start.on_answer, self._stop_handle.hang_up
        )
        sampler = LifeSampler(began.pid, address, start.plan, start.files, verdict)
        watch = LifeWatch(verdict, seen=self._seen, elastic=sampler.elastic)
        try:
            # The canary of the start has asked already.
            problem = watch.hear(answers.first(self._canary) or "")
            if self._ends(problem or answers.told, self.report, watch):
                return
            # The supervisor sets it at the end of the server, which wakes this at once.
            kills = 0
            while not self._over.wait(LOOK):
                # The count of the look before: at this one the server may have been killed.
                self.oom_kills, kills = kills, oom_kills()
                sample = sampler.sample()
                problem = watch.see(sample)
                report = _present(self.report, sampler)
                # A server that ends fails in the same ways: its end is explained by its last words.
                if self._over.is_set():
                    return
                if problem is None and watch.wants_check and observer:
                    # No facts of the log: it said them when all was well.
                    seen = observer.look(
                        began.pid,
                        LogFacts(),
                        address,
                        canary=start.canary,
                        has_ended=lambda: self._over.wait(_ENDING),
                        on_wait=self._stop_handle.hang_up,
                    )
                    if self._over.is_set() or self._stop_handle.is_ending:
                        return
                    decided = decide(collect_signs(seen))
                    problem = watch.judge(decided, answered=seen.canary.answered)
                    if problem and problem.kind in (LOST, OVER):
                        # The log told the start more than this look can see.
                        lost = problem.kind == LOST
                        report = _lost(report, seen, decided) if lost else _as_at(began, report)
                if problem is None and start.canary and watch.wants_answer:
                    wrong = answers.look()
                    if self._over.is_set() or self._stop_handle.is_ending:
                        return
                    problem = answers.told if wrong is None else watch.hear(wrong)
                if self._ends(problem, report, watch):
                    return
        finally:
            sampler.close()

    def _ends(self, problem: ServerProblem | None, report: StartReport, watch: LifeWatch) -> bool:
        """Tell a problem that was found, or end the server for it; return whether it ends."""
        from tsuku_llm.launch.gpu.life import hint_for

        if problem:
            report = report._replace(trouble=_trouble(watch.problem, report.trouble))
        if report != self.report:
            self.report = report
            self._sink(report)
        if problem and self._start.ends_lost and problem.ends:
            # First the failure, as in ``_follow``.
            hint = hint_for(problem, is_ended=True)
            self.failure = GpuLost(problem.text, facts=problem.facts, hint=hint)
            self._stop_handle.end(problem.text)
            return True
        if problem:
            self._start.on_problem(problem)
        return False

    def _judge(self, readiness: health.Readiness, observer: GpuObserver | None) -> bool:
        """Complete the report of a server that is ready; return False if it has ended.

        Raises SilentCpu and NotOnGpu.
        """
        address, start = readiness.address, self._start
        # One token first: a driver may compile for longer than the canary request may take.
        warm_up = self._warm_up(readiness, observer)
        warmed = warm_up.first() if warm_up else None
        if warmed and warmed.problem:
            # It ends, or wants another key: the canary request below tells what it is.
            warm_up = None
        report = self.report
        if observer is None:
            self.report = report._replace(ready=True, backend="cpu", verdict=Verdict.ON_CPU)
            return True
        # One look at the log's facts: the copying thread may replace them meanwhile.
        seen = observer.look(
            report.pid,
            readiness.log.facts,
            address,
            canary=start.canary,
            # The supervisor may not have seen the end yet: give it a moment.
            has_ended=lambda: self._over.wait(_ENDING),
            on_wait=self._on_judging,
        )
        # A server that has ended is not judged: nothing of what was seen tells where it computed.
        # Nor one that is to end, which was not asked to the end.
        if self._over.is_set() or self._stop_handle.is_ending:
            # The supervisor, which waits for this thread now, explains an end at the first request
            # as a failed start: the driver or the memory failed at the first work.
            if seen.canary.lost:
                readiness.deny()
            else:
                readiness.confirm()
            return False
        self.report = _completed(report, seen, observer.nvidia)._replace(ready=True)
        self._canary = seen.canary
        without_log = decide(collect_signs(seen._replace(log=LogFacts())))
        self._seen = without_log in (Verdict.ON_GPU, Verdict.PARTLY)
        # A user who keeps the server from the GPU is not told that it is not there.
        if seen.wishes.refusal is not None:
            return True
        broken = shortfall(seen, self.report.verdict, start.min_gpu_share)
        if start.require_gpu and broken:
            # Otherwise the promise is what the arguments ask for: they cannot break it.
            limit = seen.wishes if start.min_gpu_share is not None else Wishes()
            raise _refused(self.report, broken, limit)
        if self.report.verdict is Verdict.ON_CPU:
            start.warn(_silent_cpu(self.report))
        elif warm_up and warmed and not self._warmed(warm_up, warmed):
            readiness.deny()
            return False
        start.tell(self.report)
        return True

    def _warmed(self, warm_up: WarmUp, result: WarmedUp) -> bool:
        """Warm up a server that has answered the first prompt; return False if it has ended."""
        listener = self._start.warming
        assert listener
        # Where the processor computes a part, one token was all: the next start needs none.
        if listener.needs_prompts(self.report.verdict):
            result = warm_up.rest()
            # An end at such a request is the end of a failed start.
            if result.unanswered and self._over.wait(_ENDING):
                return False
        listener.on_warmed(result)
        return True

    def _on_judging(self) -> None:
        self._stop_handle.hang_up()
        # A server that is ready already keeps nobody waiting.
        if self._start.require_gpu and not self._has_told:
            self._has_told = True
            self._start.on_judging()

    def _warm_up(self, readiness: health.Readiness, observer: GpuObserver | None) -> WarmUp | None:
        """Return the warm-up of this server; None for one that shall or can not have any."""
        start, listener = self._start, self._start.warming
        # A router without a model loads one at its first request; TLS is not spoken here.
        wishes = observer.wishes if observer else Wishes()
        able = wishes.names_model and not wishes.refusal and not readiness.address.tls
        if listener is None or not able:
            return None

        def waiting(seconds: float) -> None:
            self._stop_handle.hang_up()
            listener.on_waiting(seconds)
            # The same limit as for a load: a server that hangs is given up.
            start.on_loading(self.report.pid, readiness.log.said)

        return WarmUp(readiness.address, wishes, waiting)


_MOVED = 0.02
"""Part of the memory in use that must come or go to be written down."""


def _reachable(report: StartReport, address: ServerAddress, plan: LaunchPlan) -> StartReport:
    """Fill in where a server that is ready listens, and its URLs."""
    page = health.has_page(address)
    urls = urls_of(address, page=wants_page(plan.argv, plan.env) if page is None else page)
    return report._replace(
        host=address.host,
        port=None if address.is_unix else address.port,
        page_url=urls.page_url,
        base_url=urls.base_url,
        curl=urls.curl,
        has_key=wishes_in(plan.argv, plan.env).wants_key,
    )


def _present(report: StartReport, sampler: LifeSampler) -> StartReport:
    """Fill in the memory of now; small changes are left out, as each one is written to a file."""
    used = sampler.memory
    total = report.memory_total or (sampler.nvidia.total if sampler.nvidia else None)
    if used is None or (
        report.memory_used is not None
        and abs(used - report.memory_used) <= _MOVED * report.memory_used
    ):
        used = report.memory_used
    holders = sampler.holders
    before = {each.pid: each.memory for each in report.holders}
    if before.keys() == {each.pid for each in holders} and all(
        abs(each.memory - before[each.pid]) <= _MOVED * before[each.pid] for each in holders
    ):
        holders = report.holders
    return report._replace(memory_total=total, memory_used=used, holders=holders)


def _lost(report: StartReport, seen: Observed, decided: Verdict) -> StartReport:
    """Return the report of a server that has lost its GPU, as a look without the log shows it."""
    return report._replace(
        verdict=decided,
        gpu_bytes=bytes_on_gpu(seen, decided),
        layers_offloaded=0 if decided is Verdict.ON_CPU else None,
    )


def _as_at(start: StartReport, report: StartReport) -> StartReport:
    """Return the report of a server that computes again as it did at its start."""
    return report._replace(
        verdict=start.verdict,
        gpu_bytes=start.gpu_bytes,
        layers_offloaded=start.layers_offloaded,
    )


def _trouble(problem: ServerProblem | None, before: Trouble | None) -> Trouble | None:
    if problem is None:
        return None
    text = ": ".join((problem.text, "; ".join(problem.facts))) if problem.facts else problem.text
    # Another problem may have been told meanwhile, behind which this one goes on.
    if before and before[:2] == (problem.kind, text):
        return before
    return Trouble(problem.kind, text, clock.stamp())


def _refused(report: StartReport, broken: str, limit: Wishes) -> TsukuError:
    """Make the error for a server that does not keep the promise of ``--require-gpu``.

    ``limit`` are the user's arguments that may have kept it from that.
    """
    if report.verdict is Verdict.ON_CPU:
        return _silent_cpu(report)
    problem = broken
    hint = "to allow what cannot be shown: --require-gpu 0; or leave out --require-gpu"
    if report.verdict is not Verdict.UNKNOWN:
        share = report.gpu_share
        part = "an unknown part" if share is None else f"{share:.0%}"
        # Rounded down, so that the number allows exactly this server.
        allowed = 0 if share is None else int(share * 100) / 100
        more = "free GPU memory, or use a smaller model or context (-c)"
        if limit.layers is not None or limit.split:
            more = f"leave out {limit.split or f'-ngl {limit.layers}'}; {more}"
        problem = f"{broken}: {part} of the model"
        hint = f"{more}; to allow it: --require-gpu {allowed:g}"
    facts = tuple(f"{sign.name}: {sign.evidence}" for sign in report.signals)
    return NotOnGpu(problem, facts=facts, hint=hint)


def _silent_cpu(report: StartReport) -> SilentCpu:
    """Make the error for a server that is not on a GPU, with every sign of that."""
    return SilentCpu(
        f"the server does not run on the GPU: {report.selected} should use one",
        facts=tuple(
            f"{sign.name}: {sign.evidence}"
            for sign in report.signals
            if sign.says is Verdict.ON_CPU
        ),
        hint=f"{TSUKU} doctor finds the first broken link; or run on the CPU: "
        f"{TSUKU} config set llm.backend cpu",
    )


def _completed(report: StartReport, seen: Observed, nvidia: GpuMemory | None) -> StartReport:
    """Fill in what the observations say; the log's own words before the list's."""
    found = collect_signs(seen)
    decided = decide(found)
    listed = own_devices(seen.listed or (), seen.backend)
    # The placement, or the user, may have named some of them.
    own = [each for each in listed if each.name in seen.wishes.devices] or listed
    device = seen.log.device or ", ".join(f"{each.name}: {each.description}" for each in own)
    total = sum(each.memory or 0 for each in own) or (nvidia.total if nvidia else None)
    # The server prints a number of layers also if it has no GPU for them.
    shown = decided in (Verdict.ON_GPU, Verdict.PARTLY)
    offloaded = seen.log.layers[0] if seen.log.layers and shown else None
    return report._replace(
        signals=found,
        verdict=decided,
        backend=backend_in_use(seen, decided),
        device=device or None,
        driver=f"NVIDIA {nvidia.driver}" if nvidia else None,
        memory_total=total,
        memory_used=seen.memory[1] if seen.memory else seen.risen,
        layers_offloaded=0 if decided is Verdict.ON_CPU else offloaded,
        layers_total=seen.log.layers[1] if seen.log.layers else None,
        model_bytes=seen.model_size,
        gpu_bytes=bytes_on_gpu(seen, decided),
        gpu_names=gpu_names(seen) if shown else (),
    )
