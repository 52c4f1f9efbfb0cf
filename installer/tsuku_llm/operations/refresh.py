"""The download of a repository's newest signed metadata."""

from __future__ import annotations

from contextlib import suppress

from tsuku_llm import catalog as catalogs
from tsuku_llm import fetch, standing
from tsuku_llm.catalog import OFFICIAL, Catalog, Repository
from tsuku_llm.errors import (
    BodyError,
    HostUnreachable,
    HttpStatusError,
    MetadataError,
    StoreError,
    TlsError,
    TrustError,
)
from tsuku_llm.operations.choice import repository_of
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.vouching import learn, note_standing


def refresh(session: Session, *, patience: float | None = None) -> Catalog:
    """Download and verify the newest metadata of the session's repository, under a lock.

    Everything has to arrive within ``Limits.metadata`` seconds, including retries, redirects
    and other addresses. ``patience`` is a shorter limit in seconds, for the lock as well.
    Raises ``DownloadError`` if the metadata cannot be downloaded, ``MetadataError`` if it
    cannot be trusted, and ``ClockBehind`` if this machine's clock cannot be right. After an
    error the metadata trusted before still counts.
    """
    repository = repository_of(session)
    store, seconds = session.store, fetch.Limits().metadata
    if patience is not None:
        seconds = min(seconds, patience)
        timeout = min(patience, session.settings.lock_timeout)
        store = session.with_settings(lock_timeout=timeout).store
    learn(session, but=repository.name)
    try:
        with fetch.Network(session.machine.environ, on_wait=session.user.note) as network:
            # Two processes must not write the copies of one repository at the same time. A short
            # patience covers the wait for the lock; without one, the network has all its time.
            began = network.clock()
            with store.lock(f"metadata-{repository.name}") as locked:
                deadline = (network.clock() if patience is None else began) + seconds
                found = catalogs.refresh(
                    repository,
                    session.paths.data,
                    lambda url, limit: fetch.get(url, limit, network, deadline),
                    alone=locked,
                )
            note_standing(session, found.standing())
    except (HostUnreachable, HttpStatusError, BodyError) as error:
        error.hint = _elsewhere(repository)
        raise
    except (TlsError, MetadataError):
        _require_clock(session, repository)
        raise
    found.freshness.require_clock(session.machine.now)
    with suppress(StoreError):  # a missing note only makes the next install ask again
        standing.note_refresh(session.paths.data, repository.name, session.machine.now)
    return found


def _elsewhere(repository: Repository) -> str:
    """Say what to do if metadata cannot be downloaded; mirrors have archives only."""
    if repository.name == OFFICIAL:
        own = "or name a copy of it: tsuku-llm config set llm.repository_url URL"
    else:
        own = "or compare its URL with its owner's: tsuku-llm repository list"
    return f"try again later, or from another network; {own}"


def _require_clock(session: Session, repository: Repository) -> None:
    """Raise ``ClockBehind`` if a wrong clock explains why certificates or metadata are refused."""
    try:
        known = catalogs.load(repository, session.paths.data)
    except (TrustError, StoreError):
        return
    known.freshness.require_clock(session.machine.now)
