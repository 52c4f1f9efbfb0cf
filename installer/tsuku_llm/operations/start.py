"""The start of one version: check, plan, start, and follow it to its end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from tsuku_llm import launch
from tsuku_llm.errors import SilentCpu
from tsuku_llm.operations.device_check import Check, check_devices, explain
from tsuku_llm.operations.memory import Memory
from tsuku_llm.operations.session import Session, working_folder
from tsuku_llm.operations.vouching import vouch
from tsuku_llm.store import Installed


class Serving(NamedTuple):
    """The way in which a server is to be started.

    ``name`` tells it from other servers. ``replace`` makes this process become the server instead
    of watching it (systemd, containers). ``require_gpu`` ends a server that is not on the GPU.
    ``verify`` hashes every file first. ``one_stream`` merges its stdout into its stderr. ``sink``
    gets each state of the start, from a thread, and must not raise. ``leash`` ends the server from
    another thread.
    """

    name: str = "default"
    replace: bool = False
    require_gpu: bool = False
    verify: bool = False
    one_stream: bool = False
    sink: launch.Sink | None = None
    leash: launch.Leash | None = None


class Start(NamedTuple):
    """The start of one version; ``failed`` are the variants that were tried before it.

    With ``insist`` the server may also start on the CPU: all other versions have failed.
    """

    session: Session
    arguments: Sequence[str]
    how: Serving
    installed: Installed
    memory: Memory
    failed: tuple[launch.FallenBack, ...]
    insist: bool = False

    def make(self) -> int:
        """Check, start, and stay until the server ends; return its exit code."""
        installed, shelf = self.installed, self.session.shelf
        self._require_gpu_build()
        # From here on other processes cannot remove this version; the server inherits the
        # descriptor and keeps the hold.
        with shelf.hold(installed) as held:
            # Check under the hold, so that what was checked is what starts.
            shelf.check(installed, full=self.how.verify)
            vouch(self.session, installed.receipt)
            self.session.user.note(installed.receipt.line)
            check = check_devices(
                build_of(installed), installed.id, self.memory, self.session.machine.environ
            )
            plan = launch.plan(
                check.build,
                self.arguments,
                cwd=working_folder(),
                environ=self.session.machine.environ,
            )
            self._require_devices(check, plan)
            return self._run(check, plan, () if held is None else (held,))

    def _run(self, check: Check, plan: launch.Plan, keep: tuple[int, ...]) -> int:
        # After exec this program is gone: everything that it has to do comes before.
        if self.how.replace:
            self._recheck()  # the last moment at which this is possible
            if self.how.sink:
                self.how.sink(self._draft())
            return launch.replace(plan, keep=keep)
        start = launch.Start(
            build=check.build,
            plan=plan,
            draft=self._draft(),
            listed=check.devices,
            require_gpu=self.how.require_gpu,
            files=tuple(file.path.rpartition("/")[2] for file in self.installed.receipt.files),
            # The thread that follows the start calls these three while the server runs.
            recheck=self._recheck,
            beside=self._offer_update,
            warn=self._warn if check.problem is None else lambda _: None,
        )
        leash = self._own_leash()
        followed = launch.Watch(start, self.how.sink or _nobody, leash)
        code = launch.supervise(
            plan, keep=keep, leash=leash, observer=followed, one_stream=self.how.one_stream
        )
        # The caller reads this from the leash that it gave us.
        if self.how.leash:
            self.how.leash.signalled = leash.signalled
        if followed.failure:
            raise followed.failure
        return code

    def _own_leash(self) -> launch.Leash:
        """Return a leash for this start only.

        The end of this start must not end the next variant's, which shares the outer leash.
        """
        outer = self.how.leash
        if outer is None:
            return launch.Leash()
        own = launch.Leash(outer.grace)
        # If the outer leash was pulled before, this ends the start as soon as it begins.
        outer.attach(lambda: own.end(outer.reason or ""))
        return own

    def _offer_update(self) -> None:
        from tsuku_llm.operations.notices import offer_update  # noqa: PLC0415 - starts a process

        offer_update(self.session, self.installed.id)

    def _recheck(self) -> None:
        self.session.shelf.check(self.installed)

    def _draft(self) -> launch.StartReport:
        """Return the report as it is before anything runs."""
        receipt = self.installed.receipt
        return launch.StartReport(
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
            started_at=self.session.machine.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            fallen_back_from=self.failed,
        )

    def _require_gpu_build(self) -> None:
        """Refuse a CPU build if a GPU is required. Raises ``SilentCpu``."""
        if self.how.require_gpu and self.installed.receipt.backend == "cpu":
            raise SilentCpu(
                f"a GPU is required, and {self.installed.id} is a build for the processor",
                hint="see why: tsuku-llm explain; for a GPU: tsuku-llm install --backend gpu",
            )

    def _require_devices(self, check: Check, plan: launch.Plan) -> None:
        """Refuse an unwanted start on the CPU; print a warning for one that is allowed.

        Raises ``SilentCpu``.
        """
        if check.complaint:
            self.session.user.note(f"warning: {check.complaint}")
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
        if self.how.require_gpu or (self.session.settings.fallback != "off" and not self.insist):
            raise error
        self._warn(error)

    def _warn(self, error: SilentCpu) -> None:
        self.session.user.note(f"warning: {'; '.join((error.message, *error.facts))}; {error.hint}")


def _nobody(_report: launch.StartReport) -> None:
    """Do nothing with a report."""


def build_of(installed: Installed) -> launch.Build:
    """Return what ``launch`` needs to know of an installed version."""
    receipt = installed.receipt
    return launch.Build(
        tree=installed.tree,
        server=receipt.server,
        backend=receipt.backend,
        arguments=receipt.arguments,
        device=receipt.device,
    )
