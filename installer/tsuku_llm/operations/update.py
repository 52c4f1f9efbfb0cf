"""Look for a newer release, and move to it without ever going back."""

from __future__ import annotations

from dataclasses import dataclass

from tsuku_llm import catalog as catalogs
from tsuku_llm import fetch
from tsuku_llm.errors import NotInstalled
from tsuku_llm.operations.choice import Choice, choose
from tsuku_llm.operations.install import InstallReport, install_choice, passed_over
from tsuku_llm.operations.session import Session
from tsuku_llm.store import Installed, Receipt, Store


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What an update would change.

    ``newer`` tells whether ``choice.release`` is newer than what is installed: a release
    that is older is never offered. ``download_size`` is in bytes, None where unknown.
    """

    installed: Installed
    choice: Choice
    newer: bool

    @property
    def download_size(self) -> int | None:
        """Bytes that the update would fetch."""
        return self.choice.selection.selected.variant.download_size


def check_update(session: Session) -> UpdateReport:
    """Fetch the repository's metadata and compare its newest release with the installed one.

    The repository and channel are those that the active version came from, unless the
    session names others. Raises ``NotInstalled``, ``DownloadError``, ``MetadataError``.
    """
    active = Store(session.data).active()
    if active is None:
        raise NotInstalled("nothing is installed yet", hint="run: tsuku-llm install")
    repository = catalogs.repository(session.data, session.repository, session.repository_url)
    with fetch.Network(session.environ) as network:
        catalogs.refresh(
            repository, session.data, lambda url, limit: fetch.get(url, limit, network)
        )
    choice = choose(session, channel=session.channel or active.receipt.channel)
    return UpdateReport(active, choice, _is_newer(choice, active.receipt))


def update(session: Session) -> InstallReport:
    """Install the newest release of the channel if it is newer; the old version stays."""
    report = check_update(session)
    if report.newer:
        return install_choice(session, report.choice)
    candidate = report.choice.selection.selected
    reasons = passed_over(report.choice, candidate, {})
    return InstallReport("unchanged", report.choice, candidate, reasons, report.installed)


def _is_newer(choice: Choice, receipt: Receipt) -> bool:
    """By the signed sequence numbers; a release that the catalog no longer has is older."""
    sequences = {entry.release: entry.sequence for entry in choice.catalog.entries}
    return sequences[choice.release.release] > sequences.get(receipt.release, -1)
