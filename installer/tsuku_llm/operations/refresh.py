"""Fetch a repository's signed metadata anew."""

from __future__ import annotations

from tsuku_llm import catalog as catalogs
from tsuku_llm import fetch
from tsuku_llm.catalog import Catalog
from tsuku_llm.operations.choice import repository_of
from tsuku_llm.operations.session import Session


def refresh(session: Session) -> Catalog:
    """The newest metadata of the session's repository, fetched and verified under a lock.

    Raises ``DownloadError`` when it cannot be had, ``MetadataError`` when it cannot be
    trusted; what was trusted before stays.
    """
    repository = repository_of(session)
    with (
        session.store.lock(f"metadata-{repository.name}") as locked,
        fetch.Network(session.environ) as network,
    ):
        return catalogs.refresh(
            repository,
            session.data,
            lambda url, limit: fetch.get(url, limit, network),
            alone=locked,
        )
