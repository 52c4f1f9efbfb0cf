"""A static copy of a repository, metadata and archives, for networks without a way out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm import fetch, trust
from tsuku_llm.catalog import loading
from tsuku_llm.catalog.copies import FolderCopy, WithRootsOf, names_of
from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.catalog.repositories import Repository
from tsuku_llm.catalog.roots import known_roots
from tsuku_llm.config.keys import ORIGIN
from tsuku_llm.fetch.artifacts.partial import verified
from tsuku_llm.fetch.http.urls import file_name, scheme_of, shown
from tsuku_llm.fetch.places.small_files import local_path
from tsuku_llm.ground.disk import require_space
from tsuku_llm.ground.errors import (
    CorruptStore,
    DigestMismatch,
    DownloadError,
    MetadataError,
    StoreError,
    TrustError,
    UsageError,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.ground.safe_text import shell_word
from tsuku_llm.steps.choosing.choice import load_catalog
from tsuku_llm.steps.install.downloads import space_of
from tsuku_llm.steps.metadata.refresh import asked_catalog
from tsuku_llm.steps.session import Session, network_for, repository_of
from tsuku_llm.trust import Copy
from tsuku_llm.trust.metadata import TIME
from tsuku_operator.mirror.mirror_choice import MirrorContents, Narrowing, contents_of
from tsuku_operator.mirror.mirror_folder import MARKER, MirrorFolder, Swept

PATIENCE = fetch.Limits().metadata
"""Seconds that a copy waits for newer metadata: longer than an install, which is waited for."""


@dataclass(frozen=True, slots=True)
class MirroredFile:
    """An archive in a mirror; ``size`` is None if none was signed."""

    name: str
    sha256: str
    size: int | None


@documented(
    *("outcome", "place", "repository", "releases", "signed", "expires"),
    *("artifacts", "size", "fetched", "swept"),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorReport:
    """A mirror as it is now, or would be; ``outcome`` is planned, updated or unchanged.

    ``artifacts`` is the number of its archives, which have ``size`` bytes as far as that is signed.
    ``fetched`` came in this run, or would come. ``swept`` is None without a prune.
    """

    outcome: str
    place: str
    repository: str
    releases: tuple[str, ...]
    signed: str | None
    expires: str
    archives: tuple[MirroredFile, ...]
    fetched: tuple[MirroredFile, ...]
    swept: Swept | None = None

    @property
    def artifacts(self) -> int:
        """The number of all archives."""
        return len(self.archives)

    @property
    def size(self) -> int:
        """The bytes of all archives, as far as their sizes are signed."""
        return sum(each.size or 0 for each in self.archives)

    @property
    def fetched_size(self) -> int:
        """The bytes of the fetched archives, as far as their sizes are signed."""
        return sum(each.size or 0 for each in self.fetched)


@documented("place", "repository", "intact", "differences", "artifacts", "size", "swept")
@dataclass(frozen=True, slots=True)
class MirrorCheck:
    """What a check of a mirror found: ``differences`` is empty if the mirror is intact.

    ``artifacts`` are the archives that were hashed, with ``size`` bytes in all.
    """

    place: str
    repository: str
    differences: tuple[str, ...]
    artifacts: int
    size: int
    swept: Swept

    @property
    def intact(self) -> bool:
        """True if the mirror is as it was signed."""
        return not self.differences


def mirror(
    session: Session,
    path: Path,
    narrow: Narrowing,
    *,
    prune: bool = False,
    dry_run: bool = False,
) -> MirrorReport:
    """Bring a folder up to date: fetch the newest metadata, then each wanted archive it lacks.

    Without an answer the known metadata is copied, as ``catalog_to_copy`` says. The metadata is
    published last, and only if every archive is there: clients see the state before or the state
    after. A stopped run is resumed by the next one. ``dry_run`` uses no network and changes
    nothing.

    Raises ``UsageError`` for a folder that is something else, ``UnknownRequest``,
    ``SnapshotError``, the errors of ``catalog_to_copy`` and of ``fetch``, and ``MetadataError`` if
    the mirror is ahead of what is known here. If some archives cannot be had, the others are there
    after the error.
    """
    folder = MirrorFolder(path.absolute())
    # Before any network is used: this may be the wrong folder.
    _require_other_source(session, folder)
    root = hashlib.sha256(repository_of(session.paths.data, session.settings).root).hexdigest()
    if dry_run:
        folder.require_own(root)
        catalog = load_catalog(session)
        contents = contents_of(session, catalog, narrow)
        lacking = [each for each in contents.artifacts if not folder.has(each)]
        return report_of("planned", str(folder.path), catalog, contents, lacking)
    # One process at a time works on a folder, of whatever store: the lock is in the folder.
    with folder.made(root), session.store.lock_place(folder.path / MARKER):
        catalog = catalog_to_copy(session)
        contents = contents_of(session, catalog, narrow)
        known = folder.adopt(root)
        require_not_ahead(session, FolderCopy(folder.path), catalog)
        lacking = [each for each in contents.artifacts if not folder.has(each)]
        _fetch_into(session, folder, lacking)
        files = published_files(catalog)
        changed = folder.publish(files, [each.sha256 for each in contents.artifacts], known)
        swept = folder.sweep(folder.record() or known, remove=True) if prune else None
    outcome = "updated" if lacking or changed else "unchanged"
    return report_of(outcome, str(folder.path), catalog, contents, lacking, swept)


def catalog_to_copy(session: Session, *, patience: float = PATIENCE) -> Catalog:
    """Load the catalog to copy for other machines; first ask the repository for a newer one.

    Without an answer the known one counts, with the note of an install. It asks each time, whatever
    ``llm.refresh`` says, because the copy stands for the publisher until the next one is made.
    Raises the errors of ``asked_catalog``.
    """
    return asked_catalog(session.with_settings(refresh="always"), patience=patience)


def report_of(
    outcome: str,
    place: str,
    catalog: Catalog,
    contents: MirrorContents,
    fetched: Sequence[Artifact],
    swept: Swept | None = None,
) -> MirrorReport:
    """Make the report of a run, or of the plan for one."""
    fresh = catalog.freshness
    return MirrorReport(
        outcome=outcome,
        place=place,
        repository=catalog.repository.name,
        releases=contents.releases,
        signed=fresh.signed.strftime(TIME) if fresh.signed else None,
        expires=fresh.expires.strftime(TIME),
        archives=tuple(map(_file, contents.artifacts)),
        fetched=tuple(map(_file, fetched)),
        swept=swept,
    )


def _file(artifact: Artifact) -> MirroredFile:
    return MirroredFile(file_name(artifact.url), artifact.sha256, artifact.size)


def _require_other_source(session: Session, folder: MirrorFolder) -> None:
    """Refuse to copy a folder from itself: it would never learn of anything new."""
    for place in (
        *session.settings.mirror,
        *repository_of(session.paths.data, session.settings).places,
    ):
        if scheme_of(place) == "file" and local_path(place).resolve() == folder.path.resolve():
            raise UsageError(
                f"{folder.path} is where this machine takes its files from",
                facts=(f"a setting names it: {shown(place)}",),
                hint=f"to fetch from the publisher: TSUKU_LLM_MIRROR={ORIGIN} "
                f"{TSUKU} mirror {shell_word(str(folder.path))}",
            )


def _fetch_into(session: Session, folder: MirrorFolder, lacking: Sequence[Artifact]) -> None:
    """Fetch archives into the folder; go on after one that cannot be had, and raise at the end."""
    partials = folder.partials
    space = space_of(lacking, [fetch.present(artifact, partials) for artifact in lacking])
    require_space(folder.path, space.missing, (f"to download: {space.missing / 1e6:,.1f} MB",))
    failed: list[tuple[Artifact, DownloadError | TrustError]] = []
    with network_for(session) as network:
        for artifact in lacking:
            try:
                verified_file = fetch.fetch(artifact, partials, network, session.user.progress)
            except (DownloadError, TrustError) as error:
                failed.append((artifact, error))
                continue
            folder.keep(artifact, verified_file)
    if failed:
        raise not_all_fetched(failed, len(lacking))


def through_downloads(
    session: Session,
    artifacts: Iterable[Artifact],
    doing: str,
    failed: list[tuple[Artifact, DownloadError | TrustError]] | None = None,
) -> Iterator[tuple[Artifact, Path]]:
    """Fetch each archive into this user's downloads, give its verified file, and then remove that.

    ``doing`` says what the caller does with it. One that cannot be had raises the error, or is
    added to ``failed`` with it.
    """
    store, progress = session.store, session.user.progress
    with network_for(session) as network:
        for artifact in artifacts:
            name = file_name(artifact.url)
            # An install of this user may be downloading the same archive.
            with store.lock(artifact.sha256):
                require_space(store.partials, artifact.size or 0, (f"to download: {name}",))
                try:
                    file = fetch.fetch(artifact, store.partials, network, progress)
                except (DownloadError, TrustError) as error:
                    if failed is None:
                        raise
                    failed.append((artifact, error))
                    continue
                progress.stage(name, doing)
                yield artifact, file
            store.drop_downloads([artifact.sha256])
    progress.finish()


def not_all_fetched(
    failed: Sequence[tuple[Artifact, DownloadError | TrustError]], wanted: int
) -> DownloadError | TrustError:
    """Return the error for archives that could not be had: wrong bytes first; it names all."""
    errors = [error for _, error in failed]
    error = next((each for each in errors if isinstance(each, DigestMismatch)), errors[0])
    told = tuple(
        f"{file_name(artifact.url)}: {'; '.join((each.message, *each.facts))}"
        for artifact, each in failed
    )
    error.message = f"{len(failed)} of {wanted} archives could not be fetched"
    error.facts = (*told, "the mirror offers what it offered before; the other archives are kept")
    return error


def published_files(catalog: Catalog) -> Mapping[str, bytes]:
    """Read the metadata and release files of a catalog as they are published."""
    trusted, copy = catalog.trusted, catalog.copy
    pinned = trust.check_root(catalog.repository.root).version
    names = (
        *(target.name for target in trusted.targets.values()),
        *names_of(trusted, pinned),
    )
    files = {name: data for name in names if (data := copy.read(name)) is not None}
    # The copy was verified when it was loaded; a release file is verified when it is read.
    for path, target in trusted.targets.items():
        if target.name in files:
            trusted.read(path, files[target.name])
    return files


def require_not_ahead(session: Session, mirrored: Copy, catalog: Catalog) -> None:
    """Refuse to take a mirror back to older metadata. Raises ``MetadataError``."""
    roots = known_roots(catalog.repository, session.paths.data)
    there: Mapping[str, int] = {}
    # What does not verify is damaged, or not there yet: it is replaced.
    with suppress(TrustError, StoreError):
        there = trust.versions(WithRootsOf(mirrored, catalog.copy), roots.start)
    if back := trust.setbacks(there, catalog.trusted.versions):
        known = catalog.trusted.versions
        raise MetadataError(
            "the mirror has newer metadata than is known on this machine",
            facts=tuple(f"{r}: {there[r]} there, {known.get(r, 0)} here" for r in back),
            hint="another machine may have updated the mirror, or someone withholds newer "
            "metadata: try another network",
        )


def check_mirror(session: Session, path: Path) -> MirrorCheck:
    """Verify the signatures of a mirror, and hash every archive that it should have.

    No host is asked, and nothing is changed. Raises ``CorruptStore`` for a folder that is no mirror
    of the session's repository.
    """
    folder = MirrorFolder(path.absolute())
    repository = repository_of(session.paths.data, session.settings)
    known = folder.record()
    root = hashlib.sha256(repository.root).hexdigest()
    if known is None or known.root != root:
        raise CorruptStore(
            f"{folder.path} is no mirror of {repository.name}",
            facts=(f"its root: sha256 {known.root}",) if known else (),
            hint=f"make one: {TSUKU} mirror {shell_word(str(folder.path))}",
        )
    differences: list[str] = []
    signed = _signed_artifacts(session, folder, repository, differences)
    wanted = [signed[digest] for digest in known.artifacts if digest in signed]
    size = 0
    progress = session.user.progress
    for artifact in wanted:
        name = file_name(artifact.url)
        file = folder.artifact(artifact.sha256)
        progress.stage(name, "checking")
        if not folder.has(artifact):
            differences.append(f"{name} is missing or has another size: {file}")
        elif not verified(file, artifact):
            differences.append(f"{name} is not the file that was signed: {file}")
        else:
            size += file.stat().st_size
    progress.finish()
    return MirrorCheck(
        str(folder.path),
        repository.name,
        tuple(differences),
        len(wanted),
        size,
        folder.sweep(known, remove=False),
    )


def _signed_artifacts(
    session: Session, folder: MirrorFolder, repository: Repository, differences: list[str]
) -> dict[str, Artifact]:
    """Return the archives in the metadata of a mirror; add what is wrong with that metadata."""
    copy = FolderCopy(folder.path)
    try:
        roots = known_roots(repository, session.paths.data)
        catalog = loading.verified("mirror", copy, repository, roots)
    except (TrustError, StoreError) as error:
        differences.append(": ".join((error.message, *error.facts)))
        return {}
    if expired := catalog.trusted.expired(session.machine.now):
        differences.append(f"the signed metadata has expired: {', '.join(expired)}")
    for path, target in catalog.trusted.targets.items():
        try:
            if (data := copy.read(target.name)) is None:
                # A thief of a delegated key can sign a file that nobody has: clients skip it.
                if target.branch is not None:
                    continue
                differences.append(f"{target.name} is missing")
            else:
                catalog.trusted.read(path, data)
        except (TrustError, StoreError) as error:
            differences.append(f"{target.name}: {error.message}")
    found: dict[str, Artifact] = {}
    for entry in catalog.entries:
        # A file that is damaged is told above. One of a newer format belongs into the mirror.
        with suppress(TrustError, StoreError):
            for platform in catalog.read(entry).platforms.values():
                for variant in platform.variants:
                    found |= {artifact.sha256: artifact for artifact in variant.artifacts}
    return found
