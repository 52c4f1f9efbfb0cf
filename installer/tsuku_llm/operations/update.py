"""Look for a newer release, and move to it without ever going back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tsuku_llm import fetch
from tsuku_llm.errors import (
    NotInstalled,
    SelectionError,
    StoreError,
    TrustError,
    UnknownRequest,
)
from tsuku_llm.operations.changes import FitChange, fit_changes
from tsuku_llm.operations.choice import Choice, choose, tell_temporary
from tsuku_llm.operations.install import InstallReport, install_choice, passed_over
from tsuku_llm.operations.notices import Offer, remember
from tsuku_llm.operations.refresh import refresh
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.space import Space
from tsuku_llm.operations.supplying import unsupplied
from tsuku_llm.operations.vouching import known, revoked
from tsuku_llm.revocations import Revocation
from tsuku_llm.selection import Candidate, Request, select
from tsuku_llm.store import Installed, Receipt, version_id


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What an update would change.

    ``newer`` tells whether ``choice.release`` is newer than what is installed: a release
    that is older is never offered. ``revocation`` is about the installed one. ``download`` is
    in bytes, without what an earlier run left; None where the manifest does not say.
    ``changes`` are the variants that fit in one of the two releases only.
    """

    installed: Installed
    choice: Choice
    newer: bool
    revocation: Revocation | None
    download: int | None
    changes: tuple[FitChange, ...]

    @property
    def candidate(self) -> Candidate | None:
        """What would be installed; None when no variant of the newest release fits here."""
        return next(iter(self.choice.selection.compatible), None)

    @property
    def replaced(self) -> str | None:
        """Why the installed variant is not the one to come; None where it is."""
        candidate, name = self.candidate, self.installed.receipt.variant
        if candidate is None or candidate.variant.name == name:
            return None
        missing = f"{self.choice.release.release} has no such variant"
        return passed_over(self.choice, candidate, {}).get(name, missing)

    @property
    def way_back(self) -> str | None:
        """How to leave a revoked release where there is nothing newer; an update never does."""
        if not self.revocation or self.newer:
            return None
        return f"go back: tsuku-llm install --release {self.choice.release.release}"


def check_update(session: Session) -> UpdateReport:
    """Fetch the repository's metadata and compare its newest release with the installed one.

    Repository, channel and backend are those that the active version came from, unless the
    user names others. What was found is remembered for the notice of ``serve``. Raises
    ``NotInstalled``, ``DownloadError``, ``MetadataError``, and ``Revoked`` where nothing
    in the channel may be used.
    """
    active = session.shelf.active()
    if active is None:
        raise NotInstalled("nothing is installed yet", hint="run: tsuku-llm install")
    session = _as_installed(session, active.receipt)
    choice = choose(session, catalog=refresh(session))
    report = UpdateReport(
        active,
        choice,
        newer=choice.sequence > active.receipt.sequence,
        revocation=known(session, verify=True).revocation(active.receipt),
        download=_download(session, choice),
        changes=_changes(choice, active.receipt),
    )
    remember(session, active.id, _offer(report))
    return report


def update(session: Session) -> InstallReport:
    """Install the newest release of the channel if it is newer; the old version stays.

    Raises ``SelectionError`` when it would put a server of the GPU on the processor for
    something that passes, such as a driver that waits for a reboot, and ``Revoked`` when
    what is installed was revoked and nothing newer is there. What a crash left is removed
    in any case.
    """
    report = check_update(session)
    if report.newer:
        _require_lasting(report)
        tell_temporary(session, report.choice)
        if report.replaced:
            session.note(f"{report.installed.receipt.variant} is replaced: {report.replaced}")
        return install_choice(session, report.choice)
    candidate = report.choice.selection.selected
    session.store.sweep()
    session.store.drop_downloads(report.installed.receipt.digests)
    if report.revocation and report.way_back:
        raise revoked(report.installed.receipt.release, report.revocation, report.way_back)
    reasons = passed_over(report.choice, candidate, {})
    return InstallReport("unchanged", report.choice, candidate, reasons, report.installed)


def _as_installed(session: Session, receipt: Receipt) -> Session:
    """The session, with the choices that were made for what is installed."""
    return session._replace(
        repository=session.repository or receipt.repository,
        channel=session.channel or receipt.channel,
        backend=session.backend if session.backend_chosen else receipt.requested,
    )


def _download(session: Session, choice: Choice) -> int | None:
    candidate = next(iter(choice.selection.compatible), None)
    if candidate is None:
        return None
    artifacts = candidate.variant.artifacts
    digests = (artifact.sha256 for artifact in artifacts)
    version = version_id(choice.release.release, candidate.variant.name, digests)
    with suppress(StoreError):
        if session.shelf.find(version):
            return 0
    if candidate.variant.download_size is None:
        return None
    missing = unsupplied(session.store, artifacts)
    present = [fetch.present(artifact, session.store.partials) for artifact in missing]
    return Space(missing, present).missing


def _changes(choice: Choice, receipt: Receipt) -> tuple[FitChange, ...]:
    """What fits on this machine before and after, whatever backend is asked for."""
    with suppress(UnknownRequest, TrustError, StoreError):
        before = choice.catalog.read(choice.catalog.entry(receipt.release))
        anything = Request()
        return fit_changes(
            select(before, choice.hardware, anything),
            select(choice.release, choice.hardware, anything),
        )
    return ()


def _offer(report: UpdateReport) -> Offer | None:
    release = report.choice.release
    if not report.newer or report.candidate is None:
        return None
    return Offer(release.release, release.version)


def _require_lasting(report: UpdateReport) -> None:
    problems = [each for each in report.choice.hardware.all_problems if each.transient]
    leaves_gpu = report.installed.receipt.backend != "cpu" and (
        report.candidate is None or report.candidate.variant.backend == "cpu"
    )
    if problems and leaves_gpu:
        raise SelectionError(
            "the GPU cannot be used for now, so the update would put the server on the processor",
            facts=tuple(problem.text for problem in problems),
            hint=problems[0].fix,
        )
