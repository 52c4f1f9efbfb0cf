"""The setting that keeps a user at a release: ``llm.release``.

The flag ``--release`` comes before it. No setting keeps a revoked release running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tsuku_llm.config.settings import Settings
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.steps.choosing.passing_over import RELEASE, Kept
from tsuku_llm.steps.session import Session, way_to_undo
from tsuku_llm.store.reader import StoreReader
from tsuku_llm.store.records.updates import RolledBack, read_marks


def staying(session: Session) -> Session:
    """Return the session of a user who stays at the installed release, if ``llm.release`` says so.

    The release is then the active one, with its channel and repository. A setting or a flag for
    another repository ends the hold.
    """
    settings = session.settings
    if not settings.hold or settings.release:
        return session
    try:
        installed = session.reader.active()
    except StoreError as error:
        # An install is what repairs this, so it must go on.
        session.user.note(f"{RELEASE} holds nothing: {error.message}")
        return session
    if installed is None:
        return session
    active = installed.receipt
    if settings.repository not in {None, active.repository}:
        return session
    if "channel" in settings.flags and settings.channel != active.channel:
        session.user.note(
            f"--channel {settings.channel} changes nothing: {RELEASE} keeps {active.release} of "
            f"the channel {active.channel}; to end that: {TSUKU} config unset {RELEASE}"
        )
    return session.with_settings(
        release=active.release, repository=active.repository, channel=active.channel
    )


def kept_release(settings: Settings, environ: Mapping[str, str]) -> Kept | None:
    """Return the release that a setting names, after ``staying``; None if none does."""
    if settings.release is None:
        return None
    return Kept(settings.release, way_to_undo(settings, environ, RELEASE))


def active_release(reader: StoreReader, repository: str) -> str | None:
    """Return the installed release if it is of this repository, else None."""
    with suppress(StoreError):  # an install is what repairs an active version that is unreadable
        active = reader.active()
        if active and active.receipt.repository == repository:
            return active.receipt.release
    return None


def noted_marks(data: Path, note: Callable[[str], None]) -> tuple[RolledBack, ...]:
    """Return the releases that failed here; a file that cannot be read is told and is no error."""
    try:
        return read_marks(data)
    except StoreError as error:
        note(f"warning: {error.message}; {error.hint}")
        return ()
