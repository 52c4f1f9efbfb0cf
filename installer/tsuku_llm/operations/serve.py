"""The launch of the installed server: which version, and the start of one version to its end.

The command ``serve`` imports only this module and what it imports.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.errors import (
    BackendFailed,
    GpuLost,
    LaunchError,
    NoProgress,
    NotInstalled,
    NotOnGpu,
    SilentCpu,
    TsukuError,
)
from tsuku_llm.launch.fingerprint import driver_fingerprint
from tsuku_llm.launch.planning import LaunchPlan, plan_server
from tsuku_llm.launch.wishes import wishes_in
from tsuku_llm.operations.device_check import Check, check_devices, explain
from tsuku_llm.operations.fallback import (
    next_version,
    note_served,
    remembered,
    wanted_version,
)
from tsuku_llm.operations.revocation import require_not_revoked
from tsuku_llm.operations.session import Session, working_folder
from tsuku_llm.operations.state_notes import StateNotes
from tsuku_llm.operations.temporary import withheld
from tsuku_llm.operations.which import become, build_of
from tsuku_llm.store.installed import Installed

if TYPE_CHECKING:
    from tsuku_llm.launch.causes import Diagnosis
    from tsuku_llm.launch.life import ServerProblem
    from tsuku_llm.launch.report import FallenBack, Sink, StartReport, Trouble
    from tsuku_llm.launch.supervise import StopHandle


class Serving(NamedTuple):
    """The way in which a server is to be started.

    ``name`` tells it from other servers. ``replace`` makes this process become the server instead
    of watching it (systemd, containers). ``require_gpu`` ends a server of which less than
    ``min_gpu_share`` is on the GPU (0 to 1, None: all of the layers that were asked for).
    ``verify`` hashes every file first. ``one_stream`` merges its stdout into its stderr. ``sink``
    gets each state of the start, from a thread, and must not raise. ``stop_handle`` ends the server
    from another thread. ``on_loading`` is called in the thread of ``sink`` while the server loads,
    with its pid and the bytes that it has logged; a TsukuError that it raises ends the start.
    ``on_signal`` is called in the main thread with each signal that the server gets from us.
    """

    name: str = "default"
    replace: bool = False
    require_gpu: bool = False
    min_gpu_share: float | None = None
    verify: bool = False
    one_stream: bool = False
    sink: Sink | None = None
    stop_handle: StopHandle | None = None
    on_loading: Callable[[int, int], None] | None = None
    on_signal: Callable[[int], None] | None = None


def serve(session: Session, arguments: Sequence[str], how: Serving) -> int:
    """Check the installed tree, then run its server with ``arguments``; return its exit code.

    If its backend fails, this starts the next variant, provided that the settings or the user allow
    it. The server holds its version as long as it lives, so that other processes cannot remove it.
    If a server that served loses its GPU, ``llm.on_gpu_loss`` decides what follows.

    Raises the errors of ``wanted_version``, ``TamperedInstall``, ``Revoked``, ``LaunchError``,
    ``GpuLost`` and, with ``require_gpu``, ``SilentCpu`` and ``NotOnGpu``.
    """
    # Now: a server in the background leaves this folder once it serves, and may be started again.
    cwd = working_folder()
    restarts = _Restarts(session, how)
    notes = StateNotes(session.paths.state, driver_fingerprint(session.machine.environ))
    preferred = _preferred(session, notes)
    installed, failures = remembered(session, notes, preferred, gpu_only=how.require_gpu)
    # Each turn starts another variant, and ``next_version`` goes down the ranking, so this ends;
    # with ``restart`` the same one is started again, after a pause.
    while True:
        # Called in the thread that follows this start; later starts have other failures.
        on_served = partial(note_served, session, notes, preferred, installed, failures)
        start = VersionStart(
            *(session, arguments, how, installed, notes, cwd, failures.failed, on_served),
            restarts=restarts.count,
        )
        try:
            return start.make()
        except (LaunchError, SilentCpu, NotOnGpu, GpuLost) as error:
            # A lost GPU need not be back at once, so the failures of restarts count as well. The
            # same server has served before: whatever fails now may be over in a while, such as
            # memory or a port that what is left of it still has.
            if isinstance(error, GpuLost) or (
                restarts.count and not isinstance(error, NotInstalled)
            ):
                if restarts.wait(error, installed):
                    # The remembered list is from before the loss.
                    notes.forget_devices()
                    continue
                if session.settings.on_gpu_loss != "fallback":
                    raise
                # The setting is the consent that ``next_version`` needs.
                session = session.with_settings(fallback="auto")
            # Any other variant would fail as well.
            elif not isinstance(error, (BackendFailed, SilentCpu)):
                raise
            failures = failures.longer(installed, error)
            other = next_version(session, preferred, failures, gpu_only=how.require_gpu)
            if other:
                # An error of a start is among the server's last lines; a loss is not.
                if isinstance(error, GpuLost) and error.facts:
                    session.user.note(f"warning: {'; '.join((error.message, *error.facts))}")
                installed = other
            # No other variant runs: start this one on the CPU, as the user did not require a GPU.
            elif isinstance(error, SilentCpu) and not how.require_gpu:
                return start._replace(insist=True, on_served=lambda: None).make()
            else:
                raise


def _preferred(session: Session, notes: StateNotes) -> Installed:
    """Return the wanted version, or the better one that only a temporary state kept away."""
    wanted = wanted_version(session)
    if states := withheld(wanted.receipt, session.settings.backend):
        from tsuku_llm.operations.recovery import recovered  # noqa: PLC0415 - only then

        return recovered(session, notes, wanted, states)
    return wanted


class _Restarts:
    """The restarts of one ``serve`` after its server has lost the GPU; ``count`` is their number.

    The main thread uses it. Another thread may stop ``serve`` by its handle meanwhile.
    """

    def __init__(self, session: Session, how: Serving) -> None:
        self.count = 0
        self._session = session
        self._stop_handle = how.stop_handle
        self._in_a_row = 0
        self._begun = time.monotonic()

    def wait(self, error: TsukuError, installed: Installed) -> bool:
        """Wait before the next restart, longer each time; return False if there shall be none.

        Other processes cannot remove the version meanwhile.
        """
        if self._session.settings.on_gpu_loss != "restart":
            return False
        from tsuku_llm.launch.life import failures_in_a_row, restart_pause  # noqa: PLC0415 - only then

        served = time.monotonic() - self._begun
        self._in_a_row = failures_in_a_row(self._in_a_row, served)
        pause = restart_pause(self._in_a_row)
        told = "; ".join((error.message, *error.facts))
        seconds = f"{pause:.0f} second{'' if pause == 1 else 's'}"
        self._session.user.note(f"warning: {told}; it is started again in {seconds}")
        stopped = threading.Event()
        # ``end`` of another thread calls this at once, also if it came before us.
        if self._stop_handle:
            self._stop_handle.attach(stopped.set)
        # A signal raises here, as there is no server that could get it.
        with self._session.reader.hold(installed):
            if stopped.wait(pause):
                return False
        self.count += 1
        self._begun = time.monotonic()
        return True


class VersionStart(NamedTuple):
    """The start of one version; ``failed`` are the variants that were tried before it.

    ``cwd`` is the user's folder.
    ``on_served`` is called once, from a thread, when the server serves, but not if a GPU's build
    computes on the CPU. With ``insist`` the server may also start on the CPU: all other versions
    have failed. ``restarts`` is how often its server was started again after a loss of the GPU.
    """

    session: Session
    arguments: Sequence[str]
    how: Serving
    installed: Installed
    notes: StateNotes
    cwd: Path
    failed: tuple[FallenBack, ...]
    on_served: Callable[[], None] = lambda: None
    insist: bool = False
    restarts: int = 0

    def make(self) -> int:
        """Check, start, and stay until the server ends; return its exit code."""
        installed, reader = self.installed, self.session.reader
        # A CPU build cannot do what --require-gpu asks for.
        if self.how.require_gpu and installed.receipt.backend == "cpu":
            raise SilentCpu(
                f"a GPU is required, but {installed.id} is a build for the CPU",
                hint="see why: tsuku-llm explain; for a GPU: tsuku-llm install --backend gpu",
            )
        # From here on other processes cannot remove this version; the server inherits the
        # descriptor and keeps the hold.
        with reader.hold(installed) as held:
            # Check under the hold, so that what was checked is what starts.
            reader.check(installed, full=self.how.verify)
            require_not_revoked(self.session, installed.receipt)
            self.session.user.note(installed.receipt.line)
            keep = () if held is None else (held,)
            recalled = not self.how.require_gpu and self.notes.devices(installed.id) is not None
            check = self._devices()
            try:
                return self._run(check, self._plan(check), keep)
            except LaunchError as error:
                # A GPU can get lost without a sign that ``launch.fingerprint`` could read: it has
                # fallen off the bus, or its driver fails. Then the remembered list is wrong. A
                # start that was given up is over: the starting command has said so and left.
                if not recalled or isinstance(error, NoProgress):
                    raise
                self.notes.forget_devices()
                now = self._devices()
                # Without an answer nothing is known of a loss.
                if now.devices is None or _names(now) == _names(check):
                    raise
                return self._run(now, self._plan(now), keep)

    def _devices(self) -> Check:
        installed, environ = self.installed, self.session.machine.environ
        return check_devices(
            build_of(installed),
            installed.id,
            self.notes,
            environ,
            # A promise needs an answer of now: the GPU may be gone since the last start.
            ask_again=self.how.require_gpu,
        )

    def _plan(self, check: Check) -> LaunchPlan:
        """Plan the start. Raises ``SilentCpu`` and ``NotOnGpu`` for an unwanted one on the CPU."""
        plan = plan_server(
            check.build,
            self.arguments,
            cwd=self.cwd,
            environ=self.session.machine.environ,
        )
        self._require_devices(check, plan)
        return plan

    def _run(self, check: Check, plan: LaunchPlan, keep: tuple[int, ...]) -> int:
        # After exec this program is gone: everything that it has to do comes before.
        if self.how.replace:
            self._recheck()  # the last moment at which this is possible
            if self.how.sink:
                self.how.sink(self._draft())
            return become(plan, keep)
        # A start with --exec does without threads and child processes, so these come late.
        from tsuku_llm.launch.monitor import StartContext, StartMonitor  # noqa: PLC0415
        from tsuku_llm.launch.supervise import supervise  # noqa: PLC0415

        start = StartContext(
            build=check.build,
            plan=plan,
            draft=self._draft(),
            listed=check.devices,
            require_gpu=self.how.require_gpu,
            min_gpu_share=self.how.min_gpu_share,
            canary=self.session.settings.canary,
            files=tuple(file.path.rpartition("/")[2] for file in self.installed.receipt.files),
            # The thread that follows the start calls these five while the server runs.
            recheck=self._recheck,
            # Once: a restart has nothing new to say.
            on_running=(lambda: None) if self.restarts else self._offer_update,
            on_loading=self.how.on_loading or (lambda _pid, _log: None),
            tell=self._tell,
            warn=self._warn_of_running if check.problem is None else lambda _: None,
            on_problem=self._on_problem,
            ends_lost=self.session.settings.on_gpu_loss != "warn",
        )
        # A server that was killed leaves its Unix socket, and the next one could not bind it.
        if self.restarts:
            from tsuku_llm.launch.health import (  # noqa: PLC0415 - only then
                address_of,
                remove_dead_socket,
            )

            remove_dead_socket(address_of(plan.argv, plan.env))
        stop_handle = self._own_stop_handle()
        sink = _StartSink(self)
        followed = StartMonitor(start, sink, stop_handle)
        deaths: list[Diagnosis] = []
        try:
            code = supervise(
                plan,
                keep=keep,
                stop_handle=stop_handle,
                observer=followed,
                one_stream=self.how.one_stream,
                on_signal=self.how.on_signal,
                on_death=deaths.append,
            )
            reported = followed.report
            for death in deaths:
                reported = reported._replace(trouble=_death(death))
                sink(reported)
        finally:
            # First: the caller writes the end into its record, and that must stay the last word.
            sink.close()
        # The caller reads this from the handle that it gave us.
        if self.how.stop_handle:
            self.how.stop_handle.signalled = stop_handle.signalled
        if followed.failure:
            if isinstance(followed.failure, GpuLost) and self.how.sink:
                # Until it serves again, if at all.
                self.how.sink(reported._replace(ready=False))
            raise followed.failure
        for death in deaths:
            self._tell_death(death, reported)
        return code

    def _tell_death(self, death: Diagnosis, report: StartReport) -> None:
        """Tell why a server ended after it had served; raise GpuLost if another start follows.

        A server that ends by the backend's fault has lost its GPU, too. Where it is not started
        again, its exit code stays what it is.
        """
        backend = self.installed.receipt.backend
        cause, hint = f"{_DIED}: {death.cause}", death.hint(backend)
        again = self.session.settings.on_gpu_loss in ("restart", "fallback")
        if again and death.fault == "backend" and backend != "cpu":
            if self.how.sink:
                self.how.sink(report._replace(ready=False))
            # What follows says it: the next start, or the error.
            raise GpuLost(cause, facts=death.facts, hint=hint)
        self._warn(LaunchError(cause, facts=death.facts, hint=hint))

    def _own_stop_handle(self) -> StopHandle:
        """Return a stop handle for this start only.

        The end of this start must not end the next variant's, which shares the outer stop handle.
        """
        from tsuku_llm.launch.supervise import StopHandle  # noqa: PLC0415 - as in ``_run``

        outer = self.how.stop_handle
        if outer is None:
            return StopHandle()
        own = StopHandle(outer.grace)
        # If the outer handle was used before, this ends the start as soon as it begins.
        outer.attach(lambda: own.end(outer.reason or ""))
        return own

    def _offer_update(self) -> None:
        from tsuku_llm.operations.update_notice import offer_update  # noqa: PLC0415 - starts a process

        offer_update(self.session, self.installed.id)

    def _recheck(self) -> None:
        self.session.reader.check(self.installed)

    def _draft(self) -> StartReport:
        """Return the report as it is before anything runs."""
        from tsuku_llm.launch.report import StartReport  # noqa: PLC0415 - with --exec only for a sink

        receipt = self.installed.receipt
        now = datetime.now(timezone.utc) if self.restarts else self.session.machine.now
        return StartReport(
            name=self.how.name,
            release=receipt.release,
            version=self.installed.id,
            requested=self.session.settings.backend,
            detected=receipt.detected,
            selected=receipt.variant,
            verification="hash" if self.how.verify else "fingerprint",
            supervisor=os.getpid(),
            pid=os.getpid(),
            host="127.0.0.1",
            port=None,
            started_at=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            fallen_back_from=self.failed,
            restarts=self.restarts,
        )

    def _require_devices(self, check: Check, plan: LaunchPlan) -> None:
        """Refuse an unwanted start on the CPU; print a warning for one that is allowed.

        Raises ``SilentCpu``, and ``NotOnGpu`` for arguments that keep the server from the GPU.
        """
        if check.complaint:
            self.session.user.note(f"warning: {check.complaint}")
        refusal = wishes_in(plan.argv, plan.env).refusal
        if refusal and self.how.require_gpu:
            # Not SilentCpu: every other variant gets the same arguments.
            raise NotOnGpu(
                "a GPU is required, but the arguments prevent its use",
                facts=(refusal,),
                hint="leave it out, or leave out --require-gpu",
            )
        if check.problem is None or refusal:
            return
        facts, fix = explain(self.session, check.build.backend)
        from tsuku_llm.launch.causes import CPU_OVERRIDE  # noqa: PLC0415 - only then

        error = SilentCpu(
            f"the {check.build.backend} build would run on the CPU: {check.problem.cause}",
            facts=(*facts, *check.facts),
            hint=f"{fix or check.problem.fix}; or run on the CPU: {CPU_OVERRIDE}",
        )
        # A restart waits for the GPU to come back.
        waits = self.how.require_gpu or self.restarts > 0
        if waits or (self.session.settings.fallback != "off" and not self.insist):
            raise error
        self._warn(error)

    def _tell(self, report: StartReport) -> None:
        """Print the line of the decision again, with the share of the model on the GPU."""
        if told := report.told_share:
            self.session.user.note(f"{self.installed.receipt.line} gpu=[{told}]")

    def _warn_of_running(self, error: SilentCpu) -> None:
        # The GPU may be gone without a sign that ``launch.fingerprint`` could read.
        self.notes.forget_devices()
        self._warn(error)

    def _on_problem(self, problem: ServerProblem) -> None:
        from tsuku_llm.launch.life import OVER, hint_for  # noqa: PLC0415 - only then

        if problem.kind == OVER:
            self.session.user.note(problem.text)
        else:
            hint = hint_for(problem.kind, is_ended=False)
            self._warn(GpuLost(problem.text, facts=problem.facts, hint=hint))

    def _warn(self, error: TsukuError) -> None:
        self.session.user.note(f"warning: {'; '.join((error.message, *error.facts))}; {error.hint}")


_DIED = "the server ended after it had served"

_LONGEST = 2000
"""Characters of an explanation in the record of a server."""


def _death(death: Diagnosis) -> Trouble:
    """Return why a server ended after it had served, for its record."""
    from tsuku_llm.launch.report import DIED, Trouble  # noqa: PLC0415 - as in ``_run``

    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Trouble(DIED, "; ".join((death.cause, *death.facts))[:_LONGEST], since)


def _names(check: Check) -> set[str]:
    return {device.name for device in check.devices or ()}


class _StartSink:
    """The sink of one start, until its server has ended.

    A monitor's thread can be in a question to a driver when the server ends, and go on later. Its
    report would then say that a server runs which is gone, or that the version of an earlier start
    runs. Two threads meet here: the monitor's calls it, the main thread closes it.
    """

    def __init__(self, start: VersionStart) -> None:
        self._start = start
        # Held for a whole report: ``close`` waits for one that is under way.
        self._lock = threading.Lock()
        self._closed = False
        self._has_served = False

    def __call__(self, report: StartReport) -> None:
        with self._lock:
            if self._closed:
                return
            if report.ready and not self._has_served:
                self._has_served = True
                from tsuku_llm.launch.report import Verdict  # noqa: PLC0415 - as in ``_run``

                # A GPU's build on the CPU does not show that its backend works.
                on_cpu = report.verdict is Verdict.ON_CPU
                if not on_cpu or self._start.installed.receipt.backend == "cpu":
                    self._start.on_served()
            if self._start.how.sink:
                self._start.how.sink(report)

    def close(self) -> None:
        """Drop every later report."""
        with self._lock:
            self._closed = True
