"""The catalog of a repository, from the newest valid copy on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm import trust
from tsuku_llm.catalog.copies import FolderCopy, WithRootsOf
from tsuku_llm.catalog.generations import current_copy
from tsuku_llm.catalog.repositories import Repository
from tsuku_llm.errors import (
    ManifestError,
    MetadataError,
    StoreError,
    TrustError,
    TsukuError,
    UnknownRequest,
)
from tsuku_llm.standing import Freshness, Standing, folder_of
from tsuku_llm.trust import Copy, TrustedRepository, VerifiedBytes

if TYPE_CHECKING:  # msgspec, below the manifest, is loaded when a manifest is read
    from tsuku_llm.manifest import Release, ReleaseEntry


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a repository offers, verified in this process.

    ``source`` is ``embedded`` or ``updated``; ``entries`` are all releases, newest first;
    ``notes`` tell why an updated copy was passed over.
    """

    repository: Repository
    source: str
    trusted: TrustedRepository
    entries: tuple[ReleaseEntry, ...]
    copy: Copy
    notes: tuple[str, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that have a release."""
        return tuple(sorted({channel for entry in self.entries for channel in entry.channels}))

    @property
    def freshness(self) -> Freshness:
        """How old the metadata is."""
        roles = self.trusted.roles.values()
        signed = max((role.issued for role in roles if role.issued), default=None)
        return Freshness(self.repository.name, signed, min(role.expires for role in roles))

    def standing(self) -> Standing:
        """What it says of its releases."""
        revoked = (entry.release for entry in self.entries if self.is_revoked(entry))
        return Standing(self.freshness, tuple(revoked))

    def is_revoked(self, entry: ReleaseEntry) -> bool:
        """Tell whether its publisher revoked a release; one whose file is damaged is not."""
        from tsuku_llm.manifest import says_revoked  # noqa: PLC0415

        with suppress(TrustError, StoreError):
            return says_revoked(self._verified(entry))
        return False

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
        data = self.copy.read(self.trusted.targets[path].name)
        if data is None:
            raise MetadataError(
                f"the release file of {entry.release} is missing",
                hint="fetch the metadata anew: tsuku-llm repository refresh",
            )
        return self.trusted.read(path, data)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A copy that verified, and whose entries (newest first) this version can read."""

    source: str
    copy: Copy
    trusted: TrustedRepository
    entries: tuple[ReleaseEntry, ...]


def load(repository: Repository, data: Path) -> Catalog:
    """The newest valid copy of a repository, from disk only.

    An updated copy that does not verify, or has entries that this version cannot read, is
    passed over with a note. Raises ``ManifestError`` for such an entry of the embedded copy,
    ``MetadataError`` when there is no valid copy at all.
    """
    notes: list[str] = []
    updated = updated_copy(repository, data, notes)
    if repository.embedded is None:
        if updated is None:
            raise _nothing_valid(repository, notes)
        return _catalog(repository, updated, notes)
    embedded = verified("embedded", repository.embedded, repository.root)
    if updated and is_later(updated, embedded, repository.root):
        return _catalog(repository, updated, notes)
    return _catalog(repository, embedded, notes)


def updated_copy(repository: Repository, data: Path, notes: list[str]) -> Loaded | None:
    """The copy of the last refresh, None where there is none or, with a note, no valid one."""
    try:
        folder = current_copy(folder_of(data, repository.name))
        if folder is None:
            return None
        return verified("updated", FolderCopy(folder), repository.root)
    except (TrustError, StoreError) as error:
        reason = ": ".join((error.message, *error.facts))
        notes.append(f"the updated metadata of {repository.name} is not used: {reason}")
        return None


def is_later(first: Loaded, second: Loaded, root: bytes) -> bool:
    """Whether a copy is later than another, both seen from the newest root of the two.

    Versions say which is later only while both are signed by the keys of the newest root:
    after keys were replaced, the repository starts to count anew where it needs to.
    """
    roots = [each.trusted.roles["root"].version for each in (first, second)]
    if roots[0] != roots[1]:
        older, newer = (first, second) if roots[0] < roots[1] else (second, first)
        try:
            trust.load(WithRootsOf(older.copy, newer.copy), root)
        except MetadataError:
            return newer is first
    return _versions(first.trusted) > _versions(second.trusted)


def _versions(trusted: TrustedRepository) -> tuple[int, ...]:
    return tuple(trusted.roles[role].version for role in ("timestamp", "snapshot", "targets"))


def verified(source: str, copy: Copy, root: bytes) -> Loaded:
    """Verify a copy and read its entries: what cannot be read is no better than unsigned.

    Raises ``MetadataError``, ``ManifestError``.
    """
    trusted = trust.load(copy, root)
    return Loaded(source, copy, trusted, _entries(trusted))


def _entries(trusted: TrustedRepository) -> tuple[ReleaseEntry, ...]:
    from tsuku_llm.manifest import parse_entry  # noqa: PLC0415

    entries = []
    for path, target in trusted.targets.items():
        if not path.startswith("releases/"):
            continue
        entry = parse_entry(target)
        if path != f"releases/{entry.release}.json":
            raise ManifestError(f"the entry of {path[:100]!r} describes {entry.release}")
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
