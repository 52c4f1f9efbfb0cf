"""The update to a newer release; it never goes back to an older one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from tsuku_llm.catalog.revocations import Revocation
from tsuku_llm.choose.selection import (
    Candidate,
    Request,
    platform_of,
    select,
    why_absent,
)
from tsuku_llm.ground.errors import (
    GateFailed,
    NotInstalled,
    StoreError,
    TrustError,
    UnknownRequest,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.launch.plan.fingerprint import choice_digest, driver_fingerprint
from tsuku_llm.steps.choosing.choice import (
    Choice,
    choose,
    refuse_revoked,
    require_lasting,
    staying,
    tell_temporary,
    way_out,
)
from tsuku_llm.steps.choosing.passing_over import RELEASE, YOUNG, PassedOver, take, texts
from tsuku_llm.steps.choosing.revocation import revoked, signed_status
from tsuku_llm.steps.choosing.temporary import (
    Withheld,
    over,
    rests_on_others,
    told_moved,
    withheld,
)
from tsuku_llm.steps.install.downloads import left_to_download
from tsuku_llm.steps.install.install import (
    InstallReport,
    better_than,
    install_choice,
    is_about,
    known_failures,
    passed_over,
)
from tsuku_llm.steps.install.trial import tried_since_a_change
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.metadata.update_notice import Offer, keep_offer
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import Receipt


@dataclass(frozen=True, slots=True)
class FitChange:
    """A variant that fits this machine in only one of two releases.

    ``fits`` is about the later release. ``reason`` says why the variant did not fit before, or does
    not fit now.
    """

    variant: str
    fits: bool
    reason: str


@documented(
    *("installed", "revocation", "choice", "newer", "candidate", "download", "replaced", "better"),
    *("changes", "not_compatible"),
)
@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What an update would change; ``candidate`` is None if it would install nothing.

    ``newer`` says whether the release of ``choice`` is newer than the installed one. An older
    release is never offered, unless ``llm.release`` names it for an unattended update.
    ``revocation`` is about the installed release. ``download`` is in bytes, without what an earlier
    run left; None if the manifest does not say. ``replaced`` is the reason why another variant
    would replace the installed one. ``changes`` are the variants that fit in only one of the two
    releases. ``better`` is the variant of the installed release that would be chosen now, if that
    is another one. ``over`` are the temporary states that kept the last install from it, and
    ``changed`` tells that it was chosen for other drivers or devices.
    """

    installed: Installed
    choice: Choice
    newer: bool
    revocation: Revocation | None
    download: int | None
    changes: tuple[FitChange, ...]
    better: Candidate | None = None
    over: tuple[Withheld, ...] = ()
    changed: bool = False

    @property
    def candidate(self) -> Candidate | None:
        """The candidate that the update would install; None if it would install nothing."""
        if self.newer:
            return self.choice.best
        return self.better if self.over or self.changed else None

    @property
    def replaced(self) -> str | None:
        """The reason why another variant would replace the installed one; None if it stays."""
        candidate, name = self.candidate, self.installed.receipt.variant
        if candidate is None or candidate.variant.name == name:
            return None
        if self.over or (self.changed and not self.newer):
            return told_moved(name, self.over)
        release = self.choice.release
        why = why_absent(platform_of(release, self.choice.hardware), name)
        missing = why or f"{release.release} has no such variant"
        return texts(passed_over(self.choice, candidate, {})).get(name, missing)

    @property
    def not_compatible(self) -> dict[str, str]:
        """Why each variant of the other release does not fit."""
        return {each.variant.name: each.reason.text for each in self.choice.selection.rejected}

    @property
    def way_back(self) -> str | None:
        """How to leave a revoked release without a newer one; an update never goes back."""
        if not self.revocation or self.newer:
            return None
        choice = self.choice
        # A setting keeps the user here, so the way out may also be a newer release.
        if choice.kept_by or any(each.slug == YOUNG for each in choice.passed_over):
            return way_out(choice.catalog, [choice.channel])
        return f"go back: {take(choice.release.release, choice.repository)}"


def check_update(session: Session, *, exact: bool = False) -> UpdateReport:
    """Fetch the repository's metadata and compare its newest release with the installed one.

    Repository, channel and backend are those of the active version, unless the user names others.
    With ``llm.release`` that release counts as the newest. With ``exact`` the one
    that ``llm.release`` names is offered also if it is older.
    The result is remembered for the note that ``serve`` prints. Raises ``NotInstalled``,
    ``DownloadError``, ``MetadataError``, and ``Revoked`` if the channel has only revoked releases.
    """
    active = session.reader.active()
    if active is None:
        raise NotInstalled("nothing is installed yet", hint=f"run: {TSUKU} install")
    settings = session.settings
    if active.receipt.unsigned is not None:
        return _left_alone(session, active)
    session = session.with_settings(
        repository=settings.repository or active.receipt.repository,
        channel=settings.channel or active.receipt.channel,
        backend=settings.backend if "backend" in settings.chosen else active.receipt.requested,
    )
    session = staying(session)
    choice = choose(session, catalog=refresh(session))
    newer = choice.sequence > active.receipt.sequence or (
        exact and choice.kept_by == RELEASE and not is_about(choice, active)
    )
    states = withheld(active.receipt, session.settings.backend)
    better = None if newer else better_than(session.reader, session.machine.environ, choice, active)
    report = UpdateReport(
        active,
        choice,
        newer=newer,
        revocation=signed_status(session, verify=True).revocation(active.receipt),
        download=None,
        changes=_changes(choice, active.receipt),
        better=better,
        over=over(states, choice.hardware, session.machine.environ) if better else (),
        changed=rests_on_others(
            active.receipt,
            session.settings.backend,
            choice_digest(driver_fingerprint(session.machine.environ)),
        ),
    )
    candidate = report.candidate
    report = replace(
        report, download=left_to_download(session, choice, candidate) if candidate else 0
    )
    # For the next start: only an update that fits this machine is worth a note.
    reason = None
    if candidate and not newer:
        reason = f"{report.replaced}; {candidate.variant.name} fits now"
    offer = Offer(choice.release.release, choice.release.version, reason)
    keep_offer(session.paths.state, active.id, offer if candidate else None)
    return report


def _left_alone(session: Session, active: Installed) -> UpdateReport:
    """Report that no update replaces a build of the user's own; this asks no host."""
    session.user.note(
        f"{active.id} is a build of your own, from {active.receipt.unsigned}: update leaves it "
        f"alone; for a signed one: {TSUKU} install"
    )
    keep_offer(session.paths.state, active.id, None)
    if session.settings.backend == active.receipt.variant:
        # Its own name, which no release has.
        session = session.with_settings(backend="auto")
    choice = choose(session)
    revocation = signed_status(session, verify=True).revocation(active.receipt)
    return UpdateReport(active, choice, newer=False, revocation=revocation, download=0, changes=())


@documented("outcome", "*report", "passed_over", "obstacle")
@dataclass(frozen=True, slots=True)
class UpToDate:
    """The result of an update that changes nothing; ``outcome`` is ``unchanged``.

    ``obstacle`` says why the active variant does not fit this machine any more. ``passed_over``
    says of each other variant why it is not in use.
    """

    report: UpdateReport
    passed_over: tuple[PassedOver, ...]
    obstacle: str | None = None
    outcome: str = "unchanged"


def update(session: Session) -> InstallReport | UpToDate:
    """Install the newest release of the channel if it is newer; the old version stays installed.

    If the installed release is the newest one, but was installed in a temporary state that is over,
    or for other drivers or devices, this installs the variant that fits better now.

    Raises ``SelectionError`` if the update would move a server from the GPU to the processor
    because of a passing problem, for example a driver that waits for a reboot. Raises
    ``GateFailed`` if nothing is newer, and the active version computes wrongly since the drivers
    have changed. Raises ``Revoked``
    if the installed release was revoked and there is nothing newer. Unless a ``SelectionError``
    comes first, this removes what a crash left.
    """
    return apply_update(session, check_update(session))


def apply_update(
    session: Session,
    report: UpdateReport,
    *,
    unattended: bool = False,
) -> InstallReport | UpToDate:
    """Make the update that ``check_update`` has found, as ``update`` does.

    ``unattended`` is that of ``install_choice``.
    """
    choice, active = report.choice, report.installed
    if report.newer or (report.candidate and not report.revocation):
        # The setting may name a revoked release.
        refuse_revoked(choice, allow_revoked=session.allow_revoked)
        if report.newer:
            require_lasting(session.machine.environ, choice, active)
        tell_temporary(session.user.note, choice)
        if report.replaced:
            session.user.note(f"{active.receipt.variant} is replaced: {report.replaced}")
        return install_choice(session, choice, unattended=unattended)
    session.store.sweep()
    session.store.drop_downloads(active.receipt.digests)
    if report.revocation and report.way_back:
        raise revoked(active.receipt.release, report.revocation, report.way_back)
    tell_temporary(session.user.note, choice)
    about = is_about(choice, active)
    own = choice.selection.candidate(active.receipt.variant)
    # A build that does not fit any more is told with its reason.
    if own or not about:
        _require_right(session, active)
    if not about:
        # The newest release that fits is older than the active one: their variants differ.
        noted = active.receipt.reasons.items()
        release = active.receipt.release
        reasons = tuple(PassedOver(release, name, "at-install", text) for name, text in noted)
        return UpToDate(report, reasons)
    failed = known_failures(session.reader, choice, session.machine.environ)
    reasons = passed_over(choice, own, failed)
    others = tuple(each for each in reasons if each.variant != active.receipt.variant)
    return UpToDate(report, others, texts(reasons).get(active.receipt.variant))


def _require_right(session: Session, active: Installed) -> None:
    """Try the version that stays, if the drivers or devices have changed since it computed.

    Raises ``GateFailed``: an update moves no server to another variant of the same release.
    """
    try:
        receipt = tried_since_a_change(session, active)
    except GateFailed as error:
        if active.receipt.unsigned is None:
            error.hint = (
                f"{error.hint}; for the next variant that computes rightly: {TSUKU} install"
            )
        raise
    with suppress(StoreError), session.store.lock(active.id):
        session.store.restate(active, receipt)


def _changes(choice: Choice, receipt: Receipt) -> tuple[FitChange, ...]:
    """Return what the choice's release gains here, best first, and what it loses; all backends."""
    # The installed release may be gone from the metadata: then there is nothing to compare.
    with suppress(UnknownRequest, TrustError, StoreError):
        release = choice.catalog.read(choice.catalog.entry(receipt.release))
        before, after = (
            select(each, choice.hardware, Request()) for each in (release, choice.release)
        )
        changes: list[FitChange] = []
        for fits, here, other in ((True, after, before), (False, before, after)):
            why = {each.variant.name: each.reason.text for each in other.rejected}
            for name in (each.variant.name for each in here.compatible):
                if other.candidate(name) is None:
                    reason = why.get(name, "there is no such variant")
                    changes.append(FitChange(name, fits, reason))
        return tuple(changes)
    return ()
