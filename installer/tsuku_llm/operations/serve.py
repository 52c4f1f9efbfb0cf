"""Launch what is installed. This module and what it imports is all that ``serve`` loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tsuku_llm import launch
from tsuku_llm.errors import BackendFailed, NotInstalled, SilentCpu
from tsuku_llm.operations.fallback import next_version, remembered
from tsuku_llm.operations.memory import Memory
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.start import Serving, Start
from tsuku_llm.store import Installed, Receipt, Shelf


def serve(session: Session, arguments: Sequence[str], how: Serving) -> int:
    """Check the installed tree, then run its server with ``arguments``; its exit code.

    Where its backend fails, the next variant is started, if the settings or the user allow
    it. The server holds its version for as long as it lives, so that nobody removes it.

    Raises ``NotInstalled``, ``TamperedInstall``, ``Revoked``, ``LaunchError`` and, with
    ``require_gpu``, ``SilentCpu``.
    """
    preferred = wanted(session.shelf, session)
    memory = Memory(session.state, launch.driver_fingerprint(session.environ))
    installed, failed = remembered(session, memory, preferred, gpu_only=how.require_gpu)
    while True:
        start = Start(session, arguments, how, installed, memory, tuple(failed))
        try:
            return start.make()
        except (BackendFailed, SilentCpu) as error:
            failed.append(launch.FallenBack(installed.receipt.variant, error.message))
            other = next_version(session, memory, preferred, failed, gpu_only=how.require_gpu)
            if other:
                installed = other
            elif isinstance(error, SilentCpu) and not how.require_gpu:
                return start._replace(insist=True).make()
            else:
                raise


def which(session: Session) -> Path:
    """The path of the server that ``serve`` would start."""
    installed = wanted(session.shelf, session)
    return installed.tree / installed.receipt.server


def installed_versions(session: Session) -> tuple[tuple[Installed, ...], Installed | None]:
    """Everything that is installed, and which of it is active."""
    shelf = session.shelf
    return shelf.installed(), shelf.active()


def wanted(shelf: Shelf, session: Session) -> Installed:
    """The active version, or another installed one if only that is of the requested backend.

    A choice of the user's is never replaced by what happens to be there.
    """
    active = shelf.active()
    if active and meets(active.receipt, session.backend):
        return active
    for installed in shelf.installed():
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
