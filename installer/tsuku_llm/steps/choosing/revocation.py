"""What signed metadata says of an installed release: revoked, dropped, or how old the news is.

Every start needs this. It imports the verifier only if nothing is noted about the current metadata,
or if the user requires fresh metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.catalog import embedded, metadata_status, revocations
from tsuku_llm.catalog.metadata_status import MetadataStatus
from tsuku_llm.catalog.revocations import Revocation
from tsuku_llm.ground.errors import Revoked, SelectionError, StoreError, TrustError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.steps.session import DEFAULT_CHANNEL, Session, repository_of
from tsuku_llm.store.records.receipt import Receipt


class ReleaseStatus(NamedTuple):
    """The news about an installed release.

    ``gone`` says that no channel offers it any more, or that its repository was removed. It is
    None if the release is still offered, or if nothing is known. ``unsigned`` is the path from
    which an unsigned build was installed. ``stale`` says that the metadata of its repository has
    expired, or that this machine's clock must be wrong; None if the metadata is fresh or unknown.
    ``replacement`` is the command that replaces a revoked release; None if it is not revoked.
    """

    revocation: Revocation | None = None
    gone: str | None = None
    unsigned: str | None = None
    stale: str | None = None
    replacement: str | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The same in words for people, without ``stale``: several releases share it."""
        revoked: tuple[str, ...] = ()
        if self.revocation:
            why, way = self.revocation, f"it is not started; to replace it: {self.replacement}"
            revoked = (f"{why.summary}; {way}{why.way_out}",)
        unsigned = (f"unsigned: installed from {self.unsigned}",) if self.unsigned else ()
        return (*revoked, *((self.gone,) if self.gone else ()), *unsigned)


class SignedStatus(NamedTuple):
    """The knowledge of this machine about all repositories, including those that were removed.

    ``statuses`` has the repositories whose metadata was read; ``configured`` all repositories of
    the user.
    """

    revoked: tuple[Revocation, ...]
    statuses: Mapping[str, MetadataStatus]
    configured: tuple[str, ...]
    now: datetime

    def of(self, receipt: Receipt) -> ReleaseStatus:
        """Return what is known of one installed release."""
        why, gone, stale = self.revocation(receipt), None, None
        if receipt.unsigned is None:
            own = self.statuses.get(receipt.repository)
            stale = own.freshness.warning(self.now) if own else None
            if receipt.repository not in self.configured:
                gone = f"its repository {receipt.repository} was removed"
            elif own and receipt.release not in own.offered:
                gone = f"no channel of repository {receipt.repository} offers it any more"
        replacement = self.replacement(receipt) if why else None
        return ReleaseStatus(why, gone, receipt.unsigned, stale, replacement)

    def replacement(self, receipt: Receipt) -> str:
        """Return the command that takes another release for a revoked one, newer or older.

        An update never goes back, so it is no way out if the newest release is revoked.
        """
        words = [TSUKU, "install"]
        if receipt.unsigned is None and receipt.repository in self.configured:
            official = receipt.repository == embedded.REPOSITORY
            words += [] if official else ["--repository", receipt.repository]
            words += [] if receipt.channel == DEFAULT_CHANNEL else ["--channel", receipt.channel]
            words += [] if receipt.requested == "auto" else ["--backend", receipt.requested]
        return " ".join(words)

    def revocation(self, receipt: Receipt) -> Revocation | None:
        """Return why a release must not be used, or None.

        A revocation counts by the release's name in its repositories, or by its archives in any
        repository.
        """
        names = (receipt.repository, *receipt.former)
        # Its own publisher's word first: it says more than another repository's.
        own = sorted(self.revoked, key=lambda each: each.repository not in names)
        found = (each.of(names, receipt.release, receipt.builds) for each in own)
        return next(filter(None, found), None)


def signed_status(
    session: Session, *, verify: bool, given: Mapping[str, MetadataStatus] | None = None
) -> SignedStatus:
    """Return what all repositories say: the current notes, and every revocation ever seen.

    ``given`` are answers that the caller already has. With ``verify``, metadata without a current
    note is verified; the result is noted for the next start.
    """
    # Revocations are kept for good: later metadata that lacks one does not lift it.
    held, damaged = revocations.read_all(session.paths.data)
    for error in damaged:
        session.user.note(error.message)
    names = metadata_status.configured(session.paths.data)
    statuses = dict(given or {})
    for name in names:
        if name not in statuses and (found := _status_of(session, name, verify=verify)):
            statuses[name] = found
    for name, each in statuses.items():
        held[name] = revocations.merged(held.get(name, ()), each.revoked)
    revoked_anywhere = tuple(chain.from_iterable(held.values()))
    return SignedStatus(revoked_anywhere, statuses, names, session.machine.now)


def note_others(session: Session, *, but: str) -> None:
    """Note what all repositories but one say, so that their revocations count everywhere."""
    for name in metadata_status.configured(session.paths.data):
        if name != but:
            _status_of(session, name, verify=True)


def require_not_revoked(session: Session, receipt: Receipt) -> None:
    """Refuse a revoked release; print a note if it was dropped or the metadata has expired.

    Metadata that is missing or unreadable does not stop a start, unless fresh metadata is required.
    Raises ``Revoked``; with ``require_fresh`` also ``StaleMetadata``, ``ClockBehind`` and
    ``MetadataError``.
    """
    if receipt.unsigned is not None:
        # No metadata tells of it. But a publisher may have revoked the same archive.
        require_usable(session, receipt)
        return
    name = receipt.repository
    # A note proves nothing: the user who requires fresh metadata gets it verified.
    own = None if session.settings.require_fresh else metadata_status.read(session.paths.data, name)
    try:
        own = own or _verify_metadata(session, name)
    except (SelectionError, TrustError, StoreError) as error:
        if session.settings.require_fresh:
            raise
        session.user.note(f"the revocations are unknown: {error.message}")
    if own and session.settings.require_fresh:
        own.freshness.require(session.machine.now)
    found = signed_status(session, verify=True, given={name: own} if own else None)
    _refuse_revoked(session, receipt, found)
    if own is None:
        return
    if gone := found.of(receipt).gone:
        session.user.note(f"{receipt.release}: {gone}; to update: {TSUKU} update")
    if warning := own.freshness.warning(session.machine.now):
        session.user.note(warning)


def require_usable(session: Session, receipt: Receipt) -> None:
    """Refuse to make a revoked version the active one. Raises ``Revoked``."""
    _refuse_revoked(session, receipt, signed_status(session, verify=True))


def revoked(release: str, why: Revocation, hint: str) -> Revoked:
    """Return the error for a release that its publisher, or another repository, has revoked."""
    return Revoked(f"{release} was revoked by {why.by}", facts=why.facts, hint=hint + why.way_out)


def _refuse_revoked(session: Session, receipt: Receipt, found: SignedStatus) -> None:
    why = found.revocation(receipt)
    if why is None:
        return
    if not session.allow_revoked:
        hint = f"take another release: {found.replacement(receipt)}; or add --allow-revoked"
        raise revoked(receipt.release, why, hint)
    session.user.note(f"{receipt.release} is used anyway: {why.summary}")


def _status_of(session: Session, name: str, *, verify: bool) -> MetadataStatus | None:
    """Return what a repository says; None if it cannot be read, so that the others still count."""
    with suppress(SelectionError, TrustError, StoreError):
        noted = metadata_status.read(session.paths.data, name)
        if noted or not verify or not metadata_status.has_metadata(session.paths.data, name):
            return noted
        return _verify_metadata(session, name)
    return None


def _verify_metadata(session: Session, name: str) -> MetadataStatus:
    """Verify the metadata, and note what it says for the next start."""
    from tsuku_llm.catalog import loading  # noqa: PLC0415 - a start does without

    catalog = loading.load(
        repository_of(session.paths.data, session.settings._replace(repository=name)),
        session.paths.data,
    )
    for note in catalog.notes:
        session.user.note(note)
    found = catalog.metadata_status()
    note_metadata_status(session.paths.data, found)
    return found


def note_metadata_status(data: Path, found: MetadataStatus) -> None:
    """Note it for the next start, where this user may write and other users may not."""
    with suppress(StoreError):
        check_path(data)
        metadata_status.write(data, found)
