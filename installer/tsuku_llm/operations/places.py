"""The places at which a repository is published, and the download of its files from each.

A place is an https: URL, a file: URL, or a package of the user's package index. The package is a
wheel that has nothing but the signed files, below a folder of its own name. pip fetches it, and
nothing of it is imported or run: the signatures decide, as for any other place.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping

from tsuku_llm import fetch
from tsuku_llm.archive.budget import Budget, Spending
from tsuku_llm.archive.member import Member
from tsuku_llm.archive.zips import zip_members
from tsuku_llm.catalog.refreshing import Download
from tsuku_llm.catalog.repositories import Repository
from tsuku_llm.errors import BodyError, HttpStatusError, UnsafeArchive
from tsuku_llm.fetch.pip_index import package_folder
from tsuku_llm.fetch.urls import PACKAGE_SCHEME, scheme_of, shown
from tsuku_llm.operations.session import Session

_UNPACKED = Budget(size=256 << 20, members=20_000)
"""What may be unpacked of it: an answer of a few files, each with a limit of its own."""

_MISSING = 404


def download_from(
    session: Session, repository: Repository, network: fetch.Network, deadline: float
) -> Download:
    """Return the download of files from a repository's first place, until ``deadline``.

    A package is fetched at once, and its files are then read from memory. The caller holds the lock
    of the repository's metadata. Raises ``PackageIndexError``, ``BodyError``.
    """
    if scheme_of(repository.url) != PACKAGE_SCHEME:
        return lambda url, limit: fetch.get(url, limit, network, deadline)
    # The name of a partial download: prune removes the folder if a crash leaves it.
    digest = hashlib.sha256(f"metadata of {repository.name}".encode()).hexdigest()
    scratch = session.store.partials / f"{digest}.index"
    data = fetch.package(repository.url, scratch, network, deadline)
    members = _members(repository.url, data)
    inside = package_folder(repository.url.rstrip("/").rpartition("/")[2])

    def download(url: str, limit: int) -> bytes:
        return _content(members, f"{inside}/{url.removeprefix(repository.url)}", url, limit)

    return download


def _members(url: str, data: bytes) -> Mapping[str, Member]:
    try:
        found = zip_members(io.BytesIO(data), Spending(_UNPACKED))
        return {member.name: member for member in found if member.kind == "file"}
    except UnsafeArchive as error:
        raise _refused(url, error) from error


def _content(members: Mapping[str, Member], name: str, url: str, limit: int) -> bytes:
    member = members.get(name)
    if member is None:
        raise HttpStatusError(
            f"there is no file {name} in the package",
            status=_MISSING,
            facts=(f"package: {shown(url)}",),
        )
    data = bytearray()
    try:
        for chunk in member.content():
            data += chunk
            if len(data) > limit:
                raise BodyError(f"{name} in the package has more than {limit:,} bytes")
    except UnsafeArchive as error:
        raise _refused(url, error) from error
    return bytes(data)


def _refused(url: str, error: UnsafeArchive) -> BodyError:
    """Make the error for a package that cannot be read; another place may have a good one."""
    return BodyError(
        "a package of metadata is refused",
        facts=(f"package: {shown(url)}", f"reason: {error.message}", *error.facts),
    )
