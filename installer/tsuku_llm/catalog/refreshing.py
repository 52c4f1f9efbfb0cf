"""Fetching a repository's newest metadata and release files, with python-tuf's updater."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tsuku_llm import trust
from tsuku_llm.catalog.client import make_safe, seed
from tsuku_llm.catalog.copies import LARGEST_FILE, DelegatedOnDemand, UpdaterCopy
from tsuku_llm.catalog.generations import keep
from tsuku_llm.catalog.loading import (
    Catalog,
    Loaded,
    load,
    updated_copy,
    verified,
    versions_under,
)
from tsuku_llm.catalog.repositories import FILES, Repository
from tsuku_llm.catalog.roots import FOLDER, KnownRoots, keep_roots, known_roots, other_root
from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import make_folder
from tsuku_llm.errors import (
    BodyError,
    DownloadError,
    HttpStatusError,
    MetadataError,
    StaleMetadata,
    StoreError,
    TrustError,
)
from tsuku_llm.folders import opened
from tsuku_llm.standing import Freshness, days, folder_of
from tsuku_llm.trust import RoleState, Stated, TrustedRepository

if TYPE_CHECKING:
    from tuf.ngclient.fetcher import FetcherInterface

Download = Callable[[str, int], bytes]
"""``(url, most bytes) -> body``; raises ``DownloadError``, a body over the limit included."""


def refresh(
    repository: Repository, data: Path, download: Download, *, alone: bool = False
) -> Catalog:
    """Fetch a repository's newest metadata and release files, and load the result.

    python-tuf's updater does the fetching and the TUF client workflow; then the whole is
    verified again by ``trust`` and kept in one step, or not at all. ``alone`` says that a
    lock keeps others from doing the same: then what a crash left is removed. Raises
    ``DownloadError``, ``MetadataError`` (a rollback, expired metadata, …), ``ManifestError``
    for entries that this version cannot read, and ``StoreError``.
    """
    folder = folder_of(data, repository.name)
    with disk_errors("keeping the metadata", folder):
        make_folder(folder)
        if alone:
            with opened(data, "metadata", repository.name) as ours:
                if ours is not None:
                    ours.drop_temporaries("|".join(FILES), older_than=math.inf)
        copy = UpdaterCopy(folder / "client")
        for place in (copy.folder, folder / FOLDER):
            make_safe(place, alone=alone)
        roots = known_roots(repository, data)
        known = _known(repository, data, roots)
        seed(copy.folder, roots, [each.copy for each in known])
        try:
            _update(repository, copy, roots, known, download)
        finally:
            keep_roots(folder, roots, copy)
        fresh = verified("updated", _fetched(repository, copy, download), repository, roots)
        _require_unexpired(repository, fresh.trusted)
        versions = fresh.trusted.versions
        counted = [versions_under(each, copy, roots) for each in known]
        for each, here in zip(known, counted, strict=True):
            if trust.setbacks(here, versions):
                raise _rollback(each, here, versions)
        # A copy of the same versions that lacks a file, or has a damaged one, is replaced.
        here_already = any(
            versions == here and _is_whole(fresh.trusted, each)
            for each, here in zip(known, counted, strict=True)
        )
        if not here_already:
            keep(folder, _files(repository, fresh, known, download))
    return load(repository, data)


def _known(repository: Repository, data: Path, roots: KnownRoots) -> tuple[Loaded, ...]:
    """The valid copies on this machine."""
    found = [updated_copy(repository, data, roots, [])]
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
    """Let python-tuf's updater fetch what is newer."""
    from tuf.api import exceptions  # noqa: PLC0415
    from tuf.ngclient.updater import Updater  # noqa: PLC0415

    seen: dict[str, Stated] = {}
    try:
        Updater(
            str(state.folder),
            f"{repository.url}metadata/",
            fetcher=_fetcher(download, seen),
            bootstrap=roots.newest,
        ).refresh()
    except exceptions.DownloadHTTPError as error:
        # Ours, wrapped for the updater, which reads "no newer root" from 403 and 404.
        raise error.__cause__ or error from None
    except exceptions.ExpiredMetadataError as error:
        states = {role: stated.state for role, stated in seen.items()}
        raise _stale(repository, str(error), states) from error
    except exceptions.RepositoryError as error:
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
            hint="try again later; if it stays, tell the repository's publisher",
        ) from error


def _require_known_root(repository: Repository, roots: KnownRoots, download: Download) -> None:
    """Tell of a host whose newest known root has other bytes; nothing that it says matters."""
    version = max(roots.files)
    url = f"{repository.url}metadata/{version}.root.json"
    with contextlib.suppress(DownloadError):  # then the first refusal is all there is to tell
        served = _limited(download, url, LARGEST_FILE)
        if served != roots.newest:
            raise other_root("the served", version, roots.newest, served)


def _fetched(repository: Repository, copy: UpdaterCopy, download: Download) -> DelegatedOnDemand:
    """What the updater has, and what ``trust`` will need of the delegated roles."""

    def download_delegated(name: str, limit: int) -> bytes:
        # A web server is asked for the escaped name as it is, as by every TUF client. The
        # path of a file: URL is unescaped when it is opened: there the name is escaped twice.
        local = repository.url.startswith("file:")
        return _limited(download, f"{repository.url}{quote(name) if local else name}", limit)

    return DelegatedOnDemand(copy, download_delegated)


def _require_unexpired(repository: Repository, trusted: TrustedRepository) -> None:
    """Raise ``StaleMetadata`` for a delegated role, as the updater does for the others."""
    expired = trusted.expired(datetime.now(timezone.utc))
    if expired:
        raise _stale(repository, f"{expired[0][:60]!a} is expired", trusted.roles)


def _stale(repository: Repository, fact: str, roles: Mapping[str, RoleState]) -> StaleMetadata:
    return StaleMetadata(
        f"the metadata that {repository.name} serves has expired",
        facts=(fact, *_expired(roles), "what is installed still runs"),
        hint="check this machine's clock; if it is right, somebody holds back newer metadata",
    )


def _expired(seen: Mapping[str, RoleState]) -> Iterator[str]:
    """How old each role is that was served and has expired."""
    now = datetime.now(timezone.utc)  # as the updater's: it asks nobody else
    for role, state in seen.items():
        age = Freshness(role, state.issued, state.expires)
        if age.expired(now):
            expired = f"expired on {state.expires:%Y-%m-%d} ({days(now - state.expires)})"
            yield f"{role} {state.version}: {age.age(now)}, {expired}"


def _fetcher(download: Download, seen: dict[str, Stated]) -> FetcherInterface:
    """The updater's way to the network; ``seen`` is told what each role says."""
    from tuf.api.exceptions import DownloadHTTPError  # noqa: PLC0415
    from tuf.ngclient.fetcher import FetcherInterface  # noqa: PLC0415

    class Fetcher(FetcherInterface):
        """Only what ``trust`` could accept passes."""

        def download_bytes(self, url: str, max_length: int) -> bytes:
            try:
                data = _limited(download, url, max_length)
            except HttpStatusError as error:
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
        hint="a mirror may be behind, or somebody holds back newer metadata: try another network; "
        "if it stays, tell the repository's publisher",
    )


def _version_text(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{role} {version}" for role, version in sorted(versions.items()))


def _files(
    repository: Repository, fresh: Loaded, known: tuple[Loaded, ...], download: Download
) -> dict[str, bytes]:
    """The whole copy to keep; release files that are here already are not fetched again."""
    roles = fresh.trusted.roles
    pinned = trust.check_root(repository.root).version
    walked = range(pinned, roles["root"].version + 1)
    names = [f"metadata/{version}.root.json" for version in walked]
    others = [role for role in roles if role not in ("root", "timestamp")]
    names += [trust.file_name(role, roles[role].version) for role in others]
    found = {name: fresh.copy.read(name) for name in [*names, "metadata/timestamp.json"]}
    kept = {name: data for name, data in found.items() if data is not None}
    for path, target in fresh.trusted.targets.items():
        data = _kept(fresh.trusted, path, known)
        if data is None:
            limit = min(target.length, LARGEST_FILE)
            data = _limited(download, f"{repository.url}{target.name}", limit)
        kept[target.name] = fresh.trusted.read(path, data)
    return kept


def _is_whole(trusted: TrustedRepository, known: Loaded) -> bool:
    """Whether a copy has every file that is to be kept, as it was signed."""
    return all(_kept(trusted, path, (known,)) is not None for path in trusted.targets)


def _kept(trusted: TrustedRepository, path: str, known: tuple[Loaded, ...]) -> bytes | None:
    for each in known:
        with contextlib.suppress(TrustError, StoreError):
            data = each.copy.read(trusted.targets[path].name)
            if data is not None:
                return trusted.read(path, data)
    return None
