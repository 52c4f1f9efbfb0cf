"""The trial of a build on this machine: it starts, lists its devices, and computes rightly.

An install tries what it has staged. What is installed is tried again when the drivers, the devices
or the kernel have changed since, and when a user asks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground.files import drop_tree
from tsuku_llm.launch.plan.fingerprint import choice_digest, driver_fingerprint
from tsuku_llm.launch.plan.planning import Build
from tsuku_llm.launch.run.computing import Computation, compute
from tsuku_llm.launch.run.gate import GateReport, gate
from tsuku_llm.steps.choosing.which import build_of
from tsuku_llm.steps.drivers.caches import build_caches
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import Receipt


class TriedBuild(NamedTuple):
    """What a build has shown that runs and computes here.

    ``device`` is what a start passes to it, and ``computed_on`` the digest of the drivers and
    devices, empty if they are not known.
    """

    report: GateReport
    device: str | None
    computation: Computation
    computed_on: str

    def noted(self, receipt: Receipt) -> Receipt:
        """Return the receipt with what the build takes, how rightly it computed, and on what."""
        return receipt._replace(
            takes=self.report.takes,
            reads_config=self.report.reads_config,
            deviation=self.computation.deviation,
            not_computed=self.computation.not_computed,
            computed_on=self.computed_on,
        )


def try_build(
    session: Session,
    build: Build,
    folder: Path,
    device: Callable[[GateReport], str | None],
    *,
    expected: str | None = None,
    on_slow: Callable[[], None] = lambda: None,
) -> TriedBuild:
    """Start a build, ask for its devices, and let it compute on the ``device`` of the answer.

    ``folder`` is made for the reference models, and removed. ``expected`` is the name of the device
    that the build was chosen for. Raises ``GateFailed`` if it does not run or compute here.
    """
    environ = session.machine.environ
    # Before: a driver that is exchanged meanwhile has to be tried once more.
    digest = choice_digest(driver_fingerprint(environ))
    # What a driver compiles now stays there for the first start.
    with build_caches(build.backend, session.paths, environ, session.user.note) as caches:
        report = gate(build, caches.environ, expected=expected)
        chosen = device(report)
        computation = compute(build, caches.environ, chosen, folder, on_slow=on_slow)
    return TriedBuild(report, chosen, computation, digest)


def try_installed(session: Session, installed: Installed) -> Receipt:
    """Try an installed build; return its receipt with the result of now, which is not written.

    Raises ``GateFailed`` as ``try_build`` does, and ``TamperedInstall`` for changed files.
    """
    receipt = installed.receipt

    def device(report: GateReport) -> str | None:
        listed = {each.name for each in report.devices}
        known = receipt.device is not None and listed.issuperset(receipt.device.split(","))
        # Drivers may name their devices in another way now: then the server chooses.
        return receipt.device if known else None

    def slow() -> None:
        session.user.note(f"{installed.id} computes; a GPU's driver may compile code first")

    try:
        # The store may be another user's, so the models lie elsewhere.
        folder = Path(tempfile.mkdtemp(prefix="tsuku-llm-"))
    except OSError as error:
        return receipt._replace(deviation=None, not_computed=str(error), computed_on="")
    try:
        # Other processes cannot remove the build meanwhile.
        with session.reader.hold(installed):
            session.reader.admit(installed)
            tried = try_build(session, build_of(installed), folder / "models", device, on_slow=slow)
    finally:
        drop_tree(folder)
    return tried.noted(receipt)


def tried_since_a_change(session: Session, installed: Installed) -> Receipt:
    """Try an installed build if it computed on other drivers, devices or another kernel.

    Return its receipt, with the result of now if it was tried. Raises as ``try_installed``.
    """
    now = choice_digest(driver_fingerprint(session.machine.environ))
    # Unknown counts as changed: the answers of a build cost a second, wrong ones cost more.
    if now and now == installed.receipt.computed_on:
        return installed.receipt
    if installed.receipt.computed_on:
        session.user.note(
            f"drivers, devices or the kernel have changed since {installed.id} computed here: "
            "its answers are checked again"
        )
    return try_installed(session, installed)
