"""What signed metadata says of an installed release before it is started.

This is part of every start: the verifier is loaded only where nothing is noted about the
metadata of now, or where the user wants certainty.
"""

from __future__ import annotations

from contextlib import suppress

from tsuku_llm import standing
from tsuku_llm.errors import Revoked, SelectionError, StoreError, TrustError
from tsuku_llm.operations.session import Session
from tsuku_llm.standing import Standing
from tsuku_llm.store import Receipt


def vouch(session: Session, receipt: Receipt) -> None:
    """Refuse a revoked release, and say it where the metadata has expired.

    Metadata that is not there or cannot be read keeps nobody from starting what is
    installed, unless fresh metadata is required. Raises ``Revoked``; with
    ``require_fresh`` also ``StaleMetadata``, ``ClockBehind`` and ``MetadataError``.
    """
    known = None if session.require_fresh else standing.read(session.data, receipt.repository)
    try:
        known = known or _anew(session, receipt.repository)
    except (SelectionError, TrustError, StoreError) as error:
        if session.require_fresh:
            raise
        session.note(f"nothing is known of revocations: {error.message}")
        return
    if session.require_fresh:
        known.freshness.require(session.now)
    if receipt.release in known.revoked and not session.allow_revoked:
        raise revoked(receipt.release, "move on: tsuku-llm update; or add --allow-revoked")
    if warning := known.freshness.warning(session.now):
        session.note(warning)


def revoked(release: str, hint: str) -> Revoked:
    """The error for a release that its publisher has revoked."""
    return Revoked(f"{release} was revoked by its publisher", hint=hint)


def _anew(session: Session, repository: str) -> Standing:
    """Verify the metadata, and note what it says for the next start."""
    from tsuku_llm.operations.choice import load_catalog  # noqa: PLC0415

    catalog = load_catalog(session._replace(repository=repository))
    found = catalog.standing()
    note_standing(session, found)
    return found


def note_standing(session: Session, found: Standing) -> None:
    """Note it for the next start; who may not write there verifies at each start."""
    with suppress(StoreError):
        standing.write(session.data, found)
