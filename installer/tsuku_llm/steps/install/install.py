"""The installation of the best variant that really runs here: choose, try in order, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.choose.selection import Candidate
from tsuku_llm.config.keys import ORIGIN
from tsuku_llm.ground.errors import (
    DownloadError,
    GateFailed,
    HostUnreachable,
    ProxyError,
    SelectionError,
    StoreError,
    TlsError,
    TrustError,
    TsukuError,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record
from tsuku_llm.launch.plan.build_arguments import problems
from tsuku_llm.launch.plan.fingerprint import choice_digest, driver_fingerprint
from tsuku_llm.machine.backends import VENDORS
from tsuku_llm.steps.choosing.choice import (
    Choice,
    choose,
    refuse_revoked,
    require_lasting,
    required,
    staying,
    tell_idle,
    tell_temporary,
    version_of,
)
from tsuku_llm.steps.choosing.passing_over import (
    PassedOver,
    texts,
    why_not_started,
    why_unfit,
)
from tsuku_llm.steps.choosing.revocation import note_metadata_status
from tsuku_llm.steps.choosing.temporary import hiding, over, told_moved, withheld
from tsuku_llm.steps.choosing.which import meets
from tsuku_llm.steps.install.build_version import VersionBuilder, hardware_facts
from tsuku_llm.steps.install.downloads import require_consent_to_index, require_possible
from tsuku_llm.steps.install.trial import tried_since_a_change
from tsuku_llm.steps.metadata.refresh import asked_catalog
from tsuku_llm.steps.session import INDEX_CHANNEL, Session
from tsuku_llm.store.reader import StoreReader
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import Receipt, reinstall_command
from tsuku_llm.store.records.updates import unmark


@documented(
    *("outcome", "*choice", "*candidate", "line", "artifacts", "download", "passed_over"),
    *("bound_before", "installed"),
)
@dataclass(frozen=True, slots=True)
class InstallReport:
    """The result of an install or its plan: ``planned``, ``installed`` or ``unchanged``.

    ``selected`` is the variant that fits best, and ``variant`` the one that was taken.
    ``passed_over`` says why other releases and variants were not taken. ``installed`` is None for
    a plan. ``bound_before`` is the repository that the same build belonged to before. ``download``
    is in bytes what a plan would download, without what is there already; None if the manifest does
    not say. ``waits_for`` is a running server whose arguments the build does not take, and what it
    says of them: then the former build stays active.
    """

    outcome: str
    choice: Choice
    candidate: Candidate
    other_variants: tuple[PassedOver, ...]
    installed: Installed | None
    bound_before: str | None = None
    download: int | None = 0
    waits_for: str | None = None

    @property
    def passed_over(self) -> tuple[PassedOver, ...]:
        """The releases and the variants that were not taken, each with the reason."""
        return (*self.choice.passed_over, *self.other_variants)

    @property
    def line(self) -> str:
        """The line of the decision, as each start prints it."""
        return self.choice.line(self.candidate)

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The archives of the build."""
        return self.candidate.variant.artifacts


def install(
    session: Session, *, release: str | None = None, dry_run: bool = False, force: bool = False
) -> InstallReport:
    """Choose, download, verify, unpack, try and commit the best variant, and make it active.

    ``release`` comes before the setting ``llm.release``.

    First this asks the repository for newer metadata, if that is due (see ``refresh``). If the
    release host cannot be reached, and the user named neither a channel nor a release, the channel
    of the package index is used, with a note. ``dry_run`` stops after the choice and uses no
    network. ``force`` installs again what is installed.

    Raises ``SelectionError`` if no variant fits or runs, or if only a problem that will pass keeps
    the GPU of the active version from use. Raises ``Revoked`` for a named release that is revoked.
    If fresh metadata is required, raises ``StaleMetadata`` and ``ClockBehind``. Also raises the
    errors of ``fetch``, ``archive`` and ``store``, and ``TooLarge`` or ``Declined`` for the size of
    the download. After an error, the versions installed before are unchanged.
    """
    if release is None:
        session = staying(session)
    catalog = asked_catalog(session, ask=not dry_run)
    choice = choose(session, release=release, catalog=catalog)
    refuse_revoked(choice, allow_revoked=session.allow_revoked)
    tell_temporary(session.user.note, choice)
    tell_idle(session.user.note, choice)
    # Without a readable version there is nothing to leave.
    active = None
    with suppress(TsukuError):
        active = session.reader.active()
    if active:
        require_lasting(session.machine.environ, choice, active)
        _tell_over(session.user.note, session.machine.environ, choice, active)
    if dry_run:
        return _plan(session, choice, force=force)
    try:
        report = install_choice(session, choice, force=force)
    except (HostUnreachable, ProxyError, TlsError) as error:
        # The user asked for exactly this: a build from elsewhere would be a surprise.
        if session.settings.channel or session.settings.release or release:
            raise
        # Its packages would have to come from the same mirrors.
        if session.settings.mirror and ORIGIN not in session.settings.mirror:
            raise
        other = _from_index(session, choice, error)
        session = require_consent_to_index(session, other, error.message)
        session.user.note(f"{error.message}: falling back to channel {INDEX_CHANNEL}")
        return install_choice(session, other, force=force)
    # Its user wants it: what an unattended update found is no longer in the way.
    if release is not None:
        unmark(session.paths.data, choice.repository, choice.release.release)
    return report


def _plan(session: Session, choice: Choice, *, force: bool) -> InstallReport:
    """Return what an install would do now: nothing is written, and no lock is taken.

    It ends as the install would, as far as the disk tells.
    """
    best = required(session, choice)
    failed = {} if force else known_failures(session.reader, choice, session.machine.environ)
    if not force and (report := _unchanged(session.reader, choice, failed)):
        return report
    untried = (each for each in choice.selection.compatible if each.variant.name not in failed)
    candidate = next(untried, best)
    download = require_possible(session, choice, candidate, repair=force)
    reasons = passed_over(choice, candidate, failed)
    return InstallReport("planned", choice, candidate, reasons, None, download=download)


def _tell_over(
    note: Callable[[str], None], environ: Mapping[str, str], choice: Choice, active: Installed
) -> None:
    """Print which temporary states of the active version are over, if another build fits now."""
    name = active.receipt.variant
    if choice.selection.compatible[:1] != (choice.selection.candidate(name),):
        states = withheld(active.receipt, choice.selection.requested)
        if gone := over(states, choice.hardware, environ):
            note(told_moved(name, gone))


def _from_index(session: Session, choice: Choice, error: DownloadError) -> Choice:
    """Make the same choice among the builds of the package index; raise ``error`` without one."""
    if INDEX_CHANNEL not in choice.catalog.channels:
        raise error
    try:
        there = session.with_settings(channel=INDEX_CHANNEL)
        other = choose(there, hardware=choice.hardware, catalog=choice.catalog)
        # Raises if no build of the index fits.
        _ = other.selection.selected
    except (SelectionError, TrustError, StoreError) as nothing:
        error.facts += (f"channel {INDEX_CHANNEL} cannot be used instead: {nothing.message}",)
        raise error from nothing
    return other


def install_choice(
    session: Session,
    choice: Choice,
    *,
    force: bool = False,
    unattended: bool = False,
) -> InstallReport:
    """Install the first compatible variant that starts. This is the only loop of an install.

    A build that does not take the arguments of a running server is not made active if nobody
    watches (``unattended``): the report says for which one it waits. Otherwise this only warns.
    """
    store = session.store
    _ = required(session, choice)  # raises with every reason if nothing fits
    environ = session.machine.environ
    failed = {} if force else known_failures(store, choice, environ)
    first: GateFailed | None = None
    if not force and (report := _unchanged(store, choice, failed)):
        assert report.installed
        try:
            receipt = tried_since_a_change(session, report.installed)
            with suppress(StoreError):  # this user may only read the store
                return _chosen_again(session, report, receipt)
            return replace(report, installed=report.installed._replace(receipt=receipt))
        except GateFailed as error:
            # With other drivers it computes wrongly now: another variant may do better.
            first = error
            failed[report.candidate.variant.name] = error.reason
            session.user.note(f"{report.candidate.variant.name}: {error.reason}")
    store.sweep()
    note_metadata_status(session.paths.data, choice.catalog.metadata_status())
    for candidate in choice.selection.compatible:
        if candidate.variant.name in failed:
            continue
        reasons = passed_over(choice, candidate, failed)
        builder = VersionBuilder(session, store, choice, candidate, reasons, repair=force)
        try:
            return _install(builder, force=force, unattended=unattended)
        except GateFailed as error:
            # The first failure is about the best variant: its hint helps most.
            first = first or error
            failed[candidate.variant.name] = error.reason
            session.user.note(f"{candidate.variant.name}: {error.reason}")
    # Nothing was started: the archives are at fault, and not this machine.
    if first and not first.started and len(failed) == 1:
        raise first
    again = reinstall_command(choice.release.release, choice.selection.requested, choice.repository)
    raise SelectionError(
        "every variant that fits this machine failed to start",
        facts=tuple(f"{name}: {reason}" for name, reason in failed.items()),
        hint=first.hint if first else f"try them again: {again}",
    ) from first


def keep_choice(session: Session, choice: Choice) -> None:
    """Note in the receipt of the active version that it is still the best one, if it is.

    Otherwise a temporary state that is over would be asked about at each start. Raises StoreError.
    """
    failed = known_failures(session.reader, choice, session.machine.environ)
    if report := _unchanged(session.reader, choice, failed):
        assert report.installed
        _chosen_again(session, report, report.installed.receipt)


def _chosen_again(session: Session, report: InstallReport, receipt: Receipt) -> InstallReport:
    """Write the ``receipt`` of a report's build with today's reasons; return the report with it."""
    store, choice, installed = session.store, report.choice, report.installed
    assert installed
    reasons = report.other_variants
    now = _restated(
        session.machine.environ, choice, report.candidate, reasons, receipt, installed.receipt
    )
    store.sweep()
    note_metadata_status(session.paths.data, choice.catalog.metadata_status())
    store.drop_downloads(receipt.digests)
    if now != installed.receipt:
        with store.lock(installed.id):
            installed = store.restate(installed, now)
    return replace(report, installed=installed)


def _unchanged(
    store: StoreReader, choice: Choice, failed: Mapping[str, str]
) -> InstallReport | None:
    """Return a report if the best variant is already active, intact and bound to its repository.

    None if it is not. This writes nothing and takes no lock, so it works for a read-only store,
    too.
    """
    for candidate in choice.selection.compatible:
        if candidate.variant.name in failed:
            continue
        version = version_of(choice.release.release, candidate.variant)
        installed = _intact(store, version, choice) if store.is_active(version) else None
        # The best variant that may start is not the active one: there is something to install.
        if installed is None or installed.receipt.repository != choice.repository:
            return None
        reasons = passed_over(choice, candidate, failed)
        return InstallReport("unchanged", choice, candidate, reasons, installed)
    return None


def known_failures(
    reader: StoreReader, choice: Choice, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the better variants that did not start at the last install of the same kind.

    "The same kind" is the same release, request and machine, with the same variables that can hide
    a GPU. The active version's receipt says of each variant why it was passed over. A variant that
    fits and is better was passed over because it did not start.
    """
    # Without a readable receipt every variant is tried.
    with suppress(TsukuError):
        active = reader.active()
        if (
            active
            and active.receipt.release == choice.release.release
            and (found := choice.selection.candidate(active.receipt.variant))
            and active.receipt.requested == choice.selection.requested
            and active.receipt.hardware == hardware_facts(choice.hardware, found.variant)
            and active.receipt.hidden_by == hiding(environ)
        ):
            names = [candidate.variant.name for candidate in choice.selection.compatible]
            better = names[: names.index(active.receipt.variant)]
            reasons = active.receipt.reasons
            # A variant that the release gained later has no reason: it is tried.
            return {name: reasons[name] for name in better if name in reasons}
    return {}


def passed_over(
    choice: Choice, chosen: Candidate | None, failed: Mapping[str, str]
) -> tuple[PassedOver, ...]:
    """Return every variant except the chosen one, with the reason why it was not taken."""
    release, selection = choice.release.release, choice.selection
    found = [
        why_unfit(release, each.variant.name, each.reason, choice.hardware.all_problems)
        for each in selection.rejected
    ]
    for other in selection.compatible:
        name, size = other.variant.name, other.variant.download_size
        if other is chosen:
            continue
        if reason := failed.get(name):
            found.append(why_not_started(release, name, reason, choice.repository))
            continue
        cost = f", {size / 1e6:,.0f} MB" if size else ""
        text = f"also fits (choice {other.rank}{cost})"
        found.append(
            PassedOver(release, name, "also-fits", text, f"{TSUKU} install --backend {name}")
        )
    return tuple(found)


def _install(builder: VersionBuilder, *, force: bool, unattended: bool) -> InstallReport:
    """Build the version or find it installed; bind it to the repository and make it active."""
    session, store, choice = builder.session, builder.store, builder.choice
    # Another process may be installing the same version: one of us builds it, the other finds it
    # intact. What is active is read under the lock as well.
    with store.lock(builder.id):
        # The receipt that the same build has now, even if its tree is damaged.
        before: Receipt | None = None
        with suppress(TsukuError):
            found = store.find(builder.id)
            before = found.receipt if found else None
        installed = None if force else _intact(store, builder.id, choice)
        is_active = installed and store.is_active(builder.id)
        outcome = "unchanged" if is_active else "installed"
        receipt = tried_since_a_change(session, installed) if installed else None
        if installed is None:
            installed = builder.build()
        if before:
            now = _restated(
                session.machine.environ,
                choice,
                builder.candidate,
                builder.reasons,
                receipt or installed.receipt,
                before,
            )
            installed = store.restate(installed, now)
        waits_for: str | None = None
        for record, why in refused_servers(session.paths.state, installed):
            name = record.name
            if not unattended:
                session.user.note(f"warning: the server {name} will not start with it: {why}")
            elif record.state.is_up:
                waits_for = waits_for or f"{name}: {why}; change its arguments"
        if waits_for is None:
            store.activate(installed)
    # Without the lock: this leaves archives that another process uses.
    store.drop_downloads(installed.receipt.digests)
    name = installed.receipt.repository
    moved = before.repository if before and before.repository != name else None
    return InstallReport(
        *(outcome, choice, builder.candidate, builder.reasons, installed, moved),
        waits_for=waits_for,
    )


def refused_servers(state: Path, installed: Installed) -> Iterator[tuple[Record, str]]:
    """Yield the known servers whose arguments a version does not take, with what it says."""
    for record in Instances(state).all():
        if found := problems(record.arguments or (), installed.receipt.takes):
            yield record, f"{installed.id} does not take its arguments: {'; '.join(found)}"


def _restated(
    environ: Mapping[str, str],
    choice: Choice,
    candidate: Candidate,
    reasons: tuple[PassedOver, ...],
    receipt: Receipt,
    before: Receipt,
) -> Receipt:
    """Return the receipt of an installed build that was chosen again, with today's reasons.

    ``before`` is the one that it had. A build of another repository now belongs to this one. The
    revocations of its earlier repositories still count, because the archives are the same. A
    release has the same build under one name only, so its other facts stay.
    """
    receipt = receipt._replace(
        requested=choice.selection.requested,
        detected=choice.selection.detected,
        line=choice.line(candidate),
        reasons=texts(reasons),
        hardware=hardware_facts(choice.hardware, candidate.variant),
        hidden_by=hiding(environ),
        drivers=choice_digest(driver_fingerprint(environ)),
    )
    release, name = choice.release, choice.repository
    if before.repository == name:
        return receipt._replace(former=before.former)
    former = dict.fromkeys((before.repository, *before.former))
    former.pop(name, None)
    return receipt._replace(
        repository=name,
        channel=choice.channel,
        sequence=choice.sequence,
        version=release.version,
        publisher=release.publisher,
        former=tuple(former),
    )


def is_about(choice: Choice, installed: Installed) -> bool:
    """Tell whether a choice is among the variants of an installed release."""
    receipt = installed.receipt
    same = (receipt.repository, receipt.release)
    return (choice.repository, choice.release.release) == same


def better_than(
    reader: StoreReader, environ: Mapping[str, str], choice: Choice, installed: Installed
) -> Candidate | None:
    """Return the best variant of an installed release if it is better than the installed one.

    A build for the CPU is never better, and neither is one that did not start on this machine as it
    is now. None if ``choice`` is about another release.
    """
    if not is_about(choice, installed):
        return None
    failed = known_failures(reader, choice, environ)
    usable = (each for each in choice.selection.compatible if each.variant.name not in failed)
    best = next(usable, None)
    if best is None or best.variant.name == installed.receipt.variant:
        return None
    return None if best.variant.backend == "cpu" else best


def install_beside(session: Session, choice: Choice, candidate: Candidate) -> Installed:
    """Install one variant, or find it installed; the active version stays active.

    Raises ``Revoked``, ``GateFailed`` if the variant does not run here, and the errors of
    ``fetch``, ``archive`` and ``store``.
    """
    refuse_revoked(choice, allow_revoked=session.allow_revoked)
    store = session.store
    builder = VersionBuilder(session, store, choice, candidate, passed_over(choice, candidate, {}))
    # Another process may be building the same version: one builds it, the other finds it here.
    with store.lock(builder.id):
        installed = _intact(store, builder.id, choice) or builder.build()
    store.drop_downloads(installed.receipt.digests)
    return installed


def _intact(store: StoreReader, version: str, choice: Choice) -> Installed | None:
    """Return the version if it is installed and undamaged, else None.

    None as well if it was installed for the GPUs of a maker that is not requested now, or the other
    way round: the receipt names other devices then.
    """
    requested = choice.selection.requested
    with suppress(TsukuError):
        installed = store.find(version)
        if installed:
            before = installed.receipt.requested
            if not meets(installed.receipt, requested) or before in {*VENDORS} - {requested}:
                return None
            store.admit(installed)
            return installed
    return None
