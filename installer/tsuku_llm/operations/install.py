"""Install the best variant that really runs here."""

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
    """What an install did, or with ``dry_run`` would do.

    ``outcome`` is ``planned``, ``installed`` or ``unchanged``; ``passed_over`` maps every
    other variant to the reason why it was not taken; ``installed`` is None when planned.
    ``bound_before`` is the repository that the same build belonged to until now.
    """

    outcome: str
    choice: Choice
    candidate: Candidate
    passed_over: Mapping[str, str]
    installed: Installed | None
    bound_before: str | None = None


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One candidate on its way into the store."""

    session: Session
    store: Store
    choice: Choice
    candidate: Candidate
    failed: Mapping[str, str]

    @property
    def id(self) -> str:
        """The version that this would become."""
        variant = self.candidate.variant
        digests = (artifact.sha256 for artifact in variant.artifacts)
        return version_id(self.choice.release.release, variant.name, digests)

    @property
    def passed_over(self) -> dict[str, str]:
        """Why each other variant was not taken."""
        return passed_over(self.choice, self.candidate, self.failed)


def install(
    session: Session, *, release: str | None = None, dry_run: bool = False, force: bool = False
) -> InstallReport:
    """Choose, fetch, verify, unpack, try and commit the best variant, and make it active.

    The repository is asked for newer metadata first where that is due, see ``asking``. With
    no channel and no release named, a release host that cannot be reached is
    replaced by the package index's channel, with a note. ``dry_run`` stops after the
    choice and touches no network; ``force`` installs again what is installed.

    Raises ``SelectionError`` when no variant fits or runs, ``Revoked`` for a release that
    was named and is revoked, ``StaleMetadata`` and ``ClockBehind`` where fresh metadata is
    required, and the errors of ``fetch``, ``archive`` and ``store``; whatever was installed
    before stays as it was.
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
        if session.channel or release:
            raise
        other = _from_index(session, choice, error)
        return install_choice(session, other, force=force)


def require_not_revoked(session: Session, choice: Choice) -> None:
    """Refuse a revoked release, and offer the newest one that is not. Raises ``Revoked``."""
    if choice.revocation is None or session.allow_revoked:
        return
    entry = choice.catalog.entry(choice.release.release)
    hint = f"{way_out(choice.catalog, entry.channels)}; or add --allow-revoked"
    raise revoked(choice.release.release, choice.revocation, hint)


def _from_index(session: Session, choice: Choice, error: DownloadError) -> Choice:
    """The same choice among the builds of the package index; ``error`` where it has none."""
    if INDEX_CHANNEL not in choice.catalog.channels:
        raise error
    try:
        other = choose(
            session, channel=INDEX_CHANNEL, hardware=choice.hardware, catalog=choice.catalog
        )
        _ = other.selection.selected
    except (SelectionError, TrustError, StoreError) as nothing:
        error.facts += (f"channel {INDEX_CHANNEL} cannot stand in: {nothing.message}",)
        raise error from nothing
    session.note(f"{error.message}: falling back to channel {INDEX_CHANNEL}")
    return other


def install_choice(session: Session, choice: Choice, *, force: bool = False) -> InstallReport:
    """Install the first compatible variant that starts: the only loop of an install."""
    store = session.store
    _ = choice.selection.selected  # raises with every reason where nothing fits
    failed = {} if force else _known_failures(store, choice)
    if not force and (report := _unchanged(session, store, choice, failed)):
        with suppress(StoreError):  # a store that this user may only read
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
            first = first or error
            failed[candidate.variant.name] = error.message
            session.note(f"{candidate.variant.name}: {error.message}")
    raise SelectionError(
        "every variant that fits this machine failed to start",
        facts=tuple(f"{name}: {reason}" for name, reason in failed.items()),
        hint=first.hint if first else "try them again: tsuku-llm install --force",
    ) from first


def _unchanged(
    session: Session, store: Store, choice: Choice, failed: Mapping[str, str]
) -> InstallReport | None:
    """Report that the best variant is active, intact and bound to its repository already.

    None where it is not. Nothing is written and no lock is taken, so that it holds for a
    read-only store, too.
    """
    for candidate in choice.selection.compatible:
        if candidate.variant.name in failed:
            continue
        attempt = _Attempt(session, store, choice, candidate, failed)
        installed = _intact(store, attempt.id) if _active_id(store) == attempt.id else None
        if installed is None or installed.receipt.repository != choice.catalog.repository.name:
            return None
        return InstallReport("unchanged", choice, candidate, attempt.passed_over, installed)
    return None


def install_beside(session: Session, choice: Choice, candidate: Candidate) -> Installed:
    """Install one variant, or find it there; what is active stays so.

    Raises ``Revoked``, ``GateFailed`` where it does not run here, and the errors of
    ``fetch``, ``archive`` and ``store``.
    """
    require_not_revoked(session, choice)
    attempt = _Attempt(session, session.store, choice, candidate, {})
    store = attempt.store
    with store.lock(attempt.id):
        installed = _intact(store, attempt.id) or _build(attempt)
    store.drop_downloads(installed.receipt.digests)
    return installed


def passed_over(choice: Choice, chosen: Candidate, failed: Mapping[str, str]) -> dict[str, str]:
    """Every variant but the chosen one, with the reason why it was not taken."""
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
    """Better variants that did not start at the last install of the same, on the same machine.

    The active version's receipt says of each why it was passed over; one that fits and is
    better was passed over because it did not start.
    """
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
    with store.lock(attempt.id):
        active, before = _active_id(store), _receipt_before(store, attempt.id)
        installed = None if force else _intact(store, attempt.id)
        outcome = "unchanged" if installed and active == attempt.id else "installed"
        if installed is None:
            installed = _build(attempt)
        if before:
            installed = store.restate(installed, _bound(attempt.choice, installed, before))
        store.activate(installed)
    store.drop_downloads(installed.receipt.digests)
    choice, name = attempt.choice, installed.receipt.repository
    moved = before.repository if before and before.repository != name else None
    over = attempt.passed_over
    return InstallReport(outcome, choice, attempt.candidate, over, installed, moved)


def _receipt_before(store: Store, version: str) -> Receipt | None:
    """What the same build was installed for until now, also where its tree is damaged."""
    with suppress(TsukuError):
        before = store.find(version)
        return before.receipt if before else None
    return None


def _bound(choice: Choice, installed: Installed, before: Receipt) -> Receipt:
    """The receipt of a build that now belongs to the repository that was asked for.

    What the earlier repositories revoke goes on to count: the archives are the same. Nothing
    changes where it belongs there already.
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
    with suppress(TsukuError):
        active = store.active()
        return active.id if active else None
    return None


def _intact(store: Store, version: str) -> Installed | None:
    with suppress(TsukuError):
        installed = store.find(version)
        if installed:
            store.check(installed)
            return installed
    return None


def _build(attempt: _Attempt) -> Installed:
    """Take what other versions have, fetch and unpack the rest, try and commit.

    Two variants may share an archive: its lock is held until it was unpacked, as whoever
    is first drops it. Locks are taken in sorted order, so that nobody waits in a ring.
    """
    store = attempt.store
    digests = sorted({item.sha256 for item in attempt.candidate.variant.artifacts})
    try:
        with ExitStack() as locks:
            for digest in digests:
                locks.enter_context(store.lock(digest))
            store.sweep()  # whoever had the lock may have been killed over a half-filled folder
            with store.staging() as staging:
                built = _put_together(attempt, staging)
                device = _gate(attempt, staging.tree, built.server)
                installed = store.commit(staging, _receipt(attempt, built, device))
    except TrustError as error:
        if not isinstance(error, DigestMismatch):  # of that, the pieces that are right are kept
            store.drop_downloads(digests)  # as signed, and refused: another fetch gives the same
        raise
    return installed


@dataclass(frozen=True, slots=True)
class _Built:
    """A staged tree: its ``server``, its contents, the sizes of fetched archives by digest."""

    server: str
    contents: tuple[archive.Unpacked, ...]
    sizes: Mapping[str, int]


def _put_together(attempt: _Attempt, staging: Staging) -> _Built:
    """Fill the staged tree.

    What other versions have is linked, and hashed while the rest comes, before that is
    unpacked. What is not as it was then is fetched after all. Archives without a signed list
    are unpacked aside, and put into the tree when all of them are known.
    """
    store, waiting = attempt.store, attempt.candidate.variant.artifacts
    held = supplied(store, staging, waiting)
    contents: dict[str, archive.Unpacked] = {}
    sizes: dict[str, int] = {}
    aside: list[archive.Aside] = []
    while waiting:
        missing = [artifact for artifact in waiting if artifact not in held]
        with _delivered(attempt, missing) as arrivals:
            right = confirmed(store, staging, held)
            brought = [
                _unpack(arrival, artifact, staging, _threads(arrival, artifact, arrivals))
                for artifact, arrival in zip(missing, arrivals, strict=True)
            ]
        aside += [each for each in brought if each.artifact.files is None]
        listed = (each.items for each in brought if each.artifact.files is not None)
        contents |= {item.path: item for item in chain(*right.values(), *listed)}
        sizes |= {a.sha256: b.size() for a, b in zip(missing, arrivals, strict=True)}
        waiting = tuple(artifact for artifact in held if artifact.sha256 not in right)
        held = ()
    server = attempt.candidate.variant.server
    if aside:
        server, placed = archive.place(aside, staging.tree, server, contents)
        contents |= {item.path: item for item in placed}
        drop_tree(staging.unpacked)
    return _Built(server, tuple(contents.values()), sizes)


@contextmanager
def _delivered(attempt: _Attempt, artifacts: Sequence[Artifact]) -> Iterator[list[fetch.Arrival]]:
    """Fetch archives side by side, to be unpacked while they come, as far as they are verified.

    At the end of the block each of them is verified as a whole. They are to be unpacked one
    after the other, as they fill one folder.
    """
    if not artifacts:
        yield []
        return
    session, store = attempt.session, attempt.store
    space = Space(artifacts, [fetch.present(artifact, store.partials) for artifact in artifacts])
    require_space(session.data, space.needed, space.facts)
    with (
        fetch.Network(
            session.environ,
            mirrors=session.mirrors,
            offline=session.offline,
            on_wait=session.note,
        ) as network,
        fetch.delivered(artifacts, store.partials, network, session.progress) as arrivals,
    ):
        yield arrivals


def _threads(arrival: fetch.Arrival, artifact: Artifact, arrivals: Sequence[fetch.Arrival]) -> int:
    """How many unpack an archive: a single one as long as connections, too, have threads."""
    if archive.in_order(artifact):
        return 1
    arrival.wait()
    return archive.THREADS if all(each.there for each in arrivals) else 1


def _unpack(
    arrival: fetch.Arrival, artifact: Artifact, staging: Staging, threads: int
) -> archive.Aside:
    """Unpack an archive with a signed list into the tree, another one aside."""
    folder = staging.tree
    wanted = artifact
    if artifact.files is None:
        folder = staging.unpacked / artifact.sha256
        wanted = archive.as_it_is(artifact)
    budget = archive.Budget.of(artifact, arrival.size())
    with arrival.file() as file:
        items = archive.unpack(file, wanted, folder, budget, threads)
    return archive.Aside(artifact, folder, items)


def _gate(attempt: _Attempt, tree: Path, server: str) -> str | None:
    """Start the staged server; the name of the device to hand over to it.

    Raises ``UnsafeLocation`` where another user could have replaced it.
    """
    check_path(tree)  # again, as unpacking takes time: nothing foreign is executed
    variant, gpu = attempt.candidate.variant, attempt.candidate.gpu
    build = launch.Build(tree, server, variant.backend, variant.arguments)
    report = launch.gate(build, attempt.session.environ, expected=gpu.name if gpu else None)
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
        installed_at=attempt.session.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        tsuku_llm=__version__,
        unattested=release.unattested,
    )


def _size(artifact: Artifact, fetched: Mapping[str, int]) -> int:
    return fetched.get(artifact.sha256) or artifact.size or 0


def _hardware(choice: Choice) -> dict[str, Any]:
    """The machine as the receipt keeps it: conclusions without the evidence."""
    facts = asdict(choice.hardware)
    for api in facts["apis"]:
        del api["evidence"]
    plain: dict[str, Any] = json.loads(json.dumps(facts))
    return plain
