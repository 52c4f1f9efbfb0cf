"""Repositories besides the official one, of a company or a developer, each with a root of trust."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from tsuku_llm import trust
from tsuku_llm.catalog import loading
from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.manifest import ReleaseEntry
from tsuku_llm.catalog.repositories import (
    Repository,
    add_repository,
    remove_repository,
)
from tsuku_llm.catalog.repositories import repositories as configured_repositories
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import (
    DigestMismatch,
    DownloadError,
    MetadataError,
    TrustError,
    UsageError,
)
from tsuku_llm.ground.foreign import read_beginning
from tsuku_llm.ground.records import documented
from tsuku_llm.ground.safe_text import redacted
from tsuku_llm.steps.choosing.choice import bounds_here, offered
from tsuku_llm.steps.choosing.passing_over import PassedOver, noted_marks, why_passed_over
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.session import Session

_ROOT_LIMIT = 512_000
"""Bytes of a root of trust that are read."""


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """A repository, and the metadata of it that counts on this machine.

    ``url`` and ``others`` are without secrets. ``source`` is ``embedded`` or ``updated``, None
    without valid metadata, and so are the times. ``state`` describes it in words, with its age.
    ``fingerprint`` is the SHA-256 of its root of trust, which its owner can publish in another way.
    """

    name: str
    url: str
    others: tuple[str, ...]
    fingerprint: str
    state: str
    source: str | None = None
    signed: str | None = None
    expires: str | None = None


@dataclass(frozen=True, slots=True)
class RootRole:
    """How many of which keys must sign for a role; the keys by their ids."""

    threshold: int
    keys: tuple[str, ...]


@documented("*added", "number", "roles")
@dataclass(frozen=True, slots=True)
class AddedRepository:
    """A repository that was added, with its root of trust.

    ``number`` counts the changes of the root by its owner; ``roles`` are the roles that it names.
    """

    added: RepositoryState
    number: int
    roles: Mapping[str, RootRole]


@documented("*entry", "unattested", "unmeasured", "passed_over", "readable")
@dataclass(frozen=True, slots=True)
class OfferedRelease:
    """A release on offer. One whose release file cannot be read is not ``readable``.

    ``passed_over`` are the reasons for which an install does not take it. ``unattested`` and
    ``unmeasured`` are None if the file cannot be read, too.
    """

    entry: ReleaseEntry
    passed_over: tuple[PassedOver, ...]
    unattested: str | None
    unmeasured: str | None
    readable: bool


@dataclass(frozen=True, slots=True)
class OfferedReleases:
    """The releases of a repository, newest first.

    ``skipped`` are those whose signed entry cannot be read: each tag or path, and why.
    """

    repository: str
    releases: tuple[OfferedRelease, ...]
    skipped: Mapping[str, str]


def offered_releases(session: Session, catalog: Catalog) -> OfferedReleases:
    """Return every release of a repository, newest first."""
    bounds = bounds_here(
        session, catalog.repository.name, noted_marks(session.paths.data, session.user.note)
    )
    releases = tuple(
        OfferedRelease(
            entry,
            why_passed_over(offered(catalog, entry), bounds),
            *catalog.doubts(entry),
            readable=catalog.is_readable(entry),
        )
        for entry in catalog.entries
    )
    return OfferedReleases(catalog.repository.name, releases, catalog.skipped)


def add(
    session: Session,
    name: str,
    url: str,
    root: Path,
    *,
    fingerprint: str | None = None,
    others: Sequence[str] = (),
) -> AddedRepository:
    """Keep a repository with the root of trust in the file ``root``, and fetch its metadata.

    ``others`` are further places with the same files. ``fingerprint`` is the SHA-256 that the file
    of the root must have; blanks and colons in it are ignored. A
    repository that cannot be reached now is kept, with a note. A repository whose metadata does not
    verify is not kept.

    Raises ``UsageError`` for a file that cannot be read and for a name or URL that cannot be used.
    Raises ``DigestMismatch`` for another fingerprint. Raises ``MetadataError`` for a root with weak
    keys and for metadata that the root did not sign.
    """
    try:
        data = read_beginning(root, _ROOT_LIMIT + 1)
    except OSError as error:
        raise UsageError(
            f"the root of trust {root} cannot be read",
            facts=(error.strerror or str(error),),
            hint="ask the owner of the repository for its root.json",
        ) from error
    # Compare before the file is parsed or stored.
    if fingerprint is not None:
        _require_fingerprint(data, fingerprint)
    session.store.adopt()
    repository = add_repository(session.paths.data, name, url, data, others)
    # Say so if one stolen key is enough to name an archive. The owner may want it so.
    root_of_trust = trust.check_root(data)
    roles = root_of_trust.roles
    alone = [role for role in ("root", "targets") if roles[role].threshold == 1]
    if alone:
        session.user.note(f"one key alone can sign its {' and '.join(alone)}: 2 of 3 are safer")
    try:
        refresh(session.with_settings(repository=name))
    except DownloadError as error:
        told = error.told if others else error.message
        session.user.note(f"its metadata could not be fetched yet: {told}")
    except TrustError as error:
        remove_repository(session.paths.data, name)
        # No hint may send the user to a repository that is not here. The root or the URL is wrong,
        # or the owner signed metadata with a mistake. Expired metadata, a wrong clock and a newer
        # format have hints of their own.
        if type(error) in (MetadataError, DigestMismatch):
            error.hint = (
                "nothing was added: ask the owner of the repository, who can compare root and URL "
                "and correct the metadata"
            )
        else:
            error.facts += ("nothing was added",)
        raise
    named = {
        name: RootRole(roles[name].threshold, tuple(roles[name].keyids)) for name in trust.ROLES
    }
    return AddedRepository(
        _state_of(repository, session.paths.data, session.machine.now), root_of_trust.version, named
    )


def _require_fingerprint(root: bytes, wanted: str) -> None:
    expected, found = re.sub(r"[\s:]", "", wanted).lower(), sha256(root).hexdigest()
    if not re.fullmatch(r"[0-9a-f]{64}", expected):
        raise UsageError(
            "a fingerprint is a SHA-256: 64 hexadecimal digits",
            facts=(f"given: {wanted!r}",),
            hint="ask the owner of the repository for it, separately from its root.json",
        )
    if found != expected:
        raise DigestMismatch(
            "the root of trust has another fingerprint; nothing was added",
            facts=(f"given: {expected}", f"found: {found}"),
            hint="do not use this file: ask the owner of the repository for the right one",
        )


def repositories(session: Session) -> tuple[RepositoryState, ...]:
    """Return the official and the added repositories, each with the state of its metadata here."""
    return tuple(
        _state_of(each, session.paths.data, session.machine.now)
        for each in configured_repositories(session.paths.data)
    )


def _state_of(repository: Repository, data: Path, now: datetime) -> RepositoryState:
    # A URL may hold a user and a password: never show them.
    state = RepositoryState(
        repository.name,
        redacted(repository.url),
        tuple(map(redacted, repository.others)),
        sha256(repository.root).hexdigest(),
        "",
    )
    try:
        catalog = loading.load(repository, data)
    except TrustError as error:
        return replace(state, state=error.message)
    freshness = catalog.freshness
    expired = ", expired" if freshness.expired(now) else ""
    return replace(
        state,
        state=f"{catalog.source}, {freshness.age(now)}{expired}",
        source=catalog.source,
        signed=clock.stamp(freshness.signed) if freshness.signed else None,
        expires=clock.stamp(freshness.expires),
    )
