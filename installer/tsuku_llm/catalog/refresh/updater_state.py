"""The state folder of python-tuf's updater: made safe to open, and seeded.

The updater opens its files by name, without a check. A fifo in the place of a file would block
it for ever. A link would make it read and write elsewhere. An endless file would fill the
memory. So unsafe files are removed first, and what this program cannot have made is renamed:
the updater downloads missing files again, and ``trust`` verifies the result.

The state is also the updater's memory: it refuses metadata that is older. So before each update
the state gets what this machine knows better: the known roots, and each role that the state
lacks, cannot verify, or has in an older version.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm import trust
from tsuku_llm.catalog.copies import UpdaterCopy, read_file
from tsuku_llm.catalog.roots import KnownRoots
from tsuku_llm.ground.errors import MetadataError, StoreError
from tsuku_llm.ground.files import make_folder, rename, replace_file, unique
from tsuku_llm.ground.folders import temporaries
from tsuku_llm.trust import Copy

if TYPE_CHECKING:
    from tuf.api.metadata import Root  # type: ignore[attr-defined]  # its own re-export

_STATE = re.compile(r"(?:[0-9]+\.)?(?:root|timestamp|snapshot|targets)\.json")
_TEMPORARY = re.compile(rf"tmp[a-z0-9_]{{8}}|{temporaries(_STATE.pattern).pattern}")
"""The names of temporary files: the updater's (by ``tempfile``), and those of ``files``."""
_ROOT = re.compile(r"[0-9]+\.root\.json")
_NEWEST_ROOT = re.compile(rf"root_history/{_ROOT.pattern}")


def make_safe(folder: Path, *, alone: bool) -> None:
    """Clear the way of files that the updater must not open, and remove what a crash left.

    Used for the updater's folder and for the folder of the known roots. ``alone`` says that no
    other process uses the folder. Otherwise temporary files stay, as another process may be
    writing them. Raises ``OSError``.
    """
    history = folder / "root_history"
    for place in (folder, history):
        # A link would lead the updater elsewhere. ``seed`` makes the folders again.
        if place.is_symlink() or not place.is_dir():
            if os.path.lexists(place):
                _clear(place)
            continue
        for path in place.iterdir():
            # Files with other names are foreign: the updater does not open them.
            if (_STATE.fullmatch(path.name) and not _is_state(path)) or (
                alone and _TEMPORARY.fullmatch(path.name) and path.is_file()
            ):
                _clear(path)


def _clear(path: Path) -> None:
    """Remove a state file; what is foreign by its kind, owner or name gets another name."""
    status = path.lstat()
    mine = os.name != "posix" or status.st_uid in (0, os.geteuid())
    known = bool(_STATE.fullmatch(path.name) or _TEMPORARY.fullmatch(path.name))
    ours = known and mine and stat.S_ISREG(status.st_mode)
    if path.name == "root.json" and stat.S_ISLNK(status.st_mode):
        # The updater makes this one link: to its newest root.
        ours = bool(_NEWEST_ROOT.fullmatch(os.readlink(path)))  # its exact text
    if ours:
        path.unlink()
    else:
        rename(path, path.with_name(f"{path.name}.{unique()}.set-aside"))


def seed(folder: Path, roots: KnownRoots, copies: Iterable[Copy]) -> None:
    """Give the updater the known roots, and each role that a verified copy has newer.

    This goes role by role, so the order of the copies does not matter. Roles that are not
    signed under the newest known root are left out: their keys were replaced. Raises
    ``OSError``, ``StoreError``.
    """
    state, history = UpdaterCopy(folder), folder / "root_history"
    make_folder(folder)
    make_folder(history)
    for version, file in roots.files.items():
        _put(state, f"metadata/{version}.root.json", file)
    root = trust.check_root(roots.newest)
    # The state may already have verified roots after the newest known one: these stay.
    chain = {f"{version}.root.json" for version in roots.files}
    with contextlib.suppress(MetadataError):
        for each, _ in trust.later_roots(state, root):
            chain.add(f"{each.version}.root.json")
    for path in history.iterdir():
        if _ROOT.fullmatch(path.name) and path.name not in chain:
            _clear(path)  # the updater would skip it, and we would read it as a later root
    for copy in copies:
        # The timestamp and the snapshot are compared separately: the state may have one of them
        # newer.
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
    """Tell whether the known copy is ahead of the state in a role, and behind in none."""
    return bool(trust.setbacks(known, state)) and not trust.setbacks(state, known)


def _versions(copy: Copy, root: Root, role: str, name: str) -> Mapping[str, int]:
    """Read the versions that a role's file names; empty if it is missing or not valid."""
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
