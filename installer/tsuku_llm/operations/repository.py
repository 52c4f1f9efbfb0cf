"""Repositories beside the official one: a company's or a developer's own, with its own root."""

from __future__ import annotations

from pathlib import Path

from tsuku_llm import catalog as catalogs
from tsuku_llm.catalog import Repository
from tsuku_llm.errors import UsageError
from tsuku_llm.operations.session import Session

_ROOT_LIMIT = 512_000


def add(session: Session, name: str, url: str, root: Path) -> Repository:
    """Remember a repository and the root of trust in the file ``root``; no network.

    Raises ``UsageError`` for a file that cannot be read, a name or URL that cannot be used,
    ``MetadataError`` for a root that does not verify or has weak keys.
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
    return catalogs.add_repository(session.data, name, url, data)


def repositories(session: Session) -> tuple[Repository, ...]:
    """The official repository and the added ones."""
    return catalogs.repositories(session.data)


def remove(session: Session, name: str) -> None:
    """Forget a repository and its metadata; what was installed from it stays."""
    catalogs.remove_repository(session.data, name)
