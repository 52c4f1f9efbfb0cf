"""Folders where a version is put together before it appears, and where one disappears.

Each has a lock file beside it, held for as long as the folder is worked on. What has no
living holder is the leftover of a crash, and the next writing command sweeps it away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import FOLDER_MODE, drop_tree, unique
from tsuku_llm.errors import LockTimeout, StoreError
from tsuku_llm.folders import Folder, opened
from tsuku_llm.store.holds import IN_USE
from tsuku_llm.store.integrity import FINGERPRINT, TREE, Stamp
from tsuku_llm.store.layout import STAGING
from tsuku_llm.store.locks import exclusive, holder_of
from tsuku_llm.store.receipt import RECEIPT

_TRIES = 5
ASIDE = "aside"
REMOVED = "removed"
_UNPACKED = "unpacked"
_PARTS = (TREE, _UNPACKED, ASIDE, REMOVED)
_FILES = (IN_USE, RECEIPT, FINGERPRINT)
"""All that this program makes in a folder of its own here."""

LONGEST_INSTALL = 24 * 3600.0
"""Seconds after which nobody can still be at work on what lies there."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A folder of one's own on the store's file system; ``tree`` is to be filled.

    ``hashed`` has the digests of files in it that were hashed moments ago.
    """

    path: Path
    hashed: dict[Stamp, str] = field(default_factory=dict)

    @property
    def tree(self) -> Path:
        """Where the build is unpacked."""
        return self.path / TREE

    @property
    def unpacked(self) -> Path:
        """Where archives without a signed list are unpacked before they are put in place."""
        return self.path / _UNPACKED


@contextmanager
def staged(parent: Path) -> Iterator[Staging]:
    """A new folder in ``parent``; whatever is left in it at the end of the block is removed."""
    with ExitStack() as stack:
        staging = Staging(parent / _locked_name(parent, stack))
        stack.callback(drop_tree, staging.path)
        with disk_errors("making a staging folder", parent):
            staging.path.mkdir(FOLDER_MODE)
            staging.tree.mkdir(FOLDER_MODE)
        yield staging


def _locked_name(parent: Path, stack: ExitStack) -> str:
    """Lock a fresh name; a sweep that looks in the same moment can take it from us."""
    for _ in range(_TRIES):
        name = unique()
        with suppress(LockTimeout):
            stack.callback(_forget, _lock_file(parent, name))
            stack.enter_context(exclusive(_lock_file(parent, name), timeout=0))
            return name
    raise StoreError("could not lock a staging folder", facts=(f"path: {parent}",))


def sweep_staging(data: Path, now: float) -> None:
    """Remove what crashed processes left; what a live one works on stays.

    What cannot be removed stays too: it is in nobody's way. ``now`` is in seconds since the
    epoch: where locks do not tell (another machine's, or none at all), age does.
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
    lock = _lock_file(parent.path, name)
    old = _written(lock) + LONGEST_INSTALL < now
    holder = holder_of(lock)
    if holder and not holder.is_here and not old:
        return
    with exclusive(lock, timeout=0) as locked:
        if locked or old:
            if parent.is_folder(name):
                _empty(parent, name)
            _forget(lock)


def _empty(parent: Folder, name: str) -> None:
    """Remove what a version is put together from, then the folder; what else is in it stays."""
    with parent.inner(name) as folder:
        for part in _PARTS:
            if folder.is_folder(part):
                folder.remove_tree(part)
        for part in _FILES:
            if folder.is_file(part):
                folder.unlink(part)
    with suppress(OSError):  # something foreign is in it
        parent.rmdir(name)


def _written(lock: Path) -> float:
    try:
        return lock.lstat().st_mtime
    except OSError:
        return 0.0


def _lock_file(parent: Path, name: str) -> Path:
    return parent / f"{name}.lock"


def _forget(lock: Path) -> None:
    with suppress(OSError):
        lock.unlink()
