"""The download of a repository's newest metadata and release files, verified on the way."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm import trust
from tsuku_llm.catalog.copies import (
    LARGEST_FILE,
    TIMESTAMP,
    FolderCopy,
    ServedCopy,
    commit,
    current_copy,
    names_of,
)
from tsuku_llm.catalog.loading import (
    Catalog,
    signed_revocations,
    versions_under,
    with_entries,
    with_revocations,
)
from tsuku_llm.catalog.metadata_status import CURRENT, Freshness, days, folder_of
from tsuku_llm.catalog.repositories import FILES, Repository
from tsuku_llm.catalog.roots import (
    KnownRoots,
    keep_roots,
    keep_seen,
    known_roots,
    make_safe,
    other_root,
    seen_versions,
)
from tsuku_llm.ground import clock
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import (
    BodyError,
    DigestMismatch,
    DownloadError,
    HttpStatusError,
    MetadataError,
    StaleMetadata,
    StoreError,
    TrustError,
)
from tsuku_llm.ground.files import make_folder
from tsuku_llm.ground.folders import opened
from tsuku_llm.trust import Copy, RoleState, Stated, TrustedRepository

if TYPE_CHECKING:
    from tuf.api.metadata import Root  # type: ignore[attr-defined]  # its own re-export

Download = Callable[[str, int], bytes]
"""``(path in the repository, largest size in bytes) -> body``.

Raises ``DownloadError``, also for a larger body; ``HttpStatusError`` for a file that is not there.
"""


def refresh(
    repository: Repository,
    data: Path,
    download: Download,
    channel: str | None = None,
    *,
    alone: bool = False,
) -> Catalog:
    """Download a repository's newest metadata and release files, and load the result.

    It follows the TUF client workflow. The whole is kept in one step or not at all. ``alone`` says
    that a lock keeps out other processes that refresh: then files of crashed processes are removed.
    A role of another channel than ``channel`` may be missing or forged: it then offers nothing, and
    a note says so. Without ``channel`` none may. Entries that this version cannot read are skipped
    with notes. Raises ``DownloadError``, ``MetadataError`` (a rollback, expired metadata, …),
    ``ManifestError`` for a list of revocations that this version cannot read, and ``StoreError``.
    """
    return _Refresh(repository, data, clock.now(), download, channel).run(alone=alone)


def adopt(
    repository: Repository, data: Path, copy: Copy, now: datetime, *, expired_too: bool = False
) -> Catalog:
    """Take the metadata and release files of a copy that a person brought, and load the result.

    It is verified as an answer of the repository is. The caller holds the lock of the repository's
    metadata. ``expired_too`` accepts expired metadata. Raises ``StaleMetadata`` for that,
    ``MetadataError`` (a rollback, a wrong signature, …), ``ManifestError`` and ``StoreError``.
    """
    known_roots(repository, data).require(copy)
    brought = _Refresh(
        repository, data, now, lambda name, _: copy.read(name), expired_too=expired_too
    )
    return brought.run(alone=True)


class _Earlier(NamedTuple):
    """Versions that must not go back, and the copy that has them, if there is one."""

    source: str
    versions: Mapping[str, int]
    copy: Copy | None = None


@dataclass(slots=True)
class _Refresh:
    """One run of the TUF client workflow (section 5), at one fixed time.

    ``get`` is a ``Download``; that of a copy on this machine returns None for a missing file.
    """

    repository: Repository
    data: Path
    now: datetime
    get: Callable[[str, int], bytes | None]
    channel: str | None = None
    expired_too: bool = False
    states: dict[str, RoleState] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)

    def run(self, *, alone: bool) -> Catalog:
        """Verify, keep and load what ``get`` returns."""
        repository, data = self.repository, self.data
        folder = folder_of(data, repository.name)
        with disk_errors("keeping the metadata", folder):
            make_folder(folder)
            if alone:
                with opened(data, "metadata", repository.name) as ours:
                    if ours is not None:
                        ours.drop_temporaries("|".join(FILES), older_than=math.inf)
            # Before anything opens these files: fifos or links may have their names.
            make_safe(folder, alone=alone)
            roots = known_roots(repository, data)
            keep_roots(folder, roots.files)
            known: dict[str, Copy] = {}
            with suppress(StoreError):  # a name that is damaged: the copy is written again
                if updated := current_copy(folder):
                    known["updated"] = FolderCopy(updated)
            if repository.embedded:
                known["embedded"] = repository.embedded
            files = {f"metadata/{n}.root.json": file for n, file in roots.files.items()}
            copy = ServedCopy(self.get, {**files}, [*known.values()], trust.check_root(roots.start))
            try:
                trusted, earlier = self._verified(copy, roots, known)
            except StaleMetadata:
                raise
            except MetadataError as error:
                # Once its timestamp was verified, the host has our root: the rest tells more.
                if not self.served:
                    self._require_known_root(roots)
                error.facts += (f"repository: {repository.name}",)
                raise
            kept = self._files(copy, trusted, known)
            # An updated copy that lacks a file, or has a damaged one or another next root, is
            # replaced even if the package has the same metadata: else every load would report it.
            next_root = f"metadata/{trusted.roles['root'].version + 1}.root.json"
            here = known.get("updated" if os.path.lexists(folder / CURRENT) else "embedded")
            if here is None or not _has(here, {**kept, next_root: None}):
                here = FolderCopy(commit(folder, kept))
        versions = next((e.versions for e in earlier if e.source == "embedded"), {})
        if repository.embedded and versions == trusted.versions:
            catalog = with_entries(repository, "embedded", repository.embedded, trusted)
        else:
            catalog = with_entries(repository, "updated", here, trusted)
        return with_revocations(catalog, data)

    def _verified(
        self, copy: ServedCopy, roots: KnownRoots, known: Mapping[str, Copy]
    ) -> tuple[TrustedRepository, tuple[_Earlier, ...]]:
        """Verify each file before the next one is fetched; also return the versions here."""
        folder = folder_of(self.data, self.repository.name)
        root, newest = copy.root, roots.start
        for later, file in trust.later_roots(copy, root):
            root, newest = later, file
            # Keep it now, even if a later file is refused (TUF 5.3.8).
            keep_roots(folder, {root.version: file})
        self._require_fresh("root", trust.state_of(root))
        copy.root = root
        counted = (
            _Earlier(name, versions_under(each, newest), each) for name, each in known.items()
        )
        earlier = (*counted, _Earlier("seen before", seen_versions(folder, root)))

        def accept(stated: Stated) -> None:
            self._require_later(stated, earlier)
            if stated.role == "snapshot":
                name = trust.file_name("snapshot", stated.state.version)
                kept = (each.copy.read(name) for each in earlier if each.copy and each.versions)
                if any(data not in (None, copy.files[name]) for data in kept):
                    raise MetadataError(
                        "the repository serves metadata that is not what this machine has under "
                        "the same version",
                        facts=(f"file: {name}",),
                        hint="try another network; if the error remains, tell the repository's "
                        "publisher",
                    )
            self._require_fresh(stated.role, stated.state)
            # Keep these now, too (TUF 5.4.5, 5.5.7).
            keep_seen(folder, root, stated.versions)
            copy.named.update(stated.files)

        self._choose_timestamp(copy, root, earlier)
        trusted = trust.load(copy, newest, self.repository.sought, accept)
        signed_revocations(self.repository.name, trusted)
        for branch, error in trusted.withheld.items():
            # Before anything is kept: its own users go on with the copy that has it.
            if self.channel in (None, branch):
                raise error
        for role in trusted.expired(self.now):
            self._require_fresh(role, trusted.roles[role])
        return trusted, earlier

    def _choose_timestamp(
        self, copy: ServedCopy, root: Root, earlier: tuple[_Earlier, ...]
    ) -> None:
        """Let a known timestamp stay in force if the served one has its version (5.4.3.1)."""
        served = copy.read(TIMESTAMP)
        for each in earlier:
            kept = each.copy.read(TIMESTAMP) if each.copy and each.versions else None
            if served is None or kept is None:
                continue
            if kept != served:
                stated = trust.check_role(root, served, "timestamp")
                if stated.state.version != each.versions["timestamp"]:
                    continue
            copy.files[TIMESTAMP] = kept
            return

    def _require_later(self, stated: Stated, earlier: tuple[_Earlier, ...]) -> None:
        """Refuse a timestamp or snapshot that takes a role back (5.4.3, 5.5.5)."""
        self.served |= stated.versions
        for each in earlier:
            # Only the snapshot names every role: one that is missing there was taken away.
            here = {
                role: version
                for role, version in each.versions.items()
                if stated.role == "snapshot" or role in stated.versions
            }
            if trust.setbacks(here, self.served):
                raise MetadataError(
                    "this metadata is older than what this machine has",
                    facts=(
                        f"versions here ({each.source}): {_version_text(each.versions)}",
                        f"versions served: {_version_text(self.served)}",
                    ),
                    hint="most often a mirror or a bundle is outdated: bring the mirror up to "
                    "date, or make a new bundle; else someone withholds newer metadata: try "
                    "another network, and tell the repository's publisher",
                )

    def _require_fresh(self, role: str, state: RoleState) -> None:
        """Refuse what has expired. Raises ``StaleMetadata``."""
        self.states[role] = state
        if state.expires <= self.now and not self.expired_too:
            fact = f"{role[:60]!a} is expired"
            raise _stale(self.repository, fact, self.states, self.now)

    def _require_known_root(self, roots: KnownRoots) -> None:
        """Refuse a host that has other bytes for the newest known root. Raises ``MetadataError``.

        Nothing else from such a host is worth reporting.
        """
        version = max(roots.files)
        name = f"metadata/{version}.root.json"
        with suppress(DownloadError):  # the caller then reports the first refusal
            served = self.get(name, LARGEST_FILE)
            if served not in (None, roots.files[version]):
                raise other_root("the served", version, roots.files[version], served)

    def _files(
        self, copy: ServedCopy, trusted: TrustedRepository, known: Mapping[str, Copy]
    ) -> dict[str, bytes]:
        """Collect the files of the new copy; fetch only the release files that are missing.

        One of a delegated role that the host does not have is left out.
        """
        pinned = trust.check_root(self.repository.root).version
        found = {name: copy.read(name) for name in names_of(trusted, pinned)}
        kept = {name: data for name, data in found.items() if data is not None}
        for path, target in trusted.targets.items():
            data = _kept(trusted, path, known)
            if data is None:
                limit = min(target.length, LARGEST_FILE)
                try:
                    data = self.get(target.name, limit)
                    data = trusted.read(path, data or b"")
                except (HttpStatusError, BodyError, DigestMismatch) as error:
                    # A stolen key of a delegated role can sign a file that does not exist: skip
                    # that release. A file that targets itself signs must exist. An error of a
                    # busy host does not show that a file is missing.
                    missing = not isinstance(error, HttpStatusError) or error.is_absence
                    if target.branch is None or not missing:
                        raise
                    continue
            kept[target.name] = data
        return kept


def _stale(
    repository: Repository, fact: str, roles: Mapping[str, RoleState], now: datetime
) -> StaleMetadata:
    signed = [role.issued for role in roles.values() if role.issued and role.expires <= now]
    since = f" since {max(signed):%Y-%m-%d}" if signed else ""
    return StaleMetadata(
        f"the metadata that {repository.name} serves has expired",
        facts=(fact, *_expired(roles, now), "installed versions still run"),
        hint=f"most often its publisher has stopped signing{since}: ask them, or see whether a "
        "newer tsuku-llm names another place; else this machine's clock is wrong, or someone "
        "withholds newer metadata",
    )


def require_channel(catalog: Catalog, channel: str, now: datetime) -> tuple[str, ...]:
    """Refuse a channel whose own role has expired; return what to tell of the other channels.

    Raises ``StaleMetadata``.
    """
    late = catalog.trusted.late(now)
    if channel in late:
        roles = {channel: late[channel]}
        raise _stale(catalog.repository, f"{channel[:60]!a} is expired", roles, now)
    branches = catalog.trusted.branches
    # One line for a channel, whatever its signer delegates to.
    broken = {branches.get(role) or role: why for role, why in catalog.trusted.refused.items()}
    return (
        *(
            f"warning: the channel {branch[:60]!a} expired on {state.expires:%Y-%m-%d}, and was "
            "not signed again: its builds may be outdated; other channels are not affected"
            for branch, state in late.items()
        ),
        *(
            f"warning: the channel {branch[:60]!a} lacks builds: {why}; other channels are not "
            "affected"
            for branch, why in broken.items()
        ),
    )


def _expired(seen: Mapping[str, RoleState], now: datetime) -> Iterator[str]:
    """Describe each served role that has expired, with its age."""
    for role, state in seen.items():
        age = Freshness(role, state.issued, state.expires)
        if age.expired(now):
            expired = f"expired on {state.expires:%Y-%m-%d} ({days(now - state.expires)})"
            yield f"{role} {state.version}: {age.age(now)}, {expired}"


def _version_text(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{role} {version}" for role, version in sorted(versions.items()))


def _has(copy: Copy, files: Mapping[str, bytes | None]) -> bool:
    """Tell whether a copy has these files, and lacks those that are None."""
    with suppress(StoreError):
        return all(copy.read(name) == data for name, data in files.items())
    return False


def _kept(trusted: TrustedRepository, path: str, known: Mapping[str, Copy]) -> bytes | None:
    for copy in known.values():
        with suppress(TrustError, StoreError):
            data = copy.read(trusted.targets[path].name)
            if data is not None:
                return trusted.read(path, data)
    return None
