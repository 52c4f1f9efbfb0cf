"""The installation of the best variant that really runs here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tsuku_llm import __version__, archive, fetch, launch
from tsuku_llm.disk import require_space
from tsuku_llm.durable import drop_tree
from tsuku_llm.errors import (
    DigestMismatch,
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
from tsuku_llm.manifest import Artifact
from tsuku_llm.operations.asking import asked_catalog
from tsuku_llm.operations.choice import Choice, choose, tell_temporary, way_out
from tsuku_llm.operations.session import INDEX_CHANNEL, Session
from tsuku_llm.operations.space import Space
from tsuku_llm.operations.supplying import confirmed, supplied
from tsuku_llm.operations.vouching import note_standing, revoked
from tsuku_llm.ownership import check_path
from tsuku_llm.selection import Candidate
from tsuku_llm.store import (
    ArtifactRecord,
    FileRecord,
    Installed,
    LinkRecord,
    Receipt,
    Staging,
    Store,
    version_id,
)


@dataclass(frozen=True, slots=True)
class InstallReport:
    """The result of an install, or with ``dry_run`` the plan for one.

    ``outcome`` is ``planned``, ``installed`` or ``unchanged``. ``passed_over`` maps every other
    variant to the reason why it was not taken. ``installed`` is None for a plan. ``bound_before``
    is the repository that the same build belonged to before.
    """

    outcome: str
    choice: Choice
    candidate: Candidate
    passed_over: Mapping[str, str]
    installed: Installed | None
    bound_before: str | None = None


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One candidate on its way into the store; ``failed`` are the variants that did not start."""

    session: Session
    store: Store
    choice: Choice
    candidate: Candidate
    failed: Mapping[str, str]

    @property
    def id(self) -> str:
        """The id of the version that this attempt would install."""
        variant = self.candidate.variant
        digests = (artifact.sha256 for artifact in variant.artifacts)
        return version_id(self.choice.release.release, variant.name, digests)

    @property
    def passed_over(self) -> dict[str, str]:
        """The reason why each other variant was not taken."""
        return passed_over(self.choice, self.candidate, self.failed)


def install(
    session: Session, *, release: str | None = None, dry_run: bool = False, force: bool = False
) -> InstallReport:
    """Choose, download, verify, unpack, try and commit the best variant, and make it active.

    First this asks the repository for newer metadata, if that is due (see ``asking``). If the
    release host cannot be reached, and the user named neither a channel nor a release, the channel
    of the package index is used, with a note. ``dry_run`` stops after the choice and uses no
    network. ``force`` installs again what is installed.

    Raises ``SelectionError`` if no variant fits or runs, and ``Revoked`` for a named release that
    is revoked. If fresh metadata is required, raises ``StaleMetadata`` and ``ClockBehind``. Also
    raises the errors of ``fetch``, ``archive`` and ``store``. After an error, the versions
    installed before are unchanged.
    """
    catalog = asked_catalog(session, ask=not dry_run)
    choice = choose(session, release=release, catalog=catalog)
    require_not_revoked(session, choice)
    tell_temporary(session, choice)
    if dry_run:
        candidate = choice.selection.selected
        return InstallReport("planned", choice, candidate, passed_over(choice, candidate, {}), None)
    try:
        return install_choice(session, choice, force=force)
    except (HostUnreachable, ProxyError, TlsError) as error:
        # The user asked for exactly this: a build from elsewhere would be a surprise.
        if session.settings.channel or release:
            raise
        other = _from_index(session, choice, error)
        return install_choice(session, other, force=force)


def require_not_revoked(session: Session, choice: Choice) -> None:
    """Refuse a revoked release, and name the newest one that is not revoked. Raises ``Revoked``."""
    if choice.revocation is None or session.allow_revoked:
        return
    entry = choice.catalog.entry(choice.release.release)
    hint = f"{way_out(choice.catalog, entry.channels)}; or add --allow-revoked"
    raise revoked(choice.release.release, choice.revocation, hint)


def _from_index(session: Session, choice: Choice, error: DownloadError) -> Choice:
    """Make the same choice among the builds of the package index; raise ``error`` without one."""
    if INDEX_CHANNEL not in choice.catalog.channels:
        raise error
    try:
        other = choose(
            session, channel=INDEX_CHANNEL, hardware=choice.hardware, catalog=choice.catalog
        )
        # Raises if no build of the index fits.
        _ = other.selection.selected
    except (SelectionError, TrustError, StoreError) as nothing:
        error.facts += (f"channel {INDEX_CHANNEL} cannot stand in: {nothing.message}",)
        raise error from nothing
    session.user.note(f"{error.message}: falling back to channel {INDEX_CHANNEL}")
    return other


def install_choice(session: Session, choice: Choice, *, force: bool = False) -> InstallReport:
    """Install the first compatible variant that starts. This is the only loop of an install."""
    store = session.store
    _ = choice.selection.selected  # raises with every reason if nothing fits
    failed = {} if force else _known_failures(store, choice)
    if not force and (report := _unchanged(session, store, choice, failed)):
        with suppress(StoreError):  # this user may only read the store
            store.sweep()
            note_standing(session, choice.catalog.standing())
            store.drop_downloads(report.installed.receipt.digests if report.installed else ())
        return report
    store.sweep()
    note_standing(session, choice.catalog.standing())
    first: GateFailed | None = None
    for candidate in choice.selection.compatible:
        if candidate.variant.name in failed:
            continue
        try:
            return _install(_Attempt(session, store, choice, candidate, failed), force=force)
        except GateFailed as error:
            # The first failure is about the best variant: its hint helps most.
            first = first or error
            failed[candidate.variant.name] = error.message
            session.user.note(f"{candidate.variant.name}: {error.message}")
    raise SelectionError(
        "every variant that fits this machine failed to start",
        facts=tuple(f"{name}: {reason}" for name, reason in failed.items()),
        hint=first.hint if first else "try them again: tsuku-llm install --force",
    ) from first


def _unchanged(
    session: Session, store: Store, choice: Choice, failed: Mapping[str, str]
) -> InstallReport | None:
    """Return a report if the best variant is already active, intact and bound to its repository.

    None if it is not. This writes nothing and takes no lock, so it works for a read-only store,
    too.
    """
    for candidate in choice.selection.compatible:
        if candidate.variant.name in failed:
            continue
        attempt = _Attempt(session, store, choice, candidate, failed)
        installed = _intact(store, attempt.id) if _active_id(store) == attempt.id else None
        # The best variant that may start is not the active one: there is something to install.
        if installed is None or installed.receipt.repository != choice.catalog.repository.name:
            return None
        return InstallReport("unchanged", choice, candidate, attempt.passed_over, installed)
    return None


def install_beside(session: Session, choice: Choice, candidate: Candidate) -> Installed:
    """Install one variant, or find it installed; the active version stays active.

    Raises ``Revoked``, ``GateFailed`` if the variant does not run here, and the errors of
    ``fetch``, ``archive`` and ``store``.
    """
    require_not_revoked(session, choice)
    attempt = _Attempt(session, session.store, choice, candidate, {})
    store = attempt.store
    # Another process may be building the same version: one builds it, the other finds it here.
    with store.lock(attempt.id):
        installed = _intact(store, attempt.id) or _build(attempt)
    store.drop_downloads(installed.receipt.digests)
    return installed


def passed_over(choice: Choice, chosen: Candidate, failed: Mapping[str, str]) -> dict[str, str]:
    """Return every variant except the chosen one, with the reason why it was not taken."""
    reasons = {r.variant.name: r.reason.text for r in choice.selection.rejected}
    for other in choice.selection.compatible:
        if other is not chosen:
            name = other.variant.name
            reasons[name] = failed.get(name) or _fits_too(other)
    return reasons


def _fits_too(candidate: Candidate) -> str:
    size = candidate.variant.download_size
    cost = f", {size / 1e6:,.0f} MB" if size else ""
    return f"fits too, as number {candidate.rank}{cost}: --backend {candidate.variant.name}"


def _known_failures(store: Store, choice: Choice) -> dict[str, str]:
    """Return the better variants that did not start at the last install of the same kind.

    "The same kind" is the same release, request and machine. The active version's receipt says of
    each variant why it was passed over. A variant that fits and is better was passed over because
    it did not start.
    """
    # Without a readable receipt every variant is tried.
    with suppress(TsukuError):
        active = store.active()
        if active and _same_question(active.receipt, choice):
            names = [candidate.variant.name for candidate in choice.selection.compatible]
            better = names[: names.index(active.receipt.variant)]
            return {name: active.receipt.reasons[name] for name in better}
    return {}


def _same_question(receipt: Receipt, choice: Choice) -> bool:
    return (
        receipt.release == choice.release.release
        and choice.selection.candidate(receipt.variant) is not None
        and receipt.requested == choice.selection.requested
        and receipt.hardware == _hardware(choice)
    )


def _install(attempt: _Attempt, *, force: bool) -> InstallReport:
    store = attempt.store
    # Another process may be installing the same version: one of us builds it, the other finds it
    # intact. What is active is read under the lock as well.
    with store.lock(attempt.id):
        active, before = _active_id(store), _receipt_before(store, attempt.id)
        installed = None if force else _intact(store, attempt.id)
        outcome = "unchanged" if installed and active == attempt.id else "installed"
        if installed is None:
            installed = _build(attempt)
        if before:
            installed = store.restate(installed, _bound(attempt.choice, installed, before))
        store.activate(installed)
    # Without the lock: this leaves archives that another process uses.
    store.drop_downloads(installed.receipt.digests)
    choice, name = attempt.choice, installed.receipt.repository
    moved = before.repository if before and before.repository != name else None
    over = attempt.passed_over
    return InstallReport(outcome, choice, attempt.candidate, over, installed, moved)


def _receipt_before(store: Store, version: str) -> Receipt | None:
    """Return the receipt that the same build has now, even if its tree is damaged."""
    with suppress(TsukuError):
        before = store.find(version)
        return before.receipt if before else None
    return None


def _bound(choice: Choice, installed: Installed, before: Receipt) -> Receipt:
    """Return the receipt of a build that now belongs to the requested repository.

    Revocations by its earlier repositories still count, because the archives are the same. A build
    that already belongs to the repository keeps its list of earlier ones.
    """
    release, name = choice.release, choice.catalog.repository.name
    if before.repository == name:
        return installed.receipt._replace(former=before.former)
    former = dict.fromkeys((before.repository, *before.former))
    former.pop(name, None)
    return installed.receipt._replace(
        repository=name,
        channel=choice.channel,
        sequence=choice.sequence,
        version=release.version or release.release,
        publisher=release.publisher,
        former=tuple(former),
    )


def _active_id(store: Store) -> str | None:
    """Return the id of the active version; None if there is none, or the store cannot be read."""
    with suppress(TsukuError):
        active = store.active()
        return active.id if active else None
    return None


def _intact(store: Store, version: str) -> Installed | None:
    """Return the version if it is installed and undamaged, else None."""
    with suppress(TsukuError):
        installed = store.find(version)
        if installed:
            store.check(installed)
            return installed
    return None


def _build(attempt: _Attempt) -> Installed:
    """Link what other versions have, download and unpack the rest, try the server, and commit.

    Two variants may share an archive, and the first process to unpack it removes it. So each
    archive's lock is held until the commit. Locks are taken in sorted order, so that two processes
    never wait for each other.
    """
    store = attempt.store
    digests = sorted({item.sha256 for item in attempt.candidate.variant.artifacts})
    try:
        with ExitStack() as locks:
            # A process that installs another variant waits here if it needs the same archive.
            for digest in digests:
                locks.enter_context(store.lock(digest))
            store.sweep()  # a killed process may have left a staging folder
            with store.staging() as staging:
                built = _put_together(attempt, staging)
                device = _gate(attempt, staging.tree, built.server)
                # The rename in here is the commit: before it no other process sees the version.
                installed = store.commit(staging, _receipt(attempt, built, device))
    except TrustError as error:
        if not isinstance(error, DigestMismatch):  # a DigestMismatch keeps the correct pieces
            store.drop_downloads(digests)  # signed like this: another download is refused, too
        raise
    return installed


@dataclass(frozen=True, slots=True)
class _Built:
    """A staged tree: its ``server``, its contents, and the sizes of its downloads by digest."""

    server: str
    contents: tuple[archive.Unpacked, ...]
    sizes: Mapping[str, int]


def _put_together(attempt: _Attempt, staging: Staging) -> _Built:
    """Fill the staged tree.

    Files that other versions have are linked, and hashed while the rest is downloaded. An archive
    whose linked files have changed meanwhile is downloaded after all. Archives without a signed
    list of files are unpacked aside, and moved into the tree once all of them are there.
    """
    store, waiting = attempt.store, attempt.candidate.variant.artifacts
    # ``held`` are archives that installed versions can replace; ``waiting`` those still to be
    # unpacked.
    held = supplied(store, staging, waiting)
    contents: dict[str, archive.Unpacked] = {}
    sizes: dict[str, int] = {}
    aside: list[archive.Aside] = []
    while waiting:
        # First round: download what is not held. Second round: download what was held but has
        # changed.
        missing = [artifact for artifact in waiting if artifact not in held]
        with _delivered(attempt, missing) as arrivals:
            # This hashes the linked files while other threads download.
            right = confirmed(store, staging, held)
            brought = [
                _unpack(arrival, artifact, staging, _threads(arrival, artifact, arrivals))
                for artifact, arrival in zip(missing, arrivals, strict=True)
            ]
        aside += [each for each in brought if each.artifact.files is None]
        listed = (each.items for each in brought if each.artifact.files is not None)
        contents |= {item.path: item for item in chain(*right.values(), *listed)}
        sizes |= {a.sha256: b.size() for a, b in zip(missing, arrivals, strict=True)}
        # Archives whose linked files were wrong; without any, the loop ends.
        waiting = tuple(artifact for artifact in held if artifact.sha256 not in right)
        held = ()
    server = attempt.candidate.variant.server
    if aside:
        server, placed = archive.place(aside, staging.tree, server, contents)
        contents |= {item.path: item for item in placed}
        # The files were moved; what is left are empty folders and duplicates.
        drop_tree(staging.unpacked)
    return _Built(server, tuple(contents.values()), sizes)


@contextmanager
def _delivered(attempt: _Attempt, artifacts: Sequence[Artifact]) -> Iterator[list[fetch.Arrival]]:
    """Download archives in parallel for the block; each can be unpacked while it arrives.

    Only verified bytes can be read. At the end of the block every archive is verified as a whole.
    Unpack them one after the other: they fill the same folder.
    """
    if not artifacts:
        yield []
        return
    session, store = attempt.session, attempt.store
    space = Space(artifacts, [fetch.present(artifact, store.partials) for artifact in artifacts])
    # Check now: otherwise a full disk would show only at the end of a long download.
    require_space(session.paths.data, space.needed, space.facts)
    with (
        fetch.Network(
            session.machine.environ,
            mirrors=session.settings.mirror,
            offline=session.offline,
            on_wait=session.user.note,
        ) as network,
        fetch.delivered(artifacts, store.partials, network, session.user.progress) as arrivals,
    ):
        yield arrivals


def _threads(arrival: fetch.Arrival, artifact: Artifact, arrivals: Sequence[fetch.Arrival]) -> int:
    """Return how many threads may unpack an archive: one while connections need threads, too."""
    if archive.in_order(artifact):
        return 1
    # A zip and a wheel have their list of members at the end.
    arrival.wait()
    return archive.THREADS if all(each.there for each in arrivals) else 1


def _unpack(
    arrival: fetch.Arrival, artifact: Artifact, staging: Staging, threads: int
) -> archive.Aside:
    """Unpack an archive with a signed list into the tree, and any other archive aside."""
    folder = staging.tree
    wanted = artifact
    if artifact.files is None:
        # The layout is not known: never let such an archive write into the tree.
        folder = staging.unpacked / artifact.sha256
        wanted = archive.as_it_is(artifact)
    budget = archive.Budget.of(artifact, arrival.size())
    with arrival.file() as file:
        items = archive.unpack(file, wanted, folder, budget, threads)
    return archive.Aside(artifact, folder, items)


def _gate(attempt: _Attempt, tree: Path, server: str) -> str | None:
    """Start the staged server once; return the name of the device to pass to it.

    Raises ``GateFailed`` if it does not run here, and ``UnsafeLocation`` if another user could have
    replaced it.
    """
    check_path(tree)  # again, as unpacking takes time: never run another user's file
    variant, gpu = attempt.candidate.variant, attempt.candidate.gpu
    build = launch.Build(tree, server, variant.backend, variant.arguments)
    report = launch.gate(build, attempt.session.machine.environ, expected=gpu.name if gpu else None)
    return report.device


def _receipt(attempt: _Attempt, built: _Built, device: str | None) -> Receipt:
    choice, variant = attempt.choice, attempt.candidate.variant
    release = choice.release
    return Receipt(
        id=attempt.id,
        release=release.release,
        sequence=choice.sequence,
        version=release.version or release.release,
        channel=choice.channel,
        repository=choice.catalog.repository.name,
        publisher=release.publisher,
        variant=variant.name,
        backend=variant.backend,
        server=built.server,
        arguments=variant.arguments,
        device=device,
        requested=choice.selection.requested,
        detected=choice.selection.detected,
        line=choice.line(attempt.candidate),
        reasons=attempt.passed_over,
        hardware=_hardware(choice),
        artifacts=tuple(
            ArtifactRecord(artifact.url, artifact.sha256, _size(artifact, built.sizes))
            for artifact in variant.artifacts
        ),
        files=tuple(
            FileRecord(item.path, item.size, item.sha256, item.executable)
            for item in built.contents
            if isinstance(item, archive.UnpackedFile)
        ),
        links=tuple(
            LinkRecord(item.path, item.target)
            for item in built.contents
            if isinstance(item, archive.UnpackedLink)
        ),
        installed_at=attempt.session.machine.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        tsuku_llm=__version__,
        unattested=release.unattested,
    )


def _size(artifact: Artifact, fetched: Mapping[str, int]) -> int:
    return fetched.get(artifact.sha256) or artifact.size or 0


def _hardware(choice: Choice) -> dict[str, Any]:
    """Return the machine as the receipt keeps it: conclusions without the evidence."""
    facts = asdict(choice.hardware)
    for api in facts["apis"]:
        del api["evidence"]
    plain: dict[str, Any] = json.loads(json.dumps(facts))
    return plain
