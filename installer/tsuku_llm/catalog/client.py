"""The folder in which python-tuf's updater keeps its state, made safe for it to open.

The updater opens its files by their names alone. A fifo in the place of one would hold it
for ever, a link lead it elsewhere, to read and to write, and a file without end fill the
memory. What it misses it fetches anew, and ``trust`` verifies the result.
"""

from __future__ import annotations

import re
from pathlib import Path

from tsuku_llm.catalog.copies import read_file
from tsuku_llm.durable import remove
from tsuku_llm.errors import StoreError

_STATE = re.compile(r"(?:[0-9]+\.)?(?:root|timestamp|snapshot|targets)\.json")
_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}")
"""As ``tempfile`` names what the updater writes before it renames it."""


def make_safe(folder: Path, *, alone: bool) -> None:
    """Remove what the updater must not open, and what a crash of it left.

    ``alone`` says that no other process uses the folder: one that does has half-written
    files there. Raises ``OSError``.
    """
    history = folder / "root_history"
    for place in (folder, history):
        if place.is_symlink() or not place.is_dir():
            remove(place)
            continue
        for path in place.iterdir():
            # What has another name is foreign: the updater does not look at it.
            if (_STATE.fullmatch(path.name) and not _is_state(path)) or (
                alone and _TEMPORARY.fullmatch(path.name) and path.is_file()
            ):
                remove(path)


def _is_state(path: Path) -> bool:
    try:
        return read_file(path) is not None
    except StoreError:
        return False
