"""The launch of the installed server. ``serve`` imports only this module and what it imports."""

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
    """Check the installed tree, then run its server with ``arguments``; return its exit code.

    If its backend fails, this starts the next variant, provided that the settings or the user allow
    it. The server holds its version as long as it lives, so that other processes cannot remove it.

    Raises ``NotInstalled``, ``TamperedInstall``, ``Revoked``, ``LaunchError`` and, with
    ``require_gpu``, ``SilentCpu``.
    """
    preferred = requested_version(session.shelf, session)
    memory = Memory(session.paths.state, launch.driver_fingerprint(session.machine.environ))
    installed, failed = remembered(session, memory, preferred, gpu_only=how.require_gpu)
    # Each turn starts another variant: ``next_version`` goes down the ranking, so this ends.
    while True:
        start = Start(session, arguments, how, installed, memory, tuple(failed))
        try:
            return start.make()
        except (BackendFailed, SilentCpu) as error:
            failed.append(launch.FallenBack(installed.receipt.variant, error.message))
            other = next_version(session, memory, preferred, failed, gpu_only=how.require_gpu)
            if other:
                installed = other
            # No other variant runs: start this one on the CPU, as the user did not require a GPU.
            elif isinstance(error, SilentCpu) and not how.require_gpu:
                return start._replace(insist=True).make()
            else:
                raise


def which(session: Session) -> Path:
    """Return the path of the server that ``serve`` would start."""
    installed = requested_version(session.shelf, session)
    return installed.tree / installed.receipt.server


def installed_versions(session: Session) -> tuple[tuple[Installed, ...], Installed | None]:
    """Return all installed versions, and the active one."""
    shelf = session.shelf
    return shelf.installed(), shelf.active()


def requested_version(shelf: Shelf, session: Session) -> Installed:
    """Return the active version, or another installed one if only that has the requested backend.

    The user's choice is never replaced by another backend that happens to be installed. Raises
    ``NotInstalled``.
    """
    active, backend = shelf.active(), session.settings.backend
    if active and meets(active.receipt, backend):
        return active
    for installed in shelf.installed():
        if meets(installed.receipt, backend):
            return installed
    if active is None:
        raise NotInstalled("nothing is installed yet", hint="run: tsuku-llm install")
    raise NotInstalled(
        f"the backend {backend} is requested, and {active.receipt.variant} is installed",
        hint=f"run: tsuku-llm install --backend {backend}",
    )


def meets(receipt: Receipt, backend: str) -> bool:
    """Return whether an installed variant is what the request asks for."""
    if backend == "gpu":
        return receipt.backend != "cpu"
    return backend in ("auto", receipt.backend, receipt.variant)
