"""What signed metadata says of an installed release: revoked, dropped, or how old the news is.

Every start needs this. It imports the verifier only if nothing is noted about the current metadata,
or if the user requires fresh metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from tsuku_llm import revocations, standing
from tsuku_llm.errors import Revoked, SelectionError, StoreError, TrustError
from tsuku_llm.operations.session import Session
from tsuku_llm.ownership import check_path
from tsuku_llm.revocations import Revocation
from tsuku_llm.standing import Standing
from tsuku_llm.store import Receipt


class Told(NamedTuple):
    """The news about an installed release.

    ``gone`` says that no channel has it any more, or that its repository was removed. It is None if
    the release is still offered, or if nothing is known.
    """

    revocation: Revocation | None = None
    gone: str | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The same in words for people."""
        revoked = (self.revocation.summary,) if self.revocation else ()
        return (*revoked, self.gone) if self.gone else revoked


class Known(NamedTuple):
    """The knowledge of this machine about all repositories, including those that were removed.

    ``standings`` has the repositories whose metadata was read; ``configured`` all repositories of
    the user.
    """

    revoked: tuple[Revocation, ...]
    standings: Mapping[str, Standing]
    configured: tuple[str, ...]

    def of(self, receipt: Receipt) -> Told:
        """Return what is known of one installed release."""
        return Told(self.revocation(receipt), self._gone(receipt))

    def revocation(self, receipt: Receipt) -> Revocation | None:
        """Return why a release must not be used, or None.

        A revocation counts by the release's name in its repositories, or by its archives in any
        repository.
        """
        names, build = (receipt.repository, *receipt.former), tuple(sorted(receipt.digests))
        for each in self.revoked:
            if each.is_of(names, receipt.release, [build]):
                return each
        return None

    def _gone(self, receipt: Receipt) -> str | None:
        known = self.standings.get(receipt.repository)
        if receipt.repository not in self.configured:
            return f"its repository {receipt.repository} was removed"
        if known and receipt.release not in known.offered:
            return f"no channel of repository {receipt.repository} has it any more"
        return None


def known(session: Session, *, verify: bool, given: Mapping[str, Standing] | None = None) -> Known:
    """Return what all repositories say: the current notes, and every revocation ever seen.

    ``given`` are answers that the caller already has. With ``verify``, metadata without a current
    note is verified; the result is noted for the next start.
    """
    # Revocations are kept for good: later metadata that lacks one does not lift it.
    held, damaged = revocations.read_all(session.paths.data)
    for error in damaged:
        session.user.note(error.message)
    names = standing.configured(session.paths.data)
    standings = dict(given or {})
    for name in names:
        if name not in standings and (found := _look(session, name, verify=verify)):
            standings[name] = found
    for name, each in standings.items():
        held[name] = revocations.merged(held.get(name, ()), each.revoked)
    return Known(tuple(chain.from_iterable(held.values())), standings, names)


def learn(session: Session, *, but: str) -> None:
    """Note what all repositories but one say, so that their revocations count everywhere."""
    for name in standing.configured(session.paths.data):
        if name != but:
            _look(session, name, verify=True)


def vouch(session: Session, receipt: Receipt) -> None:
    """Refuse a revoked release; print a note if it was dropped or the metadata has expired.

    Metadata that is missing or unreadable does not stop a start, unless fresh metadata is required.
    Raises ``Revoked``; with ``require_fresh`` also ``StaleMetadata``, ``ClockBehind`` and
    ``MetadataError``.
    """
    name = receipt.repository
    # A note proves nothing: the user who requires fresh metadata gets it verified.
    own = None if session.settings.require_fresh else standing.read(session.paths.data, name)
    try:
        own = own or _anew(session, name)
    except (SelectionError, TrustError, StoreError) as error:
        if session.settings.require_fresh:
            raise
        session.user.note(f"nothing is known of revocations: {error.message}")
    if own and session.settings.require_fresh:
        own.freshness.require(session.machine.now)
    found = known(session, verify=True, given={name: own} if own else None)
    _require_not_revoked(session, receipt, found)
    if own is None:
        return
    if gone := found.of(receipt).gone:
        session.user.note(f"{receipt.release}: {gone}; to move on: tsuku-llm update")
    if warning := own.freshness.warning(session.machine.now):
        session.user.note(warning)


def require_usable(session: Session, receipt: Receipt) -> None:
    """Refuse to make a revoked version the active one. Raises ``Revoked``."""
    _require_not_revoked(session, receipt, known(session, verify=True))


def revoked(release: str, why: Revocation, hint: str) -> Revoked:
    """Return the error for a release that its publisher has revoked."""
    return Revoked(f"{release} was revoked by its publisher", facts=why.facts, hint=hint)


def _require_not_revoked(session: Session, receipt: Receipt, found: Known) -> None:
    why = found.revocation(receipt)
    if why is None:
        return
    if not session.allow_revoked:
        hint = "move on: tsuku-llm update; or add --allow-revoked"
        raise revoked(receipt.release, why, hint)
    session.user.note(f"{receipt.release} is used all the same: {why.summary}")


def _look(session: Session, name: str, *, verify: bool) -> Standing | None:
    """Return what a repository says; None if it cannot be read, so that the others still count."""
    with suppress(SelectionError, TrustError, StoreError):
        noted = standing.read(session.paths.data, name)
        if noted or not verify or not standing.has_metadata(session.paths.data, name):
            return noted
        return _anew(session, name)
    return None


def _anew(session: Session, name: str) -> Standing:
    """Verify the metadata, and note what it says for the next start."""
    from tsuku_llm import catalog as catalogs  # noqa: PLC0415 - a start does without
    from tsuku_llm.operations.choice import repository_of  # noqa: PLC0415

    catalog = catalogs.load(
        repository_of(session.with_settings(repository=name)), session.paths.data
    )
    for note in catalog.notes:
        session.user.note(note)
    found = catalog.standing()
    note_standing(session, found)
    return found


def note_standing(session: Session, found: Standing) -> None:
    """Note it for the next start, where this user may write and other users may not."""
    with suppress(StoreError):
        check_path(session.paths.data)
        standing.write(session.paths.data, found)
