"""The daily look for an update, while a server starts.

The look is ``tsuku-llm update --check`` in a separate process. A start does not wait for it, and it
prints nothing; it only writes down what it found. The next start on another day prints that. So a
start never waits for a network, and costs two looks at small files.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.ground import records
from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.files import make_folder, read_small, write_note
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.processes import children
from tsuku_llm.steps.session import Session

if TYPE_CHECKING:
    from tsuku_llm.config.settings import Settings

EVERY = timedelta(days=1)
"""The time between two looks."""

_FOUND = "update.json"
"""What the last look found; written by the process that looks."""
_LOOKED = "update-look"
"""An empty file: its time is the time of the last look."""
_FORMAT = 1
_LIMIT = 4096


class Offer(NamedTuple):
    """A newer release that fits this machine, or the installed one with a better variant.

    ``reason`` is why another variant of the installed release is better, None for a newer release.
    """

    release: str
    version: str | None
    reason: str | None = None


def keep_offer(state: Path, installed: str, offer: Offer | None) -> None:
    """Write down what a look for an update found for the installed version of that id."""
    found = offer._asdict() if offer else dict.fromkeys(Offer._fields)
    document = {"format": _FORMAT, "installed": installed, **found}
    with suppress(StoreError, OSError):  # a missing or incomplete file only costs the note
        make_folder(state)
        write_note(state / _FOUND, records.encode(document))


_NAME = records.optional(records.text)
_READ = records.fields(
    {"installed": records.text, "release": _NAME, "version": _NAME, "reason": _NAME},
    format=_FORMAT,
)


def kept_offer(state: Path, installed: str) -> Offer | None:
    """Return what the last look found, if it was about this installed version."""
    with suppress(StoreError, ValueError):
        found = records.parse(read_small(state / _FOUND, _LIMIT) or b"null", _READ)
        if found["installed"] == installed and found["release"]:
            return Offer(found["release"], found["version"], found["reason"])
    return None


def offer_update(session: Session, installed: str) -> None:
    """Print what the last look found, and look again in the background.

    This happens once a day, and never waits.
    """
    if not session.settings.update_check:
        return
    with suppress(StoreError, OSError):
        make_folder(session.paths.state)
        mark = session.paths.state / _LOOKED
        if not _is_due(mark, session.machine.now):
            return
        # Mark before the look: a second server that starts now then does not look as well.
        write_note(mark, b"")
        os.utime(mark, (session.machine.now.timestamp(),) * 2)
        offer = kept_offer(session.paths.state, installed)
        if offer and may_be_told(session.settings, installed, offer):
            version = f" ({offer.version})" if offer.version else ""
            found = offer.reason or f"{offer.release}{version} is there"
            session.user.note(f"{found}; to install it: {TSUKU} update")
        # A daemon thread: the end of the server does not wait for it. It only reads the session, so
        # it needs no lock.
        Thread(target=_look, args=(session.machine.environ,), daemon=True).start()


def may_be_told(settings: Settings, installed: str, offer: Offer) -> bool:
    """Return whether no setting keeps the user from this release.

    The setting may be newer than the offer. ``installed`` is the id of the active version.
    """
    if settings.release:
        return settings.release.removeprefix("v") in {offer.release, offer.version}
    # The id of a version begins with its release.
    return not settings.hold or installed.startswith(f"{offer.release}-")


def _is_due(mark: Path, now: datetime) -> bool:
    """Return whether the last look is a day old; a time in the future comes from a wrong clock."""
    try:
        looked = mark.stat().st_mtime
    except FileNotFoundError:
        return True
    return not 0 <= now.timestamp() - looked < EVERY.total_seconds()


def _look(environ: Mapping[str, str]) -> None:
    """Run the look, and wait for it in this thread, so that it does not stay as a zombie."""
    with suppress(OSError):
        children.run(
            # A child of this process: if we exit before it, it goes on alone.
            children.this_program("update", "--check", "--json"),
            # Lock timeout 0: if another command is at work, skip this look.
            env={**environ, "TSUKU_LLM_LOCK_TIMEOUT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the terminal is for the server, not for the look.
            start_new_session=True,
        )
