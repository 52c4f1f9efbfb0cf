"""Launch what is installed. This module and what it imports is all that ``serve`` loads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm import launch
from tsuku_llm.errors import NotInstalled
from tsuku_llm.operations.notices import offer_update
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.vouching import vouch
from tsuku_llm.store import Installed, Receipt, Store, check_ancestors


def _nobody(_report: launch.StartReport) -> None:
    """Do nothing with a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a server is to be started.

    ``name`` is its own among several. ``replace`` becomes the server instead of watching it
    (systemd, containers). ``require_gpu`` ends a server that is not on the GPU. ``sink`` is
    given each state of the start, from a thread, and must not raise; ``leash`` ends the
    server from another thread.
    """

    name: str = "default"
    replace: bool = False
    require_gpu: bool = False
    sink: launch.Sink = _nobody
    leash: launch.Leash | None = None


def serve(session: Session, arguments: Sequence[str], how: Serving = Serving()) -> int:
    """Check the installed tree, then run its server with ``arguments``; its exit code.

    The server holds its version for as long as it lives, so that nobody removes it. Raises
    ``NotInstalled``, ``TamperedInstall``, ``Revoked``, ``LaunchError`` and, with
    ``require_gpu``, ``SilentCpu``.
    """
    store = session.store
    installed = wanted(store, session)
    with store.hold(installed) as held:
        check_ancestors(installed.tree)
        store.check(installed)
        vouch(session, installed.receipt)
        if not how.replace:
            offer_update(session, installed.id)
        session.note(installed.receipt.line)
        build = build_of(installed)
        plan = launch.plan(build, arguments, cwd=Path.cwd(), environ=session.environ)
        keep = () if held is None else (held,)
        start = launch.Start(
            build=build,
            plan=plan,
            draft=_draft(session, installed, how),
            require_gpu=how.require_gpu,
            files=tuple(file.path.rpartition("/")[2] for file in installed.receipt.files),
            recheck=lambda: store.check(installed),
        )
        if how.replace:
            how.sink(start.draft)
            return launch.replace(plan, keep=keep)
        leash = how.leash or launch.Leash()
        watch = launch.Watch(start, how.sink, leash)
        code = launch.supervise(plan, keep=keep, leash=leash, observer=watch)
        if watch.failure:
            raise watch.failure
        return code


def _draft(session: Session, installed: Installed, how: Serving) -> launch.StartReport:
    """The report as it is before anything runs."""
    receipt = installed.receipt
    return launch.StartReport(
        name=how.name,
        release=receipt.release,
        version=installed.id,
        requested=session.backend,
        detected=receipt.detected,
        selected=receipt.variant,
        verification="fingerprint",
        supervisor=os.getpid(),
        pid=os.getpid(),
        host="127.0.0.1",
        port=None,
        started_at=session.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


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
