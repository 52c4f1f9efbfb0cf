"""Look for a newer release, and move to it without ever going back."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tsuku_llm.errors import NotInstalled, SelectionError
from tsuku_llm.operations.choice import Choice, choose, tell_temporary
from tsuku_llm.operations.install import InstallReport, install_choice, passed_over
from tsuku_llm.operations.refresh import refresh
from tsuku_llm.operations.session import Session
from tsuku_llm.selection import Candidate
from tsuku_llm.store import Installed


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What an update would change.

    ``newer`` tells whether ``choice.release`` is newer than what is installed: a release
    that is older is never offered.
    """

    installed: Installed
    choice: Choice
    newer: bool

    @property
    def candidate(self) -> Candidate | None:
        """What would be installed; None when no variant of the newest release fits here."""
        return next(iter(self.choice.selection.compatible), None)


def check_update(session: Session) -> UpdateReport:
    """Fetch the repository's metadata and compare its newest release with the installed one.

    The repository and channel are those that the active version came from, unless the
    session names others. Raises ``NotInstalled``, ``DownloadError``, ``MetadataError``.
    """
    active = session.store.active()
    if active is None:
        raise NotInstalled("nothing is installed yet", hint="run: tsuku-llm install")
    session = replace(
        session,
        repository=session.repository or active.receipt.repository,
        channel=session.channel or active.receipt.channel,
    )
    choice = choose(session, catalog=refresh(session))
    return UpdateReport(active, choice, choice.sequence > active.receipt.sequence)


def update(session: Session) -> InstallReport:
    """Install the newest release of the channel if it is newer; the old version stays.

    Raises ``SelectionError`` when it would put a server of the GPU on the processor for
    something that passes, such as a driver that waits for a reboot. What a crash left is
    removed in any case.
    """
    report = check_update(session)
    if report.newer:
        _require_lasting(report)
        tell_temporary(session, report.choice)
        return install_choice(session, report.choice)
    candidate = report.choice.selection.selected
    session.store.sweep()
    session.store.drop_downloads(report.installed.receipt.digests)
    reasons = passed_over(report.choice, candidate, {})
    return InstallReport("unchanged", report.choice, candidate, reasons, report.installed)


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
