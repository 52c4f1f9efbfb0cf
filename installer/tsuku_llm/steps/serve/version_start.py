"""The start of one installed version, from its checks to the end of its server."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import (
    DoesNotFit,
    GpuLost,
    LaunchError,
    NoProgress,
    NotOnGpu,
    SilentCpu,
    StoreError,
    TsukuError,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.processes.inherited import no_core_dumps
from tsuku_llm.launch.ask.health import require_keys
from tsuku_llm.launch.plan.addresses import address_of, expected_addresses
from tsuku_llm.launch.plan.fingerprint import driver_fingerprint
from tsuku_llm.launch.plan.planning import LaunchPlan, plan_server
from tsuku_llm.launch.plan.report import DIED, FallenBack, Sink, StartReport, Trouble, Verdict
from tsuku_llm.launch.plan.secret_arguments import shown_variable
from tsuku_llm.launch.plan.wishes import (
    MODELS_MAX,
    MODELS_PRESET,
    USERS_PRESET,
    answers_and_ends,
    downloads_in,
    last_value,
    names_a_model,
    wishes_in,
    without_options,
)
from tsuku_llm.steps.choosing.revocation import require_not_revoked
from tsuku_llm.steps.choosing.which import become, build_of, server_folder
from tsuku_llm.steps.drivers.caches import BuildCaches, build_caches, would_give
from tsuku_llm.steps.drivers.device_check import (
    Check,
    check_devices,
    explain,
    has_machine_code,
    wanted_maker,
    with_given_cards,
)
from tsuku_llm.steps.drivers.state_notes import StateNotes
from tsuku_llm.steps.serve.fitting import (
    fit_of_start,
    fit_tool_of,
    fitting_together,
    read_routed,
    require_fit,
    spaces_of,
)
from tsuku_llm.steps.serve.placing import Placed, devices_of_each, place_start
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed

if TYPE_CHECKING:
    from tsuku_llm.launch.failed.diagnosis import Diagnosis
    from tsuku_llm.launch.gpu.life import ServerProblem
    from tsuku_llm.launch.plan.build_arguments import Understood
    from tsuku_llm.launch.run.supervise import StopHandle
    from tsuku_llm.model_caches.naming import LocalModel
    from tsuku_llm.steps.drivers.warming import Warming
    from tsuku_llm.steps.serve.all_models import RouterPreset


class Serving(NamedTuple):
    """The way in which a server is to be started.

    ``name`` tells it from other servers. ``replace`` makes this process become the server instead
    of watching it (systemd, containers). ``require_gpu`` ends a server of which less than
    ``min_gpu_share`` is on the GPU (0 to 1, None: all of the layers that were asked for).
    ``require_fit`` refuses a model that does not fit into the free memory.
    ``start_timeout`` are the seconds without progress after which a start in the background ends
    (0: never). ``one_stream`` merges its stdout into its stderr. ``sink``
    gets each state of the start, from a thread, and must not raise. ``stop_handle`` ends the server
    from another thread. ``on_loading`` is called in the thread of ``sink`` while the server loads,
    with its pid and the bytes that it has logged; a TsukuError that it raises ends the start.
    ``on_compiling`` is called there once a second of a warm-up, with the seconds that it takes.
    ``on_signal`` is called in the main thread with each signal that the server gets from us.
    ``own_folder``: the server does not run in the user's folder, but in one of our own.
    ``reload`` ends the server from another thread, too; then one of the active version follows.
    ``models`` are what a start without a model offers.
    """

    name: str = "default"
    replace: bool = False
    require_gpu: bool = False
    min_gpu_share: float | None = None
    require_fit: bool = False
    start_timeout: int = 300
    one_stream: bool = False
    sink: Sink | None = None
    stop_handle: StopHandle | None = None
    on_loading: Callable[[int, int], None] | None = None
    on_compiling: Callable[[float], None] | None = None
    on_signal: Callable[[int], None] | None = None
    own_folder: bool = False
    reload: StopHandle | None = None
    models: tuple[LocalModel, ...] = ()


class VersionStart(NamedTuple):
    """The start of one version; ``failed`` are the variants that were tried before it.

    ``cwd`` is the user's folder: relative paths in the arguments mean it.
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
        installed = self.installed
        self._require_gpu_build()
        # From here on other processes cannot remove this version; the server inherits the
        # descriptor and keeps the hold.
        with (
            self.session.reader.hold(installed) as held,
            build_caches(
                installed.receipt.backend,
                self.session.paths,
                with_given_cards(self.session, installed),
                self.session.user.note,
            ) as caches,
        ):
            self._check(caches.environ)
            self.session.user.note(installed.receipt.line)
            keep = tuple(each for each in (held, caches.held) if each is not None)
            recalled = not self.how.require_gpu and self.notes.listed(installed.id) is not None
            check = self._devices(caches)
            try:
                return self._run(self._plan(check, caches), caches, keep)
            except LaunchError as error:
                # A GPU can get lost without a sign that ``launch.plan.fingerprint`` could read: it
                # has fallen off the bus, or its driver fails. Then the remembered list is wrong. A
                # start that was given up is over: the starting command has said so and left.
                if not recalled or isinstance(error, (NoProgress, DoesNotFit)):
                    raise
                self.notes.forget_devices()
                now = self._devices(caches)
                # Without an answer nothing is known of a loss.
                listed = {device.name for device in check.devices or ()}
                if now.devices is None or listed == {device.name for device in now.devices}:
                    raise
                return self._run(self._plan(now, caches), caches, keep)

    def planned(self) -> Placed:
        """Check and plan as ``make`` does, with the same errors; start no server.

        This asks the build for its devices, and makes no folder for the drivers.
        """
        self._require_gpu_build()
        with self.session.reader.hold(self.installed):
            environ = with_given_cards(self.session, self.installed)
            backend = self.installed.receipt.backend
            caches = BuildCaches(would_give(backend, self.session.paths, environ))
            self._check(caches.environ)
            placed = self._plan(self._devices(caches), caches)
            # As what ``config.ini`` says: a start leaves that out, as it may be of many models.
            for said in () if placed.preset else self._users_preset(placed.plan):
                self.session.user.note(f"{said.source} has {' = '.join((said.word, *said.values))}")
            return placed

    def _require_gpu_build(self) -> None:
        """Refuse a build for the CPU, which cannot do what ``--require-gpu`` asks for."""
        if self.how.require_gpu and self.installed.receipt.backend == "cpu":
            raise SilentCpu(
                f"a GPU is required, but {self.installed.id} is a build for the CPU",
                hint=f"see why: {TSUKU} explain; for a GPU: {TSUKU} install --backend gpu",
            )

    def _check(self, environ: Mapping[str, str]) -> None:
        """Check the files, the metadata and the downloads of the start.

        The caller holds the version, so that what was checked is what starts.
        """
        self.session.reader.admit(self.installed)
        require_not_revoked(self.session, self.installed.receipt)
        if self.installed.receipt.takes:
            from tsuku_llm.launch.plan.build_arguments import require_known

            require_known(self.arguments, self.installed.receipt.takes, self.installed.id)
        if downloads_in(self.arguments, environ):
            from tsuku_llm.steps.serve.downloads import require_https

            folders = self.session.settings.model_path
            require_https(self.installed, self.arguments, environ, folders)

    def _devices(self, caches: BuildCaches, *, ask_again: bool = False) -> Check:
        installed = self.installed
        check = check_devices(
            build_of(installed),
            installed.id,
            self.notes,
            # As the server gets it: PoCL lists no device without its folder.
            caches.environ,
            # A promise needs an answer of now: the GPU may be gone since the last start.
            ask_again=ask_again or self.how.require_gpu,
        )
        return check._replace(
            hardware=installed.receipt.hardware,
            maker=wanted_maker(installed.receipt, self.session.settings.backend),
            fit_tool=fit_tool_of(installed),
        )

    def _plan(self, check: Check, caches: BuildCaches) -> Placed:
        """Plan the start, place its model, and compare its need for memory with what is free.

        Raises ``SilentCpu`` and ``NotOnGpu`` for an unwanted start on the CPU, and ``DoesNotFit``.
        """
        runs_in = server_folder(
            self.session.paths, self.session.user.note, None if self.how.own_folder else self.cwd
        )
        plan = plan_server(
            check.build, self.arguments, cwd=self.cwd, environ=caches.environ, runs_in=runs_in
        )
        require_keys(wishes_in(plan.argv, plan.env))
        preset = self._preset(plan)
        if preset:
            plan = _with_words(plan, check, MODELS_PRESET, str(preset.path))
        self._tell_read(plan, preset)
        # Free memory is of now: other processes come and go.
        ask_again = partial(self._devices, caches, ask_again=True)
        placed = place_start(plan, check, self.session.settings.placement, ask_again)
        self._require_devices(placed.check, placed.plan)
        if preset:
            placed = self._for_models(plan, placed, preset, ask_again)
        if placed.told:
            self.session.user.note(placed.told)
        # A router starts its models later, and other servers for them.
        if self.how.require_fit or wishes_in(plan.argv, plan.env).model:
            fit = fit_of_start(
                placed.plan,
                placed.check,
                placed.cards,
                ask_again,
                models=placed.models,
                certain=self.how.require_fit,
            )
            if self.how.require_fit:
                require_fit(fit)
            for line in fit.told if fit else ():
                self.session.user.note(line)
        return placed

    def _tell_read(self, plan: LaunchPlan, preset: RouterPreset | None) -> None:
        """Tell what the server reads in files, and what is wrong there or of no use to a router."""
        for each in plan.configured:
            value = shown_variable(each.variable, each.value)
            self.session.user.note(f"{each.source} has {each.key} = {value}")
        # A router reads its preset at the start, and the values only when a model is asked for.
        for said in () if preset else self._users_preset(plan):
            if said.problem:
                told = " = ".join((said.word, *said.values))
                self.session.user.note(f"warning: {said.source or told}: {said.problem}")
        wishes = wishes_in(plan.argv, plan.env)
        if wishes.key and not wishes.names_model and not answers_and_ends(plan.argv):
            self.session.user.note(_ROUTER_KEY)

    def _for_models(
        self,
        plan: LaunchPlan,
        placed: Placed,
        preset: RouterPreset,
        ask_again: Callable[[], Check],
    ) -> Placed:
        """Place a router's models, and limit how many it loads at a time to those that fit.

        ``plan`` is the one before it was ``placed``.
        """
        from tsuku_llm.launch.plan.build_arguments import arguments_in

        # A recalled list does not know what is free now.
        if placed.cards and placed.check.recalled:
            placed = placed._replace(cards=ask_again().cards)
        models = read_routed(placed.plan, preset.models)
        devices = devices_of_each(plan, placed, models or (), self.session.settings.placement)
        if devices:
            placed, preset = placed.without_devices(), preset.on(devices)
        plan = placed.plan
        known = any(MODELS_MAX[0] in each.names for each in arguments_in(plan.takes))
        if not known or last_value(plan.argv, plan.env, MODELS_MAX):
            return placed._replace(preset=preset)
        listed = plan.backend == "cpu" or placed.cards or placed.check.devices == ()
        count = None
        if models is not None and listed:
            count = fitting_together(plan, models, spaces_of(placed.cards))
        preset = preset.limited(count)
        self.session.user.note(preset.memory)
        if preset.limit:
            plan = _with_words(plan, placed.check, MODELS_MAX[0], str(preset.limit))
        return placed._replace(plan=plan, preset=preset)

    def _users_preset(self, plan: LaunchPlan) -> tuple[Understood, ...]:
        """Return what a preset of the user's says; nothing for a start without one."""
        named = last_value(plan.argv, plan.env, USERS_PRESET)
        if named is None or wishes_in(plan.argv, plan.env).names_model:
            return ()
        from tsuku_llm.launch.plan.upstream_config import preset_in

        return tuple(preset_in(Path(named[1]), plan.takes, plan.argv, plan.cwd))

    def _preset(self, plan: LaunchPlan) -> RouterPreset | None:
        """Return the preset of a start that names no model; None if it needs none."""
        if not self.how.models or names_a_model(plan.argv, plan.env):
            return None
        from tsuku_llm.instances.folder import Instances
        from tsuku_llm.steps.serve.all_models import preset_of

        path = Instances(self.session.paths.state).preset(self.how.name)
        preset = preset_of(self.how.models, path, plan.takes)
        note = self.session.user.note
        if preset is None:
            note(
                f"no model is named, and {self.installed.id} is not known to have {MODELS_PRESET}: "
                f"{_CACHE_ONLY}; to serve another: {TSUKU} serve -m NAME"
            )
        else:
            note(preset.told)
        return preset

    def _with_preset(self, placed: Placed) -> LaunchPlan:
        """Write the preset of a start, and return its plan; without the preset if that fails."""
        try:
            if placed.preset:
                placed.preset.write()
        except StoreError as error:
            # A container or a service whose disk is read-only.
            self.session.user.note(f"warning: {error.message}: {_CACHE_ONLY}")
            words = tuple(without_options(placed.plan.argv, (MODELS_PRESET,)))
            return placed.plan._replace(argv=words)
        return placed.plan

    def _run(self, placed: Placed, caches: BuildCaches, keep: tuple[int, ...]) -> int:
        check, plan = placed.check, self._with_preset(placed)
        if ".sock" in plan.env.get("LLAMA_ARG_HOST", "") or any(".sock" in w for w in plan.argv):
            from tsuku_llm.launch.ask.health import remove_dead_sockets

            remove_dead_sockets(address_of(plan.argv, plan.env))
        recheck = partial(self.session.reader.check, self.installed)
        # After exec this program is gone: everything that it has to do comes before.
        if self.how.replace:
            recheck()  # the last moment at which this is possible
            if self.how.sink:
                self.how.sink(self._draft(placed))
            # Where it will listen, as far as its arguments say.
            if not answers_and_ends(plan.argv):
                for what, text in expected_addresses(plan.argv, plan.env):
                    self.session.user.note(f"{what}, once the server is ready: {text}")
            with no_core_dumps():
                return become(plan, keep)
        # A start with --exec does without threads and child processes, so these come late.
        from tsuku_llm.launch.run.monitor import StartContext, StartMonitor
        from tsuku_llm.launch.run.supervise import supervise
        from tsuku_llm.steps.drivers.speed_notes import AnswerNotes

        answers = AnswerNotes(self.session.paths.state, plan, self.installed.id)
        start = StartContext(
            plan=plan,
            draft=self._draft(placed),
            listed=check.devices,
            require_gpu=self.how.require_gpu,
            min_gpu_share=self.how.min_gpu_share,
            canary=self.session.settings.canary,
            files=tuple(file.path.rpartition("/")[2] for file in self.installed.receipt.files),
            # The thread that follows the start calls these while the server runs.
            recheck=recheck,
            # Once: a restart has nothing new to say.
            on_running=(lambda: None) if self.restarts else self._offer_update,
            on_loading=self.how.on_loading or (lambda _pid, _log: None),
            on_judging=self._tell_judging,
            tell=self._tell,
            warn=self._warn_of_running if check.problem is None else lambda _: None,
            warming=self._warming(placed, caches),
            known=answers.known(),
            on_answer=answers.keep,
            on_problem=self._on_problem,
            ends_lost=self.session.settings.on_gpu_loss != "warn",
        )
        stop_handle = self._own_stop_handle()
        sink = _StartSink(self)
        followed = StartMonitor(start, sink, stop_handle)
        try:
            code, death = supervise(
                plan,
                keep=keep,
                stop_handle=stop_handle,
                observer=followed,
                one_stream=self.how.one_stream,
                on_signal=self._on_signal,
            )
            reported = followed.report
            if death:
                why = "; ".join((death.cause, *death.facts))[:_LONGEST]
                reported = reported._replace(trouble=Trouble(DIED, why, clock.stamp()))
                sink(reported)
        finally:
            # First: the caller writes the end into its record, and that must stay the last word.
            sink.close()
        if followed.failure:
            if isinstance(followed.failure, GpuLost) and self.how.sink:
                # Until it serves again, if at all.
                self.how.sink(reported._replace(ready=False))
            raise followed.failure
        if death:
            self._tell_death(death, reported)
        return code

    def _tell_death(self, death: Diagnosis, report: StartReport) -> None:
        """Tell why a server ended after it had served; raise GpuLost if another start follows.

        A server that ends by the backend's fault has lost its GPU, too. Where it is not started
        again, its exit code stays what it is.
        """
        receipt = self.installed.receipt
        cause = f"the server ended after it had served: {death.cause}"
        hint = death.hint(receipt.backend, receipt.reinstall, receipt.takes)
        again = self.session.settings.on_gpu_loss in ("restart", "fallback")
        if again and death.fault == "backend" and receipt.backend != "cpu":
            if self.how.sink:
                self.how.sink(report._replace(ready=False))
            # What follows says it: the next start, or the error.
            raise GpuLost(cause, facts=death.facts, hint=hint)
        self._warn(LaunchError(cause, facts=death.facts, hint=hint))

    def _warming(self, placed: Placed, caches: BuildCaches) -> Warming | None:
        """Return the listener to a warm-up; None if this start shall have none."""
        settings, check, plan = self.session.settings, placed.check, placed.plan
        # Without the short request no other one is wanted either.
        if not (settings.warm_up and settings.canary) or plan.backend == "cpu" or check.problem:
            return None
        from tsuku_llm.steps.drivers.warming import Warming, compiled_code

        drivers = driver_fingerprint(self.session.machine.environ) or ()
        warming = Warming(
            self.session.user.note,
            caches,
            plan.backend,
            compiled_code(self.installed.id, drivers, check.devices or (), plan),
            self.how.on_compiling,
            machine_code=has_machine_code(check),
        )
        return warming if warming.is_needed else None

    def _tell_judging(self) -> None:
        from tsuku_llm.launch.gpu.observation import LOOK_LIMIT

        self.session.user.note(
            "the model is loaded; with --require-gpu the server is ready when its first answer "
            f"shows where it computes, within {LOOK_LIMIT:.0f} seconds"
        )

    def _on_signal(self, number: int) -> None:
        # Before the server gets it: the caller's own requests to the server end then, too.
        if self.how.stop_handle:
            self.how.stop_handle.signalled = number
        if self.how.on_signal:
            self.how.on_signal(number)

    def _own_stop_handle(self) -> StopHandle:
        """Return a stop handle for this start only.

        The end of this start must not end the next variant's, which shares the outer stop handle.
        """
        from tsuku_llm.launch.run.supervise import StopHandle

        outer = self.how.stop_handle
        own = StopHandle()
        if outer:
            # If the outer handle was used before, this ends the start as soon as it begins.
            outer.attach(lambda: own.end(outer.reason or ""))
        if self.how.reload:
            reload = self.how.reload
            reload.attach(lambda: own.end(reload.reason or ""))
        return own

    def _offer_update(self) -> None:
        from tsuku_llm.steps.metadata.update_notice import offer_update

        offer_update(self.session, self.installed.id)

    def _draft(self, placed: Placed) -> StartReport:
        """Return the report as it is before anything runs."""
        receipt = self.installed.receipt
        now = clock.now() if self.restarts else self.session.machine.now
        return StartReport(
            name=self.how.name,
            release=receipt.release,
            id=self.installed.id,
            requested=self.session.settings.backend,
            detected=receipt.detected,
            selected=receipt.variant,
            supervisor=os.getpid(),
            pid=os.getpid(),
            host="127.0.0.1",
            port=None,
            started_at=clock.stamp(now),
            fallen_back_from=self.failed,
            restarts=self.restarts,
            placement=placed.placement,
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
        from dataclasses import replace

        facts, fix = explain(
            check.build.backend, self.session.machine.host, self.session.settings.probe_timeout
        )
        problem = replace(check.problem, fix=fix or check.problem.fix)
        error = SilentCpu(
            f"the {check.build.backend} build would run on the CPU: {problem.cause}",
            facts=(*facts, *check.facts),
            hint=problem.hint(check.build.backend, check.build.reinstall),
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
        # The GPU may be gone without a sign that ``launch.plan.fingerprint`` could read.
        self.notes.forget_devices()
        self._warn(error)

    def _on_problem(self, problem: ServerProblem) -> None:
        from tsuku_llm.launch.gpu.life import OVER, UNREAD, hint_for

        if problem.kind in (OVER, UNREAD):
            self.session.user.note(problem.text)
        else:
            hint = hint_for(problem, is_ended=False)
            self._warn(GpuLost(problem.text, facts=problem.facts, hint=hint))

    def _warn(self, error: TsukuError) -> None:
        self.session.user.note(f"warning: {error.told}; {error.hint}")


# Its servers inherit the variable that has the key, and router_stream_delete of upstream's
# tools/server/server-models.cpp (b11434) asks them without one. They are not told of a file.
_ROUTER_KEY = (
    "warning: with this key a router's page cannot stop an answer or go on with one; give the key "
    "in a file: -- --api-key-file FILE"
)

_CACHE_ONLY = "the server offers the models of its own cache only"

_LONGEST = 2000
"""Characters of an explanation in the record of a server."""


def _with_words(plan: LaunchPlan, check: Check, *words: str) -> LaunchPlan:
    """Add arguments of ours; the user's stay last, as behind the devices of a placement."""
    at = 1 + len(check.build.arguments)
    return plan._replace(argv=(*plan.argv[:at], *words, *plan.argv[at:]))


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
            if report.ready and report.is_judged and not self._has_served:
                self._has_served = True

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
