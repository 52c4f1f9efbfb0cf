"""The catalog of a repository, loaded from the newest valid copy on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm import trust
from tsuku_llm.catalog import revocations
from tsuku_llm.catalog.copies import FolderCopy, WithRootsOf, current_copy
from tsuku_llm.catalog.metadata_status import Freshness, MetadataStatus, folder_of
from tsuku_llm.catalog.repositories import Repository
from tsuku_llm.catalog.revocations import Revocation
from tsuku_llm.catalog.roots import KnownRoots, known_roots
from tsuku_llm.ground.errors import (
    CorruptStore,
    DigestMismatch,
    ManifestError,
    MetadataError,
    StoreError,
    TrustError,
    TsukuError,
    UnknownRequest,
    UnsafeLocation,
    did_you_mean,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.trust import Copy, Target, TrustedRepository, VerifiedBytes
from tsuku_llm.trust.delegations import is_own_file, matches

if TYPE_CHECKING:  # msgspec, below the manifest, is loaded when a manifest is read
    from tsuku_llm.catalog.manifest import Release, ReleaseEntry

_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
_MOST_NOTES = 8
"""The most notes about one copy: a thief of a key could sign thousands of unreadable entries."""

_NAME_ONE = "name one of them with --release, or omit --release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The releases that a repository offers, verified in this process.

    ``source`` says where its ``copy`` is: ``embedded``, ``updated`` or ``mirror``. ``entries`` are
    the releases that this version can read, newest first. ``files`` has the signed file of each of
    them, and of each skipped release, by its tag. ``skipped`` has the reason for each release whose
    entry cannot be read, by its tag, or by its path if the tag belongs to another role. ``notes``
    say what was skipped, and why an updated copy was not used. ``revoked`` has the signed list of
    revocations, and those seen before in this repository and in others.
    """

    repository: Repository
    source: str
    copy: Copy
    trusted: TrustedRepository
    entries: tuple[ReleaseEntry, ...]
    files: Mapping[str, Target]
    skipped: Mapping[str, str]
    notes: tuple[str, ...]
    revoked: tuple[Revocation, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that have a release."""
        return tuple(sorted({channel for entry in self.entries for channel in entry.channels}))

    @property
    def freshness(self) -> Freshness:
        """The age of the metadata, as far as it concerns everybody."""
        return self.freshness_in(None)

    def freshness_in(self, channel: str | None) -> Freshness:
        """Return the age of the metadata for the users of a channel.

        A delegated role's expiry is that of its own channel: its keys may be an automatic signer's,
        whose silence must not end the other channels.
        """
        roles = self.trusted.roles
        # An automatic signer may hold a delegated role. If its dates counted, a wrong clock there
        # would make the clock of every user look wrong.
        issued = (roles[role].issued for role in trust.ROLES)
        signed = max((date for date in issued if date), default=None)
        expires = min(each.expires for each in self.trusted.within(channel).values())
        return Freshness(self.repository.name, signed, expires)

    def metadata_status(self) -> MetadataStatus:
        """Summarise what the metadata says about its releases, for the next start."""
        own = [each for each in self.revoked if each.repository == self.repository.name]
        offered = [entry.release for entry in self.entries if entry.channels]
        # A skipped release may well be in a channel: do not tell its users that it is gone.
        offered += [name for name in self.skipped if name not in offered]
        revoked = revocations.merged(self._by_files(self.files), own)
        return MetadataStatus(self.freshness, revoked, tuple(offered))

    def revocation(self, entry: ReleaseEntry) -> Revocation | None:
        """Find the revocation of a release; None if it may be used.

        The release's name counts in its own repository, its archives count in all. If its file
        cannot be read, only the name counts.
        """
        builds = self._builds(entry)
        for each in (*self.revoked, *self._by_files([entry.release])):
            if found := each.of((self.repository.name,), entry.release, builds):
                return found
        return None

    def _by_files(self, releases: Iterable[str]) -> Iterator[Revocation]:
        """Collect the revocations in release files; they have no reason and no day.

        A signed withdrawal overrides them. Files of a newer format count too, and those of skipped
        releases; damaged files are skipped. What a role with paths of its own signs revokes the
        name only: a list of builds would revoke the same builds in other channels, for good.
        """
        from tsuku_llm.catalog.manifest import says_revoked

        name = self.repository.name
        ended = {e.release for e in self.revoked if e.repository == name and e.withdrawn}
        entries = {entry.release: entry for entry in self.entries}
        for release in releases:
            with suppress(TrustError, StoreError):
                if release not in ended and says_revoked(self._verified(release)):
                    entry, target = entries.get(release), self.files[release]
                    builds = self._builds(entry) if entry and target.branch is None else ()
                    yield Revocation(name, release, builds=builds)

    def _builds(self, entry: ReleaseEntry) -> tuple[tuple[str, ...], ...]:
        """Return the digests of each build of a release; empty if its file cannot be read."""
        with suppress(TrustError, StoreError):
            return self.read(entry).builds
        return ()

    def doubts(self, entry: ReleaseEntry) -> tuple[str | None, str | None]:
        """Return why the builder of a release was not verified, and why it was not measured.

        None if the release file gives no reason, or cannot be read.
        """
        with suppress(TrustError, StoreError):
            release = self.read(entry)
            return release.unattested, release.unmeasured
        return None, None

    def releases(self, channel: str) -> tuple[ReleaseEntry, ...]:
        """List the releases of a channel, newest first.

        Raises ``UnknownRequest``, and ``ManifestError`` if no release at all can be read.
        """
        found = tuple(entry for entry in self.entries if channel in entry.channels)
        if not found and not self.entries and self.skipped:
            raise self._unreadable(*self.skipped)
        if not found:
            raise UnknownRequest(
                f"there is no channel {channel!r}",
                facts=(f"channels: {', '.join(self.channels) or 'none'}",),
                hint=did_you_mean(channel, self.channels, "name one of them with --channel"),
            )
        return found

    def entry(self, release: str) -> ReleaseEntry:
        """Find a release by its tag ("b11429") or version ("v0.6.0", "0.6.0").

        Raises ``UnknownRequest``, and ``ManifestError`` for one whose entry cannot be read.
        """
        wanted = release.lower()
        for entry in self.entries:
            if wanted == entry.release or wanted.removeprefix("v") == entry.version:
                return entry
        if wanted in self.skipped:
            raise self._unreadable(wanted)
        raise UnknownRequest(
            f"there is no release {release!r}",
            facts=(f"releases: {', '.join(map(_release_name, self.entries)) or 'none'}",),
            hint=did_you_mean(
                wanted,
                (name for each in self.entries for name in (each.release, each.version) if name),
                _NAME_ONE,
            ),
        )

    def _unreadable(self, *releases: str) -> ManifestError:
        return ManifestError(
            f"{', '.join(releases[:3])} cannot be read",
            facts=tuple(self.skipped[release] for release in releases[:3]),
            hint=f"fetch it again: {TSUKU} repository refresh {self.repository.name}; if the "
            "error remains, update tsuku-llm, or name another release",
        )

    def is_readable(self, entry: ReleaseEntry) -> bool:
        """Tell whether a release's file exists, is undamaged and can be parsed."""
        with suppress(TrustError, StoreError):
            self.read(entry)
            return True
        return False

    def readable(
        self, entries: Iterable[ReleaseEntry], tell: Callable[[str], object]
    ) -> Iterator[tuple[ReleaseEntry, Release]]:
        """Read releases one by one; skip unreadable ones and report them to ``tell``.

        A damaged file, or one of a newer format, must not block the other releases. A disk error
        is different: the file may be intact, and without it an old release would pass for the
        newest. Raises the first error if no release can be read, and ``StoreError`` for the disk.
        """
        first: TsukuError | None = None
        any_read = False
        for entry in entries:
            try:
                release = self.read(entry)
            except (TrustError, CorruptStore, UnsafeLocation) as error:
                first = first or error
                tell(f"{_release_name(entry)} is skipped: {_why(error)}")
                continue
            any_read = True
            yield entry, release
        if first and not any_read:
            raise first

    def read(self, entry: ReleaseEntry) -> Release:
        """Read the release itself. Raises ``TrustError``, ``StoreError``."""
        from tsuku_llm.catalog.manifest import parse_release

        data = self._verified(entry.release)
        try:
            release = parse_release(data)
        except ManifestError as error:
            raise ManifestError(
                f"the release file of {_release_name(entry)} cannot be understood",
                facts=error.facts,
                hint=error.hint,
            ) from error
        # The entry and the file are signed separately: they must describe the same release.
        if (release.release, release.version) != (entry.release, entry.version):
            found = _release_name(release)
            raise ManifestError(f"the file of {_release_name(entry)} describes {found}")
        return release

    def _verified(self, release: str) -> VerifiedBytes:
        target = self.files[release]
        hint = "install tsuku-llm again: this package is damaged"
        if self.source == "updated":
            hint = f"run: {TSUKU} repository refresh {self.repository.name}"
        data = self.copy.read(target.name)
        if data is None:
            raise MetadataError(f"the release file of {release} is missing", hint=hint)
        try:
            return self.trusted.read(target.path, data)
        except DigestMismatch as error:
            error.hint = hint
            raise


def load(repository: Repository, data: Path) -> Catalog:
    """Load the newest valid copy of a repository, from disk only.

    An updated copy is skipped with a note if it does not verify, or has any role in a lower version
    than the package. Raises ``MetadataError`` if there is no valid copy, and ``ManifestError`` for
    an embedded list of revocations that this version cannot read.
    """
    notes: list[str] = []
    roots = known_roots(repository, data)
    updated: Catalog | None = None
    try:
        if folder := current_copy(folder_of(data, repository.name)):
            updated = verified("updated", FolderCopy(folder), repository, roots)
    except (TrustError, StoreError) as error:
        notes.append(_not_used(repository, ": ".join((error.message, *error.facts))))
    embedded = repository.embedded
    if updated is not None:
        known: Mapping[str, int] = {}
        if embedded is not None:
            known = versions_under(WithRootsOf(embedded, updated.copy), roots.start)
        found = updated.trusted.versions
        if known != found and not trust.setbacks(known, found):
            # No role of the updated copy is lower than in the package, and one is higher.
            catalog = replace(updated, notes=(*notes, *updated.notes))
            return with_revocations(catalog, data)
        if trust.setbacks(known, found) and trust.setbacks(found, known):
            # A copy that is older in every role needs no note.
            lower = ", ".join(f"{role} {known[role]}" for role in trust.setbacks(known, found))
            notes.append(_not_used(repository, f"this package has newer metadata: {lower}"))
    if embedded is None:
        raise MetadataError(
            f"there is no valid metadata of repository {repository.name!r} on this machine",
            facts=tuple(notes),
            hint=f"fetch it: {TSUKU} repository refresh {repository.name}",
        )
    catalog = verified("embedded", embedded, repository, roots)
    return with_revocations(replace(catalog, notes=(*notes, *catalog.notes)), data)


def with_revocations(catalog: Catalog, data: Path) -> Catalog:
    """Add what this machine knows of revoked releases. Raises ``ManifestError``."""
    repository = catalog.repository
    seen, _ = revocations.read_all(data)
    signed = signed_revocations(repository.name, catalog.trusted)
    # What was seen before comes first, so that the signed list wins on the same day.
    own = revocations.merged(seen.pop(repository.name, ()), signed)
    return replace(catalog, revoked=(*own, *chain.from_iterable(seen.values())))


def _not_used(repository: Repository, reason: str) -> str:
    return (
        f"the updated metadata of {repository.name} is not used: {reason}; "
        f"to fetch it again: {TSUKU} repository refresh {repository.name}"
    )


def versions_under(copy: Copy, root: bytes) -> Mapping[str, int]:
    """Return the versions of a copy that count under a root, and the later ones of the copy.

    Empty if its timestamp or snapshot is damaged, or signed with keys that were replaced. Then the
    repository may go back to lower versions, to recover from a fast-forward attack (TUF 5.3.11).
    """
    try:
        return trust.versions(copy, root)
    except (MetadataError, StoreError):
        return {}


def verified(source: str, copy: Copy, repository: Repository, roots: KnownRoots) -> Catalog:
    """Verify a copy and read its entries.

    Raises ``MetadataError``, also if a known root has other bytes; ``ManifestError``.
    """
    roots.require(copy)
    try:
        trusted = trust.load(copy, roots.start, repository.sought)
    except MetadataError as error:
        # A copy whose roots end before the anchor was signed with keys that were replaced later:
        # add this fact, or the signatures would look forged.
        if copy.read(f"metadata/{roots.anchor}.root.json") is not None:
            raise
        fact = f"its roots end before root {roots.anchor}, which replaced keys"
        raise MetadataError(error.message, facts=(*error.facts, fact), hint=error.hint) from error
    signed_revocations(source, trusted)
    return with_entries(repository, source, copy, trusted)


def signed_revocations(name: str, trusted: TrustedRepository) -> tuple[Revocation, ...]:
    """Read the signed list of revocations. Raises ``ManifestError``."""
    try:
        return revocations.parse(name, trusted.revoked)
    except ValueError as error:
        raise ManifestError(
            "the signed list of revoked releases cannot be understood",
            facts=(str(error),),
            hint="update tsuku-llm: the repository may use a newer format",
        ) from error


def _release_name(entry: ReleaseEntry | Release) -> str:
    return f"{entry.release} (v{entry.version})" if entry.version else entry.release


def with_entries(
    repository: Repository, source: str, copy: Copy, trusted: TrustedRepository
) -> Catalog:
    """Read the entries of all releases, newest first; skip what a role may not offer.

    A path delegated to the role "nightly" is only for the channel "nightly". A name that a user
    can ask for, tag or version, belongs to the role of the highest priority that claims it. So an
    automatic signer of one channel can neither add releases to another channel nor take the names
    of its releases. An unreadable entry is skipped with a note: it must not hide other releases or
    the revocations of the same metadata. Raises ``StoreError`` for the disk.
    """
    entries: dict[str, ReleaseEntry] = {}
    files: dict[str, Target] = {}
    names: dict[str, str | None] = {}
    skipped: dict[str, str] = {}
    held: dict[str, Target] = {}
    notes = [f"the role {role[:60]!a} is skipped: {why}" for role, why in trusted.refused.items()]
    # The targets come in the order of their roles' priority: the first claim counts.
    for path, target in trusted.targets.items():
        try:
            entry = _entry(path, target, copy, trusted)
        except (TrustError, CorruptStore, UnsafeLocation) as error:
            reason = _why(error)
            # Only the path says which release this is. It keeps its names from the roles after its
            # own: else they could pass off another release as this one.
            name = path.rpartition("/")[2].removesuffix(".json")
            tag = name.removeprefix("v")
            if _NAME.fullmatch(name) and names.setdefault(tag, target.branch) == target.branch:
                names.setdefault(_stated_version(target) or tag, target.branch)
                held.setdefault(name, target)
            else:
                name = path
            skipped.setdefault(name, reason)
            shown = name if matches(path, trust.RELEASES) else f"{path[:100]!a}"
            notes.append(f"{shown} is skipped: {reason}")
            continue
        if entry is None:
            continue
        tag = entry.release
        if tag in files:
            # The very same file in a second role's folder, as after a promotion: the release is in
            # both channels. Another file of that name would take the name of the first one.
            if files[tag].sha256 == target.sha256:
                channels = dict.fromkeys((*entries[tag].channels, *entry.channels))
                entries[tag] = replace(entries[tag], channels=tuple(channels))
            continue
        # A tag may look like the version of another release, also with the "v" of
        # ``Catalog.entry``.
        claimed = {tag.removeprefix("v"), entry.version or tag}
        if any(names.get(name, target.branch) != target.branch for name in claimed):
            continue
        names |= dict.fromkeys(claimed, target.branch)
        entries[tag], files[tag] = entry, target
    if (more := len(notes) - _MOST_NOTES) > 0:
        notes[_MOST_NOTES:] = [f"{more} more are skipped: {TSUKU} list --available"]
    newest = sorted(entries.values(), key=lambda each: (each.sequence, each.release), reverse=True)
    return Catalog(
        repository=repository,
        source=source,
        copy=copy,
        trusted=trusted,
        entries=tuple(newest),
        files={**held, **files},
        skipped=skipped,
        notes=tuple(notes),
    )


def _entry(
    path: str, target: Target, copy: Copy, trusted: TrustedRepository
) -> ReleaseEntry | None:
    """Read the entry of one target; None if it is not offered.

    In ``releases/`` the entry is signed with the target. In a role's own folder there is none: the
    folder is the channel, and the release file says the rest. Raises ``TrustError``, and
    ``StoreError`` for the disk.
    """
    from tsuku_llm.catalog.manifest import entry_in, parse_entry

    if matches(path, trust.RELEASES):
        entry = parse_entry(target)
        if path != f"releases/{entry.release}.json":
            raise ManifestError(f"the entry of {path[:100]!r} describes {entry.release}")
        is_offered = target.branch is None or entry.channels == (target.branch,)
        return entry if is_offered else None
    if target.branch is None or not is_own_file(path, target.branch):
        return None
    tag = path.rpartition("/")[2].removesuffix(".json")
    data = copy.read(target.name)
    if data is None:
        raise MetadataError("its file is missing")
    return entry_in(trusted.read(path, data), tag, target.branch)


def _why(error: TsukuError) -> str:
    return ": ".join((error.message, *error.facts[:1]))


def _stated_version(target: Target) -> str | None:
    """Return the version in an entry that is otherwise not understood."""
    stated = target.custom.get("version") if isinstance(target.custom, dict) else None
    return stated if isinstance(stated, str) else None
