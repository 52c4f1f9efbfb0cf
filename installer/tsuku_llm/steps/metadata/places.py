"""The places at which a repository is published, and the download of its files from each.

A place is an https: URL, a file: URL, a mirror in a registry, or a package of the user's package
index. The package is a wheel that has nothing but the signed files, below a folder of its own name.
pip fetches it, and nothing of it is imported or run: the signatures decide, as for any other place.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from urllib.parse import quote

from tsuku_llm import fetch
from tsuku_llm.archive.formats.member import Budget
from tsuku_llm.archive.formats.zips import zip_members
from tsuku_llm.catalog.refreshing import Download
from tsuku_llm.catalog.repositories import Repository
from tsuku_llm.fetch.http.urls import PACKAGE_SCHEME, scheme_of, shown
from tsuku_llm.fetch.places.mirrors import REGISTRY_SCHEME, below
from tsuku_llm.fetch.places.pip_index import package_folder
from tsuku_llm.ground.errors import BodyError, HttpStatusError, UnsafeArchive
from tsuku_llm.store.store import Store

_MISSING = 404


def download_from(
    store: Store, repository: Repository, network: fetch.Network, deadline: float
) -> Download:
    """Return the download of files from a repository's first place, until ``deadline``.

    A package is fetched at once, and its files are then read from memory. The caller holds the lock
    of the repository's metadata. Raises ``PackageIndexError``, ``BodyError``.
    """
    if scheme_of(repository.url) == REGISTRY_SCHEME:
        return _from_registry(repository, network, deadline)
    if scheme_of(repository.url) != PACKAGE_SCHEME:

        def download_file(name: str, limit: int) -> bytes:
            # Role names are escaped in file names. A web server gets the escaped name as it is, as
            # from every TUF client. The path of a file: URL is unescaped when it is opened, so
            # escape the name once more.
            path = quote(name) if scheme_of(repository.url) == "file" else name
            # A mirror may need a token in its query: the name of the file goes before it.
            url = below(repository.url, path) if "?" in repository.url else repository.url + path
            return fetch.get(url, limit, network, deadline)

        return download_file
    # The name of a partial download: prune removes the folder if a crash leaves it.
    digest = hashlib.sha256(f"metadata of {repository.name}".encode()).hexdigest()
    scratch = store.partials / f"{digest}.index"
    data = fetch.package(repository.url, scratch, network, deadline)
    files = _unpacked(repository.url, data)

    def download(name: str, limit: int) -> bytes:
        found = files.get(name)
        if found is None:
            raise _missing(name, f"package: {shown(repository.url)}")
        if len(found) > limit:
            raise BodyError(f"{name} in the package has more than {limit:,} bytes")
        return found

    return download


def _from_registry(repository: Repository, network: fetch.Network, deadline: float) -> Download:
    """Return the download from a registry; its manifest is read once, so that all files fit."""
    place, mirror = fetch.registry_mirror(repository.url, network, deadline)
    files = mirror.files

    def download(name: str, limit: int) -> bytes:
        if name not in files:
            raise _missing(name, f"registry: {place}")
        return fetch.get(place.blob(files[name].sha256), limit, network, deadline)

    return download


def _missing(name: str, where: str) -> HttpStatusError:
    return HttpStatusError(f"there is no file {name} there", status=_MISSING, facts=(where,))


def _unpacked(url: str, data: bytes) -> Mapping[str, bytes]:
    """Unpack the files of the repository in a package. Raises ``BodyError``."""
    folder = f"{package_folder(url.rstrip('/').rpartition('/')[2])}/"
    # The official repository has less than 1 MB in 20 files.
    budget = Budget(size=128 << 20, members=20_000)
    try:
        return {
            member.name.removeprefix(folder): b"".join(member.content())
            for member in zip_members(io.BytesIO(data), budget)
            if member.kind == "file" and member.name.startswith(folder)
        }
    except UnsafeArchive as error:
        # Not as an archive of a build: another place may have a good package.
        raise BodyError(
            "a package of metadata is refused",
            facts=(f"package: {shown(url)}", f"reason: {error.message}", *error.facts),
        ) from error
