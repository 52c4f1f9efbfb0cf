"""Ask a repository for newer metadata before something is installed from it.

A publisher may have revoked a release since the known metadata was signed. So ``install`` and
``bench`` ask first, for a few seconds at most: without an answer they say how old the known
metadata is, and use it. ``update`` does not go on without an answer.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tsuku_llm import standing
from tsuku_llm.catalog import Catalog
from tsuku_llm.errors import (
    DownloadError,
    MetadataError,
    StaleMetadata,
    StoreError,
    TrustError,
    TsukuError,
    UsageError,
)
from tsuku_llm.operations.choice import load_catalog
from tsuku_llm.operations.refresh import refresh
from tsuku_llm.operations.session import Session
from tsuku_llm.standing import Freshness

PATIENCE = 5.0
"""Seconds that an install waits for newer metadata, all files and the lock included."""

RECENT = timedelta(days=1)


def asked_catalog(session: Session, *, ask: bool = True, patience: float = PATIENCE) -> Catalog:
    """Load the catalog to install from; ask the repository for a newer one first, if due.

    Metadata that has expired is told, or refused where fresh metadata is required. Without
    ``ask`` only the disk is read. Raises ``UsageError`` for ``offline`` together with
    ``require_fresh``; with the latter also ``StaleMetadata`` without an answer,
    ``ClockBehind``, ``TrustError`` for an answer that is not trusted, and ``StoreError``;
    the refresh's own errors where there is no valid metadata here.
    """
    catalog = _asked(session, patience) if ask else load_catalog(session)
    if session.require_fresh:
        catalog.freshness.require(session.now)
    if warning := catalog.freshness.warning(session.now):
        session.note(warning)
    return catalog


def _asked(session: Session, patience: float) -> Catalog:
    if session.offline and session.require_fresh:
        raise UsageError(
            "--offline asks no host, and fresh metadata is required",
            hint="leave out one of them; see: tsuku-llm config get llm.require_fresh",
        )
    try:
        known = load_catalog(session)
    except MetadataError:
        if session.offline or session.refresh == "never":
            raise
        return refresh(session)  # a first answer: there is nothing to go on with
    if session.require_fresh:
        return _required(session, known.freshness)
    refreshed = standing.refreshed(session.data, known.repository.name)
    if session.offline or not is_due(session.refresh, known.freshness, refreshed, session.now):
        return known
    try:
        return refresh(session, patience=patience)
    except (DownloadError, TrustError, StoreError) as error:
        session.note(_told(error, known.freshness, session.now))
        return known


def is_due(policy: str, known: Freshness, refreshed: datetime | None, now: datetime) -> bool:
    """Whether to ask for newer metadata; pure.

    ``refreshed`` is when the repository last gave a valid answer. A mere attempt does not
    count: who blocks the network would make old metadata look fresh. A date in the future
    comes from a wrong clock and does not count either.
    """
    if policy != "auto":
        return policy == "always"
    dates = [date for date in (known.signed, refreshed) if date is not None]
    recent = any(timedelta(0) <= now - date < RECENT for date in dates)
    return known.expired(now) or not recent


def _required(session: Session, known: Freshness) -> Catalog:
    """Refresh, with a full time limit; raise where that cannot be done."""
    try:
        return refresh(session)
    except DownloadError as error:
        raise StaleMetadata(
            f"fresh metadata of {known.repository} is required, and it could not be fetched",
            facts=(error.message, *error.facts, f"what is here was {known.age(session.now)}"),
            hint=error.hint,
        ) from error


def _told(error: TsukuError, known: Freshness, now: datetime) -> str:
    """Say why there is no newer metadata, and how old the known one is."""
    reason = "; ".join((error.message, *error.facts))
    going_on = f"going on with what was {known.age(now)}"
    if isinstance(error, TrustError):
        return f"warning: {reason}; nothing of it is used, {going_on}"
    return (
        f"no newer metadata of {known.repository} could be had: {reason}; {going_on}: "
        "a newer release or a revocation may be missing; "
        f"to fetch it: tsuku-llm repository refresh {known.repository}"
    )
