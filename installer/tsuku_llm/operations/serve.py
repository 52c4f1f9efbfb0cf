"""Launch what is installed. This module and what it imports is all that ``serve`` loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tsuku_llm import launch
from tsuku_llm.errors import NotInstalled
from tsuku_llm.operations.session import Session
from tsuku_llm.store import Installed, Receipt, Store, check_ancestors


def serve(session: Session, arguments: Sequence[str], *, replace: bool = False) -> int:
    """Check the installed tree, then run its server with ``arguments``; its exit code.

    ``replace`` becomes the server instead of watching it (systemd, containers). The server
    holds its version for as long as it lives, so that nobody removes it. Raises
    ``NotInstalled``, ``TamperedInstall`` and ``LaunchError``.
    """
    store = session.store
    installed = wanted(store, session)
    with store.hold(installed) as held:
        check_ancestors(installed.tree)
        store.check(installed)
        session.note(installed.receipt.line)
        plan = launch.plan(build_of(installed), arguments, cwd=Path.cwd(), environ=session.environ)
        run = launch.replace if replace else launch.supervise
        return run(plan, keep=() if held is None else (held,))


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
