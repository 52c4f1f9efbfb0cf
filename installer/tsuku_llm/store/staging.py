"""Staging folders: a version is built in one, and removed in one.

Each staging folder has a lock file next to it, which its process holds all the time. A folder
without a living holder was left by a crash; the next command that writes removes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import LockTimeout, StoreError
from tsuku_llm.ground.files import FOLDER_MODE, drop_tree, unique
from tsuku_llm.ground.folders import Folder, opened
from tsuku_llm.store.in_use import IN_USE
from tsuku_llm.store.layout import STAGING
from tsuku_llm.store.locks import exclusive, holder_of
from tsuku_llm.store.records.integrity import FINGERPRINT, TREE, Stamp
from tsuku_llm.store.records.receipt import RECEIPT

_TRIES = 5
ASIDE = "aside"
_UNPACKED = "unpacked"
_PARTS = (TREE, _UNPACKED, ASIDE)
_FILES = (IN_USE, RECEIPT, FINGERPRINT)
"""With ``_PARTS``, all that this program creates in a staging folder."""

LONGEST_INSTALL = 24 * 3600.0
"""Seconds after which no process can still work on a staging folder."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A private folder on the store's file system; the caller fills ``tree``.

    ``hashed`` has the digests of files in it that were hashed moments ago.
    """

    path: Path
    hashed: dict[Stamp, str] = field(default_factory=dict)

    @property
    def tree(self) -> Path:
        """The folder into which the build is extracted."""
        return self.path / TREE

    @property
    def unpacked(self) -> Path:
        """The folder for archives without a signed file list, before their files are moved."""
        return self.path / _UNPACKED


@contextmanager
def staged(parent: Path) -> Iterator[Staging]:
    """Make a staging folder in ``parent``; remove what is left of it at the end of the block."""
    with reserved(parent) as path:
        staging = Staging(path)
        with disk_errors("making a staging folder", parent):
            staging.path.mkdir(FOLDER_MODE)
            staging.tree.mkdir(FOLDER_MODE)
        yield staging


@contextmanager
def reserved(parent: Path) -> Iterator[Path]:
    """Give a free path in ``parent``, and remove what is there at the end of the block.

    No other process uses the path meanwhile. Nothing is made there: a full disk has no room for a
    folder, and a version is renamed to this path to be removed.
    """
    with ExitStack() as stack:
        # The lock comes before the folder: a sweep by another process never sees the folder without
        # its holder. The stack undoes it in reverse: folder, lock, lock file.
        for _ in range(_TRIES):
            name = unique()
            # A sweep by another process may lock our new name at this moment: then try another one.
            with suppress(LockTimeout):
                # Registered first, so it runs last: the lock is released before its file is
                # removed.
                lock = parent / f"{name}.lock"
                stack.callback(_forget, lock)
                stack.enter_context(exclusive(lock, timeout=0))
                break
        else:
            raise StoreError("could not lock a staging folder", facts=(f"path: {parent}",))
        stack.callback(drop_tree, parent / name)
        yield parent / name


def sweep_staging(data: Path, now: float) -> None:
    """Remove the folders that crashed processes left; keep those of live processes.

    A folder that cannot be removed stays; it does no harm. ``now`` is in seconds since the
    epoch: age decides where locks cannot (another machine's folders, or no locks at all).
    """
    with opened(data, "staging") as parent:
        if parent is None:
            return
        with suppress(OSError):
            ours = {name.partition(".")[0] for name in parent.names() if STAGING.fits(parent, name)}
            for name in ours:
                with suppress(OSError, StoreError):
                    _sweep_one(parent, name, now)


def _sweep_one(parent: Folder, name: str, now: float) -> None:
    lock = parent.path / f"{name}.lock"
    # Read the age before locking: taking the lock may touch the file.
    old = max(_written(lock), _written(parent.path / name)) + LONGEST_INSTALL < now
    holder = holder_of(lock)
    # A process of another machine may still work on it, and its locks may not reach us.
    if holder and not holder.is_here and not old:
        return
    # A live process of this machine holds this lock all the time: then this raises LockTimeout and
    # the folder stays. While we hold it, no other sweep removes the same folder.
    with exclusive(lock, timeout=0) as locked:
        # Without working locks, only age proves that no process works in the folder. A lock file
        # alone protects nothing: its process removed both, and we made the file again just now.
        if locked or old:
            if parent.is_folder(name):
                _empty(parent, name)
            _forget(lock)
        elif not parent.is_folder(name):
            _forget(lock)


def _empty(parent: Folder, name: str) -> None:
    """Remove the parts of a version, then the folder; foreign files and their folder stay."""
    with parent.inner(name) as folder:
        for part in _PARTS:
            if folder.is_folder(part):
                folder.remove_tree(part)
        for part in _FILES:
            if folder.is_file(part):
                folder.unlink(part)
        folder.drop_temporaries("|".join(map(re.escape, _FILES)), math.inf)
    with suppress(OSError):  # something foreign is in it
        parent.rmdir(name)


def _written(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _forget(lock: Path) -> None:
    with suppress(OSError):
        lock.unlink()
