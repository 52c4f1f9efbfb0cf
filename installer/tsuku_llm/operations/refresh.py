"""Fetch a repository's signed metadata anew."""

from __future__ import annotations

from tsuku_llm import catalog as catalogs
from tsuku_llm import fetch
from tsuku_llm.catalog import Catalog, Repository
from tsuku_llm.errors import MetadataError, StoreError, TlsError, TrustError
from tsuku_llm.operations.choice import repository_of
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.vouching import note_standing

SECONDS = fetch.Limits().metadata
"""How long a refresh may take in all."""


def refresh(session: Session, *, seconds: float = SECONDS) -> Catalog:
    """Fetch the newest metadata of the session's repository, verified, under a lock.

    All of it has to come within ``seconds``, with every try, redirect and address. Raises
    ``DownloadError`` when it cannot be had, ``MetadataError`` when it cannot be trusted,
    ``ClockBehind`` when this machine's clock cannot be right; what was trusted before stays.
    """
    repository = repository_of(session)
    try:
        with (
            session.store.lock(f"metadata-{repository.name}") as locked,
            fetch.Network(session.environ, on_wait=session.note) as network,
        ):
            deadline = network.clock() + seconds
            found = catalogs.refresh(
                repository,
                session.data,
                lambda url, limit: fetch.get(url, limit, network, deadline),
                alone=locked,
            )
            note_standing(session, found.standing())
    except (TlsError, MetadataError):
        _require_clock(session, repository)
        raise
    found.freshness.require_clock(session.now)
    return found


def _require_clock(session: Session, repository: Repository) -> None:
    """Name the clock where it explains why certificates or metadata are refused."""
    try:
        known = catalogs.load(repository, session.data)
    except (TrustError, StoreError):
        return
    known.freshness.require_clock(session.now)
