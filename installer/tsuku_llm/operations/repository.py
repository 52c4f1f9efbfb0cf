"""Repositories beside the official one: a company's or a developer's own, with its own root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tsuku_llm import catalog as catalogs
from tsuku_llm import trust
from tsuku_llm.catalog import Catalog, Repository
from tsuku_llm.errors import DownloadError, TrustError, UsageError
from tsuku_llm.operations.refresh import refresh
from tsuku_llm.operations.session import Session
from tsuku_llm.standing import Freshness

_ROOT_LIMIT = 512_000


@dataclass(frozen=True, slots=True)
class Known:
    """A repository and the metadata of it that counts on this machine.

    ``source`` is ``embedded`` or ``updated``, None where there is none that is valid;
    ``state`` says it in words, with its age.
    """

    repository: Repository
    source: str | None
    freshness: Freshness | None
    state: str


def add(session: Session, name: str, url: str, root: Path) -> Repository:
    """Keep a repository with the root of trust in the file ``root``, and fetch its metadata.

    One that cannot be reached now is kept all the same, with a note; one whose metadata
    does not verify is not. Raises ``UsageError`` for a file that cannot be read, a name or
    URL that cannot be used, ``MetadataError`` for a root with weak keys or metadata that
    it did not sign.
    """
    try:
        with root.open("rb") as file:
            data = file.read(_ROOT_LIMIT + 1)
    except OSError as error:
        raise UsageError(
            f"the root of trust {root} cannot be read",
            facts=(error.strerror or str(error),),
            hint="ask the owner of the repository for its root.json",
        ) from error
    session.store.adopt()
    repository = catalogs.add_repository(session.data, name, url, data)
    _tell_thresholds(session, data)
    try:
        fetch_metadata(session, name)
    except DownloadError as error:
        session.note(f"its metadata could not be fetched yet: {error.message}")
    except TrustError:
        catalogs.remove_repository(session.data, name)
        raise
    return repository


def _tell_thresholds(session: Session, root: bytes) -> None:
    """Say it where one stolen key is enough to name an archive: its owner may want it so."""
    roles = trust.check_root(root).roles
    alone = [name for name in ("root", "targets") if roles[name].threshold == 1]
    if alone:
        session.note(f"one key alone can sign its {' and '.join(alone)}: better are 2 of 3")


def fetch_metadata(session: Session, name: str) -> Catalog:
    """Fetch the metadata of one repository. Raises ``DownloadError``, ``MetadataError``."""
    return refresh(session._replace(repository=name))


def repositories(session: Session) -> tuple[Known, ...]:
    """The official repository and the added ones, each with what is here of its metadata."""
    return tuple(_known(session, each) for each in catalogs.repositories(session.data))


def _known(session: Session, repository: Repository) -> Known:
    try:
        catalog = catalogs.load(repository, session.data)
    except TrustError as error:
        return Known(repository, None, None, error.message)
    freshness = catalog.freshness
    expired = ", expired" if freshness.expired(session.now) else ""
    state = f"{catalog.source}, {freshness.age(session.now)}{expired}"
    return Known(repository, catalog.source, freshness, state)


def remove(session: Session, name: str) -> None:
    """Forget a repository and its metadata; what was installed from it stays."""
    catalogs.remove_repository(session.data, name)
