"""The download of a repository's newest metadata and release files, by python-tuf's updater."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tsuku_llm import trust
from tsuku_llm.catalog.copies import (
    LARGEST_FILE,
    DelegatedOnDemand,
    RootFiles,
    UpdaterCopy,
    WithRootsOf,
    names_of,
)
from tsuku_llm.catalog.copy_store import commit
from tsuku_llm.catalog.entries import Loaded
from tsuku_llm.catalog.loading import (
    Catalog,
    load,
    updated_copy,
    verified,
    verified_metadata,
    versions_under,
)
from tsuku_llm.catalog.metadata_status import Freshness, days, folder_of
from tsuku_llm.catalog.refresh.updater_state import make_safe, seed
from tsuku_llm.catalog.repositories import FILES, Repository
from tsuku_llm.catalog.roots import FOLDER, KnownRoots, keep_roots, known_roots, other_root
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
    from tuf.ngclient.fetcher import FetcherInterface

Download = Callable[[str, int], bytes]
"""``(url, largest size in bytes) -> body``; raises ``DownloadError``, also for a larger body."""

_NO_SUCH_FILE = (403, 404, 410)
"""The statuses of hosts for a file that they do not have; S3 sends 403."""


def refresh(
    repository: Repository, data: Path, download: Download, *, alone: bool = False
) -> Catalog:
    """Download a repository's newest metadata and release files, and load the result.

    python-tuf's updater downloads the metadata by the TUF client workflow. Then ``trust``
    verifies the whole again, and it is kept in one step or not at all. ``alone`` says that a
    lock keeps out other processes that refresh: then files of crashed processes are removed.
    Entries that this version cannot read are skipped with notes. Raises ``DownloadError``,
    ``MetadataError`` (a rollback, expired metadata, …), ``ManifestError`` for a list of revocations
    that this version cannot read, and ``StoreError``.
    """
    folder = folder_of(data, repository.name)
    with disk_errors("keeping the metadata", folder):
        make_folder(folder)
        if alone:
            with opened(data, "metadata", repository.name) as ours:
                if ours is not None:
                    ours.drop_temporaries("|".join(FILES), older_than=math.inf)
        copy = UpdaterCopy(folder / "client")
        # Before anything opens these folders: they may hold fifos or links.
        for place in (copy.folder, folder / FOLDER):
            make_safe(place, alone=alone)
        roots = known_roots(repository, data)
        unusable: list[str] = []
        known = _known(repository, data, roots, unusable)
        seed(copy.folder, roots, [each.copy for each in known])
        try:
            _update(repository, copy, roots, known, download)
        finally:
            # Also after a refusal: a root that verified counts from now on (TUF 5.3.8).
            keep_roots(folder, roots, copy)
        # The updater checks by the specification only; ``trust`` is stricter. It has checked the
        # four roles of every repository, but no delegated role.
        fetched = _fetched(repository, copy, download)
        trusted = verified_metadata("updated", fetched, repository, roots)
        if expired := trusted.expired(clock.now()):
            fact = f"{expired[0][:60]!a} is expired"
            raise _stale(repository, fact, trusted.roles)
        # The updater compares with its own state, which may have been lost: this compares with
        # every valid copy, too.
        _keep(repository, data, fetched, trusted, roots, known, download, replace=bool(unusable))
    return load(repository, data)


def adopt(
    repository: Repository, data: Path, copy: Copy, now: datetime, *, expired_too: bool = False
) -> Catalog:
    """Take the metadata and release files of a copy that a person brought, and load the result.

    It is verified as an answer of the repository is, and kept in one step or not at all. The caller
    holds the lock of the repository's metadata. ``expired_too`` accepts expired metadata. Raises
    ``StaleMetadata`` for that, ``MetadataError`` (a rollback, a wrong signature, …),
    ``ManifestError`` and ``StoreError``.
    """
    folder = folder_of(data, repository.name)
    with disk_errors("keeping the metadata", folder):
        make_folder(folder)
        make_safe(folder / FOLDER, alone=True)
        roots = known_roots(repository, data)
        roots.require(copy)
        unusable: list[str] = []
        known = _known(repository, data, roots, unusable)
        # What was signed with keys that a root known here has replaced must not count.
        whole = WithRootsOf(copy, RootFiles(roots.files))
        try:
            trusted = verified_metadata("updated", whole, repository, roots)
        finally:
            keep_roots(folder, roots, whole)
        if not expired_too and (expired := trusted.expired(now)):
            raise _stale(repository, f"{expired[0][:60]!a} is expired", trusted.roles)

        def read(url: str, limit: int) -> bytes:
            name = url.removeprefix(repository.url)
            found = whole.read(name)
            if found is None or len(found) > limit:
                raise HttpStatusError(f"there is no file {name}", status=_NO_SUCH_FILE[1])
            return found

        _keep(repository, data, whole, trusted, roots, known, read, replace=bool(unusable))
    return load(repository, data)


def _keep(  # noqa: PLR0913 - what one refresh has found
    repository: Repository,
    data: Path,
    copy: Copy,
    trusted: TrustedRepository,
    roots: KnownRoots,
    known: tuple[Loaded, ...],
    download: Download,
    *,
    replace: bool,
) -> None:
    """Keep verified metadata with its release files, unless this machine has them already.

    ``replace`` says that there is an updated copy that is not valid. Raises ``MetadataError`` for a
    rollback, and ``DownloadError``.
    """
    versions = trusted.versions
    counted = [versions_under(each, copy, roots) for each in known]
    for each, here in zip(known, counted, strict=True):
        if trust.setbacks(here, versions):
            raise _rollback(each, here, versions)
    files = _files(repository, copy, trusted, known, download)
    # A copy of the same versions that lacks a file, or has a damaged one, is replaced. An updated
    # copy that is not valid is replaced too, even if the package has the same: else every load
    # would go on to report it.
    here_already = any(
        versions == here and _is_whole(trusted, each)
        for each, here in zip(known, counted, strict=True)
    )
    if replace or not here_already:
        commit(folder_of(data, repository.name), files)


def _known(
    repository: Repository, data: Path, roots: KnownRoots, unusable: list[str]
) -> tuple[Loaded, ...]:
    """Load the valid copies on this machine, updated and embedded.

    If there is an updated copy that is not valid, the reason is added to ``unusable``.
    """
    found = [updated_copy(repository, data, roots, unusable)]
    if repository.embedded:
        found.append(verified("embedded", repository.embedded, repository, roots))
    return tuple(each for each in found if each)


def _update(
    repository: Repository,
    state: UpdaterCopy,
    roots: KnownRoots,
    known: tuple[Loaded, ...],
    download: Download,
) -> None:
    """Let python-tuf's updater download newer metadata, and explain its errors.

    Raises ``DownloadError``, ``MetadataError``.
    """
    from tuf.api import exceptions
    from tuf.ngclient.updater import Updater

    seen: dict[str, Stated] = {}
    try:
        Updater(
            str(state.folder),
            f"{repository.url}metadata/",
            fetcher=_fetcher(download, seen),
            bootstrap=roots.newest,
        ).refresh()
    except exceptions.DownloadHTTPError as error:
        # ``_fetcher`` wrapped our error for the updater, which takes 403 and 404 to mean "no newer
        # root". Raise ours again.
        raise error.__cause__ or error from None
    except exceptions.ExpiredMetadataError as error:
        # The root may be one that this machine has, with no newer one served.
        states = {"root": trust.check_metadata(roots.newest).state}
        states |= {role: stated.state for role, stated in seen.items()}
        raise _stale(repository, str(error), states) from error
    except exceptions.RepositoryError as error:
        # Find the most telling reason: a rollback, another root, else the updater's own words.
        if isinstance(error, exceptions.BadVersionNumberError):
            served = {role: v for each in seen.values() for role, v in each.versions.items()}
            for each in known:
                here = versions_under(each, state, roots)
                if trust.setbacks({role: here[role] for role in served if role in here}, served):
                    raise _rollback(each, here, served) from error
        else:
            _require_known_root(repository, roots, download)
        raise MetadataError(
            f"the metadata that {repository.name} serves is not trusted",
            facts=(str(error)[:300],),
            hint="try again later; if the error remains, tell the repository's publisher",
        ) from error


def _require_known_root(repository: Repository, roots: KnownRoots, download: Download) -> None:
    """Refuse a host that serves other bytes for the newest known root. Raises ``MetadataError``.

    Nothing else from such a host is worth reporting.
    """
    version = max(roots.files)
    url = f"{repository.url}metadata/{version}.root.json"
    with contextlib.suppress(DownloadError):  # the caller then reports the first refusal
        served = _limited(download, url, LARGEST_FILE)
        if served != roots.newest:
            raise other_root("the served", version, roots.newest, served)


def _fetched(repository: Repository, copy: UpdaterCopy, download: Download) -> DelegatedOnDemand:
    """Make the copy of the updater's files, with delegated metadata downloaded on demand."""

    def download_delegated(name: str, limit: int) -> bytes:
        # Role names are escaped in file names. A web server gets the escaped name as it is, as
        # from every TUF client. The path of a file: URL is unescaped when it is opened, so
        # escape the name once more.
        local = repository.url.startswith("file:")
        return _limited(download, f"{repository.url}{quote(name) if local else name}", limit)

    return DelegatedOnDemand(copy, download_delegated)


def _stale(repository: Repository, fact: str, roles: Mapping[str, RoleState]) -> StaleMetadata:
    now = clock.now()
    signed = [role.issued for role in roles.values() if role.issued and role.expires <= now]
    since = f" since {max(signed):%Y-%m-%d}" if signed else ""
    return StaleMetadata(
        f"the metadata that {repository.name} serves has expired",
        facts=(fact, *_expired(roles), "installed versions still run"),
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
        raise _stale(catalog.repository, f"{channel[:60]!a} is expired", roles)
    return tuple(
        f"warning: the channel {branch[:60]!a} expired on {state.expires:%Y-%m-%d}, and was not "
        "signed again: its builds may be outdated; other channels are not affected"
        for branch, state in late.items()
    )


def _expired(seen: Mapping[str, RoleState]) -> Iterator[str]:
    """Describe each served role that has expired, with its age."""
    now = clock.now()  # the updater reads the same clock
    for role, state in seen.items():
        age = Freshness(role, state.issued, state.expires)
        if age.expired(now):
            expired = f"expired on {state.expires:%Y-%m-%d} ({days(now - state.expires)})"
            yield f"{role} {state.version}: {age.age(now)}, {expired}"


def _fetcher(download: Download, seen: dict[str, Stated]) -> FetcherInterface:
    """Make the updater's fetcher; it notes in ``seen`` what each role's file says."""
    from tuf.api.exceptions import DownloadHTTPError
    from tuf.ngclient.fetcher import FetcherInterface

    class Fetcher(FetcherInterface):
        """A fetcher that passes on only metadata that ``trust`` could accept."""

        def download_bytes(self, url: str, max_length: int) -> bytes:
            try:
                data = _limited(download, url, max_length)
            except HttpStatusError as error:
                # The updater knows only its own error for a status, and needs it to find the last
                # root.
                raise DownloadHTTPError(error.message, error.status) from error
            stated = trust.check_metadata(data)
            seen[stated.role] = stated
            return data

        def _fetch(self, url: str) -> Iterator[bytes]:
            yield self.download_bytes(url, LARGEST_FILE)

    return Fetcher()


def _limited(download: Download, url: str, limit: int) -> bytes:
    data = download(url, limit)
    if len(data) > limit:
        raise BodyError(f"{url} has more than {limit:,} bytes")
    return data


def _rollback(known: Loaded, here: Mapping[str, int], served: Mapping[str, int]) -> MetadataError:
    return MetadataError(
        "the repository serves metadata that is older than what this machine has",
        facts=(
            f"versions here ({known.source}): {_version_text(here)}",
            f"versions served: {_version_text(served)}",
        ),
        hint="a mirror may be outdated, or someone withholds newer metadata: try another network; "
        "if the error remains, tell the repository's publisher",
    )


def _version_text(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{role} {version}" for role, version in sorted(versions.items()))


def _files(
    repository: Repository,
    copy: Copy,
    trusted: TrustedRepository,
    known: tuple[Loaded, ...],
    download: Download,
) -> dict[str, bytes]:
    """Collect the files of the new copy; download only the release files that are missing.

    One of a delegated role that the host does not have is left out.
    """
    pinned = trust.check_root(repository.root).version
    found = {name: copy.read(name) for name in names_of(trusted, pinned)}
    kept = {name: data for name, data in found.items() if data is not None}
    for path, target in trusted.targets.items():
        data = _kept(trusted, path, known)
        if data is None:
            limit = min(target.length, LARGEST_FILE)
            try:
                data = _limited(download, f"{repository.url}{target.name}", limit)
                data = trusted.read(path, data)
            except (HttpStatusError, BodyError, DigestMismatch) as error:
                # A thief of a delegated role's key can sign a file that nobody has: that release is
                # then skipped. What targets itself signs has to be there. A busy host is no proof.
                missing = not isinstance(error, HttpStatusError) or error.status in _NO_SUCH_FILE
                if target.branch is None or not missing:
                    raise
                continue
        kept[target.name] = data
    return kept


def _is_whole(trusted: TrustedRepository, known: Loaded) -> bool:
    """Tell whether a copy has every release file, with the signed content."""
    return all(_kept(trusted, path, (known,)) is not None for path in trusted.targets)


def _kept(trusted: TrustedRepository, path: str, known: tuple[Loaded, ...]) -> bytes | None:
    for each in known:
        with contextlib.suppress(TrustError, StoreError):
            data = each.copy.read(trusted.targets[path].name)
            if data is not None:
                return trusted.read(path, data)
    return None
