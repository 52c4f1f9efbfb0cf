"""The settings that keep a user at a release: ``llm.release``, ``llm.hold`` and ``llm.min_age``.

The flag ``--release`` comes before all of them. No setting keeps a revoked release running.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime
from typing import TYPE_CHECKING

from tsuku_llm.ground.errors import StoreError
from tsuku_llm.steps.session import Session, way_to_undo

if TYPE_CHECKING:
    from tsuku_llm.catalog.manifest import ReleaseEntry

HOLD, RELEASE, MIN_AGE = "llm.hold", "llm.release", "llm.min_age"


def staying(session: Session) -> Session:
    """Return the session of a user who stays at the installed release, if ``llm.hold`` says so.

    The release is then the active one, with its channel and repository. ``llm.release``, and a
    setting or a flag for another repository, end the hold.
    """
    settings = session.settings
    if not settings.hold or settings.release:
        return session
    try:
        installed = session.reader.active()
    except StoreError as error:
        # An install is what repairs this, so it must go on.
        session.user.note(f"{HOLD} holds nothing: {error.message}")
        return session
    if installed is None:
        return session
    active = installed.receipt
    if settings.repository not in {None, active.repository}:
        return session
    if "channel" in settings.flags and settings.channel != active.channel:
        session.user.note(
            f"--channel {settings.channel} changes nothing: {HOLD} keeps {active.release} of the "
            f"channel {active.channel}; to end that: tsuku-llm config set {HOLD} false"
        )
    return session.with_settings(
        release=active.release, repository=active.repository, channel=active.channel
    )


def keeper(session: Session) -> str | None:
    """Return the setting that names the release, after ``staying``; None if none does."""
    if session.settings.release is None:
        return None
    return RELEASE if "release" in session.settings.chosen else HOLD


def way_to_leave(session: Session) -> str:
    """Return the hint that ends what ``keeper`` names."""
    name = keeper(session) or RELEASE
    command = f"unset {RELEASE}" if name == RELEASE else f"set {HOLD} false"
    return f"to take the newest release: {way_to_undo(session, name, command)}"


def old_enough(
    session: Session, repository: str, entries: Sequence[ReleaseEntry]
) -> tuple[list[ReleaseEntry], list[ReleaseEntry]]:
    """Divide releases into those that ``llm.min_age`` allows, and the others.

    The installed release is allowed: otherwise a new value of the setting would mean a downgrade.
    """
    days = session.settings.min_age
    if not days:
        return list(entries), []
    here = active_release(session, repository)
    allowed: list[ReleaseEntry] = []
    young: list[ReleaseEntry] = []
    for entry in entries:
        is_old = entry.release == here or age(entry.published, session.machine.now) >= days
        (allowed if is_old else young).append(entry)
    return allowed, young


def active_release(session: Session, repository: str) -> str | None:
    """Return the installed release if it is of this repository, else None."""
    with suppress(StoreError):  # an install is what repairs an active version that is unreadable
        active = session.reader.active()
        if active and active.receipt.repository == repository:
            return active.receipt.release
    return None


def age(published: str, now: datetime) -> int:
    """Return the days since a release was published, by the publisher's date; both in UTC.

    Less than 0 for a date that does not exist: a release whose age is not known counts as new.
    """
    try:
        return (now.date() - date.fromisoformat(published)).days
    except ValueError:
        return -1
