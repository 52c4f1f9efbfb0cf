"""Look for an update once a day, beside a server that starts.

The look itself is ``tsuku-llm update --check`` in a process of its own, which nobody waits
for and which keeps silent; it remembers what it found. The next start of another day tells.
So a start never waits for a network, and costs two looks at small files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from tsuku_llm.durable import make_folder, read_small, write_note
from tsuku_llm.errors import StoreError
from tsuku_llm.operations.session import Session

EVERY = timedelta(days=1)

_FOUND = "update.json"
_LOOKED = "update-look"
_FORMAT = 1
_LIMIT = 4096


class Offer(NamedTuple):
    """A newer release that fits this machine."""

    release: str
    version: str | None


def remember(session: Session, installed: str, offer: Offer | None) -> None:
    """Keep what a look for an update found for the installed version of that id."""
    document = {"format": _FORMAT, "installed": installed, "release": None, "version": None}
    if offer:
        document |= {"release": offer.release, "version": offer.version}
    with suppress(StoreError, OSError):  # without it, or with half of it, there is no notice
        make_folder(session.state)
        write_note(session.state / _FOUND, json.dumps(document).encode("ascii") + b"\n")


def remembered(session: Session, installed: str) -> Offer | None:
    """What the last look found, if it was about this installed version."""
    with suppress(StoreError, ValueError, KeyError, TypeError, RecursionError):
        found = json.loads(read_small(session.state / _FOUND, _LIMIT) or b"null")
        if (found["format"], found["installed"]) == (_FORMAT, installed) and found["release"]:
            return Offer(str(found["release"]), found["version"] and str(found["version"]))
    return None


def offer_update(session: Session, installed: str) -> None:
    """Tell what was found, and look again in the background; once a day, without waiting."""
    if not session.update_check:
        return
    with suppress(StoreError, OSError):
        make_folder(session.state)
        mark = session.state / _LOOKED
        if not _is_due(mark, session.now):
            return
        write_note(mark, b"")
        os.utime(mark, (session.now.timestamp(),) * 2)
        if offer := remembered(session, installed):
            version = f" ({offer.version})" if offer.version else ""
            session.note(f"{offer.release}{version} is there; to move to it: tsuku-llm update")
        Thread(target=_look, args=(session,), daemon=True).start()


def _is_due(mark: Path, now: datetime) -> bool:
    """Whether the last look was on another day; one in the future was by a wrong clock."""
    try:
        looked = mark.stat().st_mtime
    except FileNotFoundError:
        return True
    return not 0 <= now.timestamp() - looked < EVERY.total_seconds()


def _look(session: Session) -> None:
    """Run it, and wait for it in this thread only, so that it is no zombie."""
    with suppress(OSError):
        subprocess.run(
            [sys.executable, "-m", "tsuku_llm", "update", "--check", "--json"],
            cwd=session.state,  # python -m would import from any other folder that it is in
            env={**session.environ, "TSUKU_LLM_LOCK_TIMEOUT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
