"""Fetching a repository's newest metadata and release files, with python-tuf's updater."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm import trust
from tsuku_llm.catalog.client import make_safe
from tsuku_llm.catalog.copies import LARGEST_FILE, UpdaterCopy
from tsuku_llm.catalog.generations import keep
from tsuku_llm.catalog.loading import Catalog, Loaded, is_later, load, updated_copy, verified
from tsuku_llm.catalog.repositories import FILES, Repository
from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import make_folder
from tsuku_llm.errors import (
    BodyError,
    HttpStatusError,
    MetadataError,
    StaleMetadata,
    StoreError,
    TrustError,
)
from tsuku_llm.folders import opened
from tsuku_llm.standing import Freshness, days, folder_of
from tsuku_llm.trust import RoleState, TrustedRepository

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
        make_safe(folder / "client", alone=alone)
        _update(repository, folder / "client", download)
        copy = UpdaterCopy(folder / "client")
        fresh = verified("updated", copy, repository.root)
        known = _known(repository, data)
        for each in known:
            if is_later(each, fresh, repository.root):
                raise _rollback(each, fresh)
        if all(is_later(fresh, each, repository.root) for each in known):
            keep(folder, _files(repository, fresh, known, download))
    return load(repository, data)


def _known(repository: Repository, data: Path) -> tuple[Loaded, ...]:
    """The valid copies on this machine."""
    found = [updated_copy(repository, data, [])]
    if repository.embedded:
        found.append(verified("embedded", repository.embedded, repository.root))
    return tuple(each for each in found if each)


def _update(repository: Repository, client: Path, download: Download) -> None:
    """Let python-tuf's updater fetch what is newer."""
    from tuf.api import exceptions  # noqa: PLC0415
    from tuf.ngclient.updater import Updater  # noqa: PLC0415

    seen: dict[str, RoleState] = {}
    try:
        Updater(
            str(client),
            f"{repository.url}metadata/",
            fetcher=_fetcher(download, seen),
            bootstrap=repository.root,
        ).refresh()
    except exceptions.DownloadHTTPError as error:
        # Ours, wrapped for the updater, which reads "no newer root" from 403 and 404.
        raise error.__cause__ or error from None
    except exceptions.ExpiredMetadataError as error:
        raise StaleMetadata(
            f"the metadata that {repository.name} serves has expired",
            facts=(str(error), *_expired(seen), "what is installed still runs"),
            hint="check this machine's clock; if it is right, somebody holds back newer metadata",
        ) from error
    except exceptions.RepositoryError as error:
        raise MetadataError(
            f"the metadata that {repository.name} serves is not trusted",
            facts=(str(error)[:300],),
            hint="try again later; if it stays, tell the repository's publisher",
        ) from error


def _expired(seen: Mapping[str, RoleState]) -> Iterator[str]:
    """How old each role is that was served and has expired."""
    now = datetime.now(timezone.utc)  # as the updater's: it asks nobody else
    for role, state in seen.items():
        age = Freshness(role, state.issued, state.expires)
        if age.expired(now):
            expired = f"expired on {state.expires:%Y-%m-%d} ({days(now - state.expires)})"
            yield f"{role} {state.version}: {age.age(now)}, {expired}"


def _fetcher(download: Download, seen: dict[str, RoleState]) -> FetcherInterface:
    """The updater's way to the network; ``seen`` is told the state of each role."""
    from tuf.api.exceptions import DownloadHTTPError  # noqa: PLC0415
    from tuf.ngclient.fetcher import FetcherInterface  # noqa: PLC0415

    class Fetcher(FetcherInterface):
        """Only what ``trust`` could accept passes."""

        def download_bytes(self, url: str, max_length: int) -> bytes:
            try:
                data = _limited(download, url, max_length)
            except HttpStatusError as error:
                raise DownloadHTTPError(error.message, error.status) from error
            role, state = trust.check_metadata(data)
            seen[role] = state
            return data

        def _fetch(self, url: str) -> Iterator[bytes]:
            yield self.download_bytes(url, LARGEST_FILE)

    return Fetcher()


def _limited(download: Download, url: str, limit: int) -> bytes:
    data = download(url, limit)
    if len(data) > limit:
        raise BodyError(f"{url} has more than {limit:,} bytes")
    return data


def _rollback(known: Loaded, fresh: Loaded) -> MetadataError:
    return MetadataError(
        "the repository serves metadata that is older than what this machine has",
        facts=(
            f"here ({known.source}): {_version_text(known)}",
            f"served: {_version_text(fresh)}",
        ),
        hint="a mirror may be behind, or somebody holds back newer metadata: try another network",
    )


def _version_text(loaded: Loaded) -> str:
    return ", ".join(f"{role} {state.version}" for role, state in loaded.trusted.roles.items())


def _files(
    repository: Repository, fresh: Loaded, known: tuple[Loaded, ...], download: Download
) -> dict[str, bytes]:
    """The whole copy to keep; release files that are here already are not fetched again."""
    roles = fresh.trusted.roles
    pinned = trust.check_root(repository.root).version
    walked = range(pinned, roles["root"].version + 1)
    names = [f"metadata/{version}.root.json" for version in walked]
    names += [f"metadata/{roles[role].version}.{role}.json" for role in ("snapshot", "targets")]
    found = {name: fresh.copy.read(name) for name in [*names, "metadata/timestamp.json"]}
    kept = {name: data for name, data in found.items() if data is not None}
    for path, target in fresh.trusted.targets.items():
        data = _kept(fresh.trusted, path, known)
        if data is None:
            limit = min(target.length, LARGEST_FILE)
            data = _limited(download, f"{repository.url}{target.name}", limit)
        kept[target.name] = fresh.trusted.read(path, data)
    return kept


def _kept(trusted: TrustedRepository, path: str, known: tuple[Loaded, ...]) -> bytes | None:
    for each in known:
        with contextlib.suppress(TrustError, StoreError):
            data = each.copy.read(trusted.targets[path].name)
            if data is not None:
                return trusted.read(path, data)
    return None
