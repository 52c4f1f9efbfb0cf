"""The folder in which python-tuf's updater keeps its state: made safe to open, and seeded.

The updater opens its files by their names alone. A fifo in the place of one would hold it
for ever, a link lead it elsewhere, to read and to write, and a file without end fill the
memory. What it misses it fetches again, and ``trust`` verifies the result.

Its state is also its memory, by which it refuses what is older. So before each update it is
given what this machine knows better: the known roots, and each role that it lacks, cannot
verify, or has in an older version.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm import trust
from tsuku_llm.catalog.copies import UpdaterCopy, read_file
from tsuku_llm.catalog.roots import KnownRoots
from tsuku_llm.durable import make_folder, remove, replace_file
from tsuku_llm.errors import MetadataError, StoreError
from tsuku_llm.folders import temporaries
from tsuku_llm.trust import Copy

if TYPE_CHECKING:
    from tuf.api.metadata import Root  # type: ignore[attr-defined]  # its own re-export

_STATE = re.compile(r"(?:[0-9]+\.)?(?:root|timestamp|snapshot|targets)\.json")
_TEMPORARY = re.compile(rf"tmp[a-z0-9_]{{8}}|{temporaries(_STATE.pattern).pattern}")
"""What the updater, by ``tempfile``, and ``durable`` write before they rename it."""


def make_safe(folder: Path, *, alone: bool) -> None:
    """Remove what the updater must not open, and what a crash left.

    For the updater's folder and the one of the known roots.
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


def seed(folder: Path, roots: KnownRoots, copies: Iterable[Copy]) -> None:
    """Give the updater the known roots, and of each verified copy what it has later.

    Role by role, so that the order of the copies does not matter. Roles that are not signed
    under the newest known root are left out: their keys were replaced. Raises ``OSError``,
    ``StoreError``.
    """
    state, history = UpdaterCopy(folder), folder / "root_history"
    make_folder(folder)
    make_folder(history)
    for version, file in roots.files.items():
        _put(state, f"metadata/{version}.root.json", file)
    root = trust.check_root(roots.newest)
    chain = {f"{version}.root.json" for version in roots.files}
    with contextlib.suppress(MetadataError):
        for each, _ in trust.later_roots(state, root):
            chain.add(f"{each.version}.root.json")
    for path in history.iterdir():
        if path.suffix == ".json" and path.name not in chain:
            remove(path)  # the updater would pass over it, and leave it to us as a later root
    for copy in copies:
        timestamp = "metadata/timestamp.json"
        known = _versions(copy, root, "timestamp", timestamp)
        if _is_later(known, _versions(state, root, "timestamp", timestamp)):
            _put(state, timestamp, copy.read(timestamp))
        snapshot = f"metadata/{known.get('snapshot', 0)}.snapshot.json"
        known = _versions(copy, root, "snapshot", snapshot)
        if _is_later(known, _versions(state, root, "snapshot", snapshot)):
            for role in known.keys() & set(trust.ROLES):  # the updater reads no others
                name = trust.file_name(role, known[role])
                _put(state, name, copy.read(name))


def _is_later(known: Mapping[str, int], state: Mapping[str, int]) -> bool:
    """Whether the state lacks something and has nothing that the known copy lacks."""
    return bool(trust.setbacks(known, state)) and not trust.setbacks(state, known)


def _versions(copy: Copy, root: Root, role: str, name: str) -> Mapping[str, int]:
    """The versions that a role's file names; none where it is missing or does not verify."""
    data = copy.read(name)
    try:
        return trust.check_role(root, data, role).versions if data else {}
    except MetadataError:
        return {}


def _put(state: UpdaterCopy, name: str, data: bytes | None) -> None:
    if data is not None and state.read(name) != data:
        replace_file(state.path(name), data)


def _is_state(path: Path) -> bool:
    try:
        return read_file(path) is not None
    except StoreError:
        return False
