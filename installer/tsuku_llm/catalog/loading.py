"""The catalog of a repository, from the newest valid copy on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm import revocations, trust
from tsuku_llm.catalog.copies import FolderCopy, WithRootsOf
from tsuku_llm.catalog.generations import current_copy
from tsuku_llm.catalog.repositories import Repository
from tsuku_llm.catalog.roots import KnownRoots, known_roots
from tsuku_llm.errors import (
    DigestMismatch,
    ManifestError,
    MetadataError,
    StoreError,
    TrustError,
    TsukuError,
    UnknownRequest,
)
from tsuku_llm.revocations import Revocation
from tsuku_llm.standing import Freshness, Standing, folder_of
from tsuku_llm.trust import Copy, TrustedRepository, VerifiedBytes
from tsuku_llm.trust.delegations import matches

if TYPE_CHECKING:  # msgspec, below the manifest, is loaded when a manifest is read
    from tsuku_llm.manifest import Release, ReleaseEntry


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a repository offers, verified in this process.

    ``source`` is ``embedded`` or ``updated``; ``entries`` are all releases, newest first;
    ``revoked`` is the signed list of revocations, and what was seen before of this repository
    and of others; ``notes`` tell why an updated copy was passed over.
    """

    repository: Repository
    source: str
    trusted: TrustedRepository
    entries: tuple[ReleaseEntry, ...]
    copy: Copy
    notes: tuple[str, ...] = ()
    revoked: tuple[Revocation, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that have a release."""
        return tuple(sorted({channel for entry in self.entries for channel in entry.channels}))

    @property
    def freshness(self) -> Freshness:
        """How old the metadata is."""
        roles = self.trusted.roles
        # A delegated role may be a machine's: its dates must not set the clock of all users.
        issued = (roles[role].issued for role in trust.ROLES)
        signed = max((date for date in issued if date), default=None)
        return Freshness(self.repository.name, signed, min(each.expires for each in roles.values()))

    def standing(self) -> Standing:
        """What it says of its releases."""
        own = [each for each in self.revoked if each.repository == self.repository.name]
        offered = tuple(entry.release for entry in self.entries if entry.channels)
        revoked = revocations.merged(self._by_files(self.entries), own)
        return Standing(self.freshness, revoked, offered)

    def revocation(self, entry: ReleaseEntry) -> Revocation | None:
        """Why a release must not be used, None for a good one.

        Its name counts in its own repository, its archives wherever they were revoked. One
        that cannot be read here is judged by its name alone.
        """
        builds = self._builds(entry)
        for each in (*self.revoked, *self._by_files([entry])):
            if each.is_of([self.repository.name], entry.release, builds):
                return each
        return None

    def _by_files(self, entries: Iterable[ReleaseEntry]) -> Iterator[Revocation]:
        """What release files say, without reason or day; a signed withdrawal outweighs it.

        A file of a newer format can say it, too. One that is damaged says nothing.
        """
        from tsuku_llm.manifest import says_revoked  # noqa: PLC0415

        name = self.repository.name
        ended = {e.release for e in self.revoked if e.repository == name and e.withdrawn}
        for entry in entries:
            with suppress(TrustError, StoreError):
                if entry.release not in ended and says_revoked(self._verified(entry)):
                    yield Revocation(name, entry.release, builds=self._builds(entry))

    def _builds(self, entry: ReleaseEntry) -> tuple[tuple[str, ...], ...]:
        """The digests of each build of a release; none where its file cannot be read."""
        with suppress(TrustError, StoreError):
            return self.read(entry).builds
        return ()

    def unattested(self, entry: ReleaseEntry) -> str | None:
        """Why it was not verified who built a release; None where its file gives no reason."""
        with suppress(TrustError, StoreError):
            return self.read(entry).unattested
        return None

    def releases(self, channel: str) -> tuple[ReleaseEntry, ...]:
        """The releases of a channel, newest first. Raises ``UnknownRequest``."""
        found = tuple(entry for entry in self.entries if channel in entry.channels)
        if not found:
            raise UnknownRequest(
                f"there is no channel {channel!r}",
                facts=(f"channels: {', '.join(self.channels) or 'none'}",),
                hint="name one of them with --channel",
            )
        return found

    def entry(self, release: str) -> ReleaseEntry:
        """A release by its tag ("b11429") or version ("v0.6.0", "0.6.0").

        Raises ``UnknownRequest``.
        """
        wanted = release.lower()
        for entry in self.entries:
            if wanted == entry.release or wanted.removeprefix("v") == entry.version:
                return entry
        raise UnknownRequest(
            f"there is no release {release!r}",
            facts=(f"releases: {', '.join(map(_release_name, self.entries)) or 'none'}",),
            hint="name one of them with --release, or leave it to the channel",
        )

    def is_readable(self, entry: ReleaseEntry) -> bool:
        """Tell whether a release's file is there, undamaged and understood."""
        with suppress(TrustError, StoreError):
            self.read(entry)
            return True
        return False

    def readable(
        self, entries: Iterable[ReleaseEntry], tell: Callable[[str], object]
    ) -> Iterator[tuple[ReleaseEntry, Release]]:
        """Read releases one by one; one that cannot be read is told and left out.

        A damaged file or one of a newer format must not keep anybody from the other releases.
        Raises the first error where none of them can be read.
        """
        first: TsukuError | None = None
        any_read = False
        for entry in entries:
            try:
                release = self.read(entry)
            except (TrustError, StoreError) as error:
                first = first or error
                reason = ": ".join((error.message, *error.facts[:1]))
                tell(f"{_release_name(entry)} is passed over: {reason}")
                continue
            any_read = True
            yield entry, release
        if first and not any_read:
            raise first

    def read(self, entry: ReleaseEntry) -> Release:
        """Read the release itself. Raises ``TrustError``, ``StoreError``."""
        from tsuku_llm.manifest import parse_release  # noqa: PLC0415

        data = self._verified(entry)
        try:
            release = parse_release(data)
        except ManifestError as error:
            raise ManifestError(
                f"the release file of {_release_name(entry)} cannot be understood",
                facts=error.facts,
                hint=error.hint,
            ) from error
        if (release.release, release.version) != (entry.release, entry.version):
            found = _release_name(release)
            raise ManifestError(f"the file of {_release_name(entry)} describes {found}")
        return release

    def _verified(self, entry: ReleaseEntry) -> VerifiedBytes:
        path = f"releases/{entry.release}.json"
        hint = "install tsuku-llm again: this package is damaged"
        if self.source == "updated":
            hint = f"run: tsuku-llm repository refresh {self.repository.name}"
        data = self.copy.read(self.trusted.targets[path].name)
        if data is None:
            raise MetadataError(f"the release file of {entry.release} is missing", hint=hint)
        try:
            return self.trusted.read(path, data)
        except DigestMismatch as error:
            error.hint = hint
            raise


@dataclass(frozen=True, slots=True)
class Loaded:
    """A copy that verified, and whose entries (newest first) this version can read."""

    source: str
    copy: Copy
    trusted: TrustedRepository
    entries: tuple[ReleaseEntry, ...]


def load(repository: Repository, data: Path) -> Catalog:
    """The newest valid copy of a repository, from disk only.

    An updated copy is passed over with a note where it does not verify, has entries that this
    version cannot read, or has any role in a lower version than the package has.
    Raises ``ManifestError`` for such an entry of the embedded copy,
    ``MetadataError`` when there is no valid copy at all.
    """
    catalog = _newest(repository, data)
    seen, _ = revocations.read_all(data)
    signed = _signed_revocations(repository.name, catalog.trusted)
    own = revocations.merged(seen.pop(repository.name, ()), signed)
    return replace(catalog, revoked=(*own, *chain.from_iterable(seen.values())))


def _newest(repository: Repository, data: Path) -> Catalog:
    notes: list[str] = []
    roots = known_roots(repository, data)
    updated = updated_copy(repository, data, roots, notes)
    if repository.embedded is None:
        if updated is None:
            raise _nothing_valid(repository, notes)
        return _catalog(repository, updated, notes)
    embedded = verified("embedded", repository.embedded, repository, roots)
    if updated is None:
        return _catalog(repository, embedded, notes)
    known, found = versions_under(embedded, updated.copy, roots), updated.trusted.versions
    if not trust.setbacks(known, found):
        return _catalog(repository, embedded if known == found else updated, notes)
    if trust.setbacks(found, known):  # a copy that is only older needs no word
        lower = ", ".join(f"{role} {known[role]}" for role in trust.setbacks(known, found))
        notes.append(_not_used(repository, f"this package has newer metadata: {lower}"))
    return _catalog(repository, embedded, notes)


def updated_copy(
    repository: Repository, data: Path, roots: KnownRoots, notes: list[str]
) -> Loaded | None:
    """The copy of the last refresh, None where there is none or, with a note, no valid one."""
    try:
        folder = current_copy(folder_of(data, repository.name))
        if folder is None:
            return None
        return verified("updated", FolderCopy(folder), repository, roots)
    except (TrustError, StoreError) as error:
        notes.append(_not_used(repository, ": ".join((error.message, *error.facts))))
        return None


def _not_used(repository: Repository, reason: str) -> str:
    return (
        f"the updated metadata of {repository.name} is not used: {reason}; "
        f"to fetch it again: tsuku-llm repository refresh {repository.name}"
    )


def versions_under(known: Loaded, newer: Copy, roots: KnownRoots) -> Mapping[str, int]:
    """The versions of a known copy that count under the newest root of a newer copy.

    No versions where the keys of its timestamp or snapshot were replaced: then the repository may
    count from where it was, to recover from a fast-forward (TUF 5.3.11).
    """
    try:
        return trust.versions(WithRootsOf(known.copy, newer), roots.start)
    except MetadataError:
        return {}


def verified(source: str, copy: Copy, repository: Repository, roots: KnownRoots) -> Loaded:
    """Verify a copy and read its entries: what cannot be read is no better than unsigned.

    Raises ``MetadataError``, also for other bytes of a known root; ``ManifestError``.
    """
    roots.require(copy)
    try:
        trusted = trust.load(copy, roots.start, repository.sought)
    except MetadataError as error:
        if copy.read(f"metadata/{roots.anchor}.root.json") is not None:
            raise
        fact = f"its roots end before root {roots.anchor}, which replaced keys"
        raise MetadataError(error.message, facts=(*error.facts, fact), hint=error.hint) from error
    _signed_revocations(source, trusted)
    return Loaded(source, copy, trusted, _entries(trusted))


def _signed_revocations(name: str, trusted: TrustedRepository) -> tuple[Revocation, ...]:
    """The signed list of what was revoked. Raises ``ManifestError``."""
    try:
        return revocations.parse(name, trusted.revoked)
    except ValueError as error:
        raise ManifestError(
            "the signed list of revoked releases cannot be understood",
            facts=(str(error),),
            hint="update tsuku-llm: the repository may use a newer format",
        ) from error


def _entries(trusted: TrustedRepository) -> tuple[ReleaseEntry, ...]:
    """The entries of all releases, newest first; what a branch may not offer is left out.

    A path delegated to the role "nightly" is for the channel "nightly" alone, and a version
    number is for the role that claims it with the highest priority. So a machine that
    signs one channel can neither fill another one nor take the name of its releases.
    """
    from tsuku_llm.manifest import parse_entry  # noqa: PLC0415

    entries = []
    versions: dict[str, str | None] = {}
    for path, target in trusted.targets.items():
        if not matches(path, trust.RELEASES):
            continue
        entry = parse_entry(target)
        if path != f"releases/{entry.release}.json":
            raise ManifestError(f"the entry of {path[:100]!r} describes {entry.release}")
        if target.branch is not None and entry.channels != (target.branch,):
            continue
        if entry.version and versions.setdefault(entry.version, target.branch) != target.branch:
            continue
        entries.append(entry)
    return tuple(sorted(entries, key=lambda each: (each.sequence, each.release), reverse=True))


def _catalog(repository: Repository, loaded: Loaded, notes: list[str]) -> Catalog:
    source, copy, trusted, entries = loaded.source, loaded.copy, loaded.trusted, loaded.entries
    return Catalog(repository, source, trusted, entries, copy, tuple(notes))


def _nothing_valid(repository: Repository, notes: list[str]) -> MetadataError:
    return MetadataError(
        f"there is no valid metadata of repository {repository.name!r} on this machine",
        facts=tuple(notes),
        hint=f"fetch it: tsuku-llm repository refresh {repository.name}",
    )


def _release_name(entry: ReleaseEntry | Release) -> str:
    return f"{entry.release} (v{entry.version})" if entry.version else entry.release
