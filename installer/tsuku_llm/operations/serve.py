"""Launch what is installed. This module and what it imports is all that ``serve`` loads."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tsuku_llm import launch
from tsuku_llm.errors import BackendFailed, NotInstalled, SilentCpu
from tsuku_llm.operations.device_check import Check, check_devices, explain
from tsuku_llm.operations.fallback import next_version, remembered
from tsuku_llm.operations.memory import Memory
from tsuku_llm.operations.notices import offer_update
from tsuku_llm.operations.session import Session, working_folder
from tsuku_llm.operations.vouching import vouch
from tsuku_llm.store import Installed, Receipt, Store, check_ancestors


def _nobody(_report: launch.StartReport) -> None:
    """Do nothing with a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a server is to be started.

    ``name`` is its own among several. ``replace`` becomes the server instead of watching it
    (systemd, containers). ``require_gpu`` ends a server that is not on the GPU. ``verify``
    hashes every file first. ``sink`` is given each state of the start, from a thread, and
    must not raise; ``leash`` ends the server from another thread.
    """

    name: str = "default"
    replace: bool = False
    require_gpu: bool = False
    verify: bool = False
    sink: launch.Sink = _nobody
    leash: launch.Leash = field(default_factory=launch.Leash)


@dataclass(frozen=True, slots=True)
class Planned:
    """What would be started: ``env`` is the part of the environment that the build reads.

    ``removed`` are the variables that it does not get, as they would put foreign code into it.
    """

    version: str
    line: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    removed: tuple[str, ...] = ()


def serve(session: Session, arguments: Sequence[str], how: Serving) -> int:
    """Check the installed tree, then run its server with ``arguments``; its exit code.

    Where its backend fails, the next variant is started, if the settings or the user allow
    it. The server holds its version for as long as it lives, so that nobody removes it.

    Raises ``NotInstalled``, ``TamperedInstall``, ``Revoked``, ``LaunchError`` and, with
    ``require_gpu``, ``SilentCpu``.
    """
    preferred = wanted(session.store, session)
    memory = Memory(session.state, launch.driver_fingerprint(session.environ))
    installed = remembered(session, memory, preferred) or preferred
    failed: list[launch.FallenBack] = []
    while True:
        start = _Start(session, arguments, how, installed, memory, tuple(failed))
        try:
            return start.make()
        except (BackendFailed, SilentCpu) as error:
            failed.append(launch.FallenBack(installed.receipt.variant, error.message))
            gpu_only = how.require_gpu
            other = next_version(session, memory, preferred, failed, gpu_only=gpu_only)
            if other:
                installed = other
            elif isinstance(error, SilentCpu) and not how.require_gpu:
                return replace(start, insist=True).make()
            else:
                raise


def planned(session: Session, arguments: Sequence[str]) -> Planned:
    """What ``serve`` would start; nothing is started or checked. Raises ``NotInstalled``."""
    installed = wanted(session.store, session)
    build = build_of(installed)
    plan = launch.plan(build, arguments, cwd=working_folder(), environ=session.environ)
    return planned_start(installed, plan, session.environ)


def planned_start(installed: Installed, plan: launch.Plan, environ: Mapping[str, str]) -> Planned:
    """A plan as it is shown: variables that change what a build does, without their secrets."""
    told = {name: value for name, value in sorted(plan.env.items()) if name.startswith(_TOLD)}
    shown = {name: "***" if _SECRET.search(name) else value for name, value in told.items()}
    removed = tuple(sorted(environ.keys() - plan.env.keys()))
    return Planned(installed.id, installed.receipt.line, plan.argv, plan.cwd, shown, removed)


_TOLD = ("LLAMA_", "GGML_", "LD_LIBRARY_PATH")
"""Environment variables that change what a build does without standing in its arguments."""

_SECRET = re.compile(r"KEY$|TOKEN|PASSWORD|SECRET")


@dataclass(frozen=True, slots=True)
class _Start:
    """One version's start; ``failed`` was tried before it.

    With ``insist`` it is made on the CPU, too: there is no other version.
    """

    session: Session
    arguments: Sequence[str]
    how: Serving
    installed: Installed
    memory: Memory
    failed: tuple[launch.FallenBack, ...]
    insist: bool = False

    def make(self) -> int:
        """Check, start, and stay until the server ends; its exit code."""
        installed, store = self.installed, self.session.store
        with store.hold(installed) as held:
            check_ancestors(installed.tree)
            store.check(installed, full=self.how.verify)
            vouch(self.session, installed.receipt)
            self.session.note(installed.receipt.line)
            check = check_devices(
                build_of(installed), installed.id, self.memory, self.session.environ
            )
            plan = launch.plan(
                check.build, self.arguments, cwd=working_folder(), environ=self.session.environ
            )
            self._require_devices(check, plan)
            return self._run(check, plan, () if held is None else (held,))

    def _run(self, check: Check, plan: launch.Plan, keep: tuple[int, ...]) -> int:
        if self.how.replace:
            self._recheck()  # the last moment at which anything can be
            self.how.sink(self._draft())
            return launch.replace(plan, keep=keep)
        start = launch.Start(
            build=check.build,
            plan=plan,
            draft=self._draft(),
            listed=check.devices,
            require_gpu=self.how.require_gpu,
            files=tuple(file.path.rpartition("/")[2] for file in self.installed.receipt.files),
            recheck=self._recheck,
            beside=lambda: offer_update(self.session, self.installed.id),
            warn=self._warn if check.problem is None else lambda _: None,
        )
        watch = launch.Watch(start, self.how.sink, self.how.leash)
        code = launch.supervise(plan, keep=keep, leash=self.how.leash, observer=watch)
        if watch.failure:
            raise watch.failure
        return code

    def _recheck(self) -> None:
        self.session.store.check(self.installed)

    def _draft(self) -> launch.StartReport:
        """The report as it is before anything runs."""
        receipt = self.installed.receipt
        return launch.StartReport(
            name=self.how.name,
            release=receipt.release,
            version=self.installed.id,
            requested=self.session.backend,
            detected=receipt.detected,
            selected=receipt.variant,
            verification="hash" if self.how.verify else "fingerprint",
            supervisor=os.getpid(),
            pid=os.getpid(),
            host="127.0.0.1",
            port=None,
            started_at=self.session.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            fallen_back_from=self.failed,
        )

    def _require_devices(self, check: Check, plan: launch.Plan) -> None:
        """Refuse a start on the CPU that nobody wants; say aloud one that is let pass.

        Raises ``SilentCpu``.
        """
        if check.complaint:
            self.session.note(f"warning: {check.complaint}")
        refusal = launch.refusal_in(plan.argv, plan.env)
        if refusal and self.how.require_gpu:
            raise SilentCpu(
                "a GPU is required, and the arguments keep the server from it",
                facts=(refusal,),
                hint="leave it out, or leave out --require-gpu",
            )
        if check.problem is None or refusal:
            return
        facts, fix = explain(self.session, check.build.backend)
        error = SilentCpu(
            f"the {check.build.backend} build would run on the CPU: {check.problem.cause}",
            facts=(*facts, *check.facts),
            hint=f"{fix or check.problem.fix}; or run on the CPU: {launch.CPU_OVERRIDE}",
        )
        if self.how.require_gpu or (self.session.fallback != "off" and not self.insist):
            raise error
        self._warn(error)

    def _warn(self, error: SilentCpu) -> None:
        self.session.note(f"warning: {'; '.join((error.message, *error.facts))}; {error.hint}")


def which(session: Session) -> Path:
    """The path of the server that ``serve`` would start."""
    installed = wanted(session.store, session)
    return installed.tree / installed.receipt.server


def installed_versions(session: Session) -> tuple[tuple[Installed, ...], Installed | None]:
    """Everything that is installed, and which of it is active."""
    store = session.store
    return store.installed(), store.active()


def wanted(store: Store, session: Session) -> Installed:
    """The active version, or another installed one if only that is of the requested backend.

    A choice of the user's is never replaced by what happens to be there.
    """
    active = store.active()
    if active and meets(active.receipt, session.backend):
        return active
    for installed in store.installed():
        if meets(installed.receipt, session.backend):
            return installed
    if active is None:
        raise NotInstalled("nothing is installed yet", hint="run: tsuku-llm install")
    raise NotInstalled(
        f"the backend {session.backend} is requested, and {active.receipt.variant} is installed",
        hint=f"run: tsuku-llm install --backend {session.backend}",
    )


def meets(receipt: Receipt, backend: str) -> bool:
    """Whether an installed variant is what the request asks for."""
    if backend == "gpu":
        return receipt.backend != "cpu"
    return backend in ("auto", receipt.backend, receipt.variant)


def build_of(installed: Installed) -> launch.Build:
    """What ``launch`` needs to know of an installed version."""
    receipt = installed.receipt
    return launch.Build(
        tree=installed.tree,
        server=receipt.server,
        backend=receipt.backend,
        arguments=receipt.arguments,
        device=receipt.device,
    )
