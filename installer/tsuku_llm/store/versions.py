"""The store: what is on the shelf, and everything that changes it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import flush_folder, make_folder, replace_file
from tsuku_llm.errors import (
    CorruptStore,
    InUse,
    LockTimeout,
    NotInstalled,
    StoreError,
    TsukuError,
)
from tsuku_llm.folders import Folder, opened
from tsuku_llm.ownership import check_path
from tsuku_llm.store.foreign import set_aside
from tsuku_llm.store.holds import alone_with, users_of
from tsuku_llm.store.installed import Installed
from tsuku_llm.store.integrity import Stamp
from tsuku_llm.store.layout import METADATA_LOCK, PARTIALS, adopt, require_ours
from tsuku_llm.store.legacy import LegacyAddon, remove_legacy
from tsuku_llm.store.locks import Holder, drop_locks, exclusive, forget_dead_holders
from tsuku_llm.store.pointer import pointer_or_none, read_pointer, write_pointer
from tsuku_llm.store.receipt import RECEIPT, FileRecord, Receipt, is_version_id
from tsuku_llm.store.sealing import seal
from tsuku_llm.store.sharing import donors, inodes_of, refresh_sharers
from tsuku_llm.store.shelf import Shelf
from tsuku_llm.store.staging import LONGEST_INSTALL, REMOVED, Staging, staged, sweep_staging
from tsuku_llm.store.supplying import can_supply, confirm, supply, withdraw

LOCK_TIMEOUT = 1800.0
"""Seconds that a command waits for another, which may be in the middle of a large download."""

PARTIAL_LIFETIME = 7 * 24 * 3600.0
"""Seconds after which a download that nobody resumed is a leftover."""

_POINTER_TIMEOUT = 30.0
_POINTER_LOCK = "active"


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune removed, and what it left because something uses it (ids)."""

    removed: tuple[str, ...]
    in_use: tuple[str, ...]
    legacy: tuple[LegacyAddon, ...] = ()


class Store(Shelf):
    """The folder ``data`` and what is in it; nothing is created before something is written.

    A lock is waited for ``lock_timeout`` seconds (None: ``LOCK_TIMEOUT``); ``on_wait`` is told
    once whom it is waited for (None: nobody knows). Any method raises StoreError, or one of
    its kinds, when the disk does not play along.
    """

    def __init__(
        self,
        data: Path,
        *,
        lock_timeout: float | None = None,
        on_wait: Callable[[Holder | None], None] | None = None,
    ) -> None:
        super().__init__(data)
        self._lock_timeout = LOCK_TIMEOUT if lock_timeout is None else lock_timeout
        self._on_wait = on_wait
        self._staging = data / "staging"

    # Putting together

    @property
    def partials(self) -> Path:
        """The folder of unfinished downloads, made if need be."""
        return self._made(self.data / "partials")

    def lock(self, name: str, *, timeout: float | None = None) -> AbstractContextManager[bool]:
        """Keep other processes out of ``name`` (a version's id, a digest) for a block.

        ``timeout`` is in seconds; None for the store's own. Raises LockTimeout, which names
        the process and the path.
        """
        if not is_version_id(name):
            raise ValueError(f"{name!r} cannot name a lock")
        folder = self._made(self.data / "locks")
        timeout = self._lock_timeout if timeout is None else timeout
        return exclusive(folder / f"{name}.lock", timeout=timeout, on_wait=self._on_wait)

    def staging(self) -> AbstractContextManager[Staging]:
        """A folder to unpack into, removed at the end of the block unless committed."""
        return staged(self._made(self._staging))

    def can_supply(self, files: Sequence[FileRecord]) -> bool:
        """Whether other versions have all of these files, as their receipts say."""
        return can_supply(files, donors(files, self.installed()))

    def supply(self, staging: Staging, files: Sequence[FileRecord]) -> bool:
        """Link files of other versions into a staged tree; False where one cannot be had so.

        The tree is then as it was. What was linked is to be confirmed.
        """
        return supply(staging.tree, files, donors(files, self.installed()))

    def confirm(self, staging: Staging, files: Sequence[FileRecord]) -> list[str]:
        """Hash what was linked into a staged tree; the names of what differs."""
        return confirm(staging, files)

    def withdraw(self, staging: Staging, files: Sequence[FileRecord]) -> None:
        """Take out of a staged tree again what was linked into it."""
        withdraw(staging.tree, files)

    def commit(self, staging: Staging, receipt: Receipt) -> Installed:
        """Make a staged tree a version: complete under its name, or not there at all.

        Where the same files are installed and intact, they stay and only the receipt is
        replaced. The tree must hold exactly what the receipt lists: else TamperedInstall.
        """
        installed = self._intact(receipt)
        if installed:
            installed = self.restate(installed, receipt)
        else:
            digests = seal(staging, receipt, donors(receipt.files, self.installed()))
            installed = self._publish(staging, receipt)
            self._refresh_sharers({stamp[-1] for stamp in digests}, digests)
        with disk_errors("flushing the folder of versions", self._versions):
            flush_folder(self._versions)
        return installed

    def _intact(self, receipt: Receipt) -> Installed | None:
        with suppress(TsukuError):
            installed = self.find(receipt.id)
            if installed and _same_tree(installed.receipt, receipt):
                self.check(installed, full=True)
                return installed
        return None

    def restate(self, installed: Installed, receipt: Receipt) -> Installed:
        """Keep the tree and replace its receipt: another request, device or repository."""
        if installed.receipt == receipt._replace(installed_at=installed.receipt.installed_at):
            return installed
        with disk_errors("replacing the receipt", installed.path):
            replace_file(installed.path / RECEIPT, receipt.to_json())
        return Installed(installed.id, installed.path, receipt)

    def _publish(self, staging: Staging, receipt: Receipt) -> Installed:
        """Rename it into place, unless somebody who did not see our lock was first."""
        target = self._made(self._versions) / receipt.id
        with disk_errors(f"putting {receipt.id} in its place", self._versions):
            if os.path.lexists(target) and not self._intact(receipt):
                self._discard(receipt.id)
            try:
                staging.path.rename(target)
            except OSError:
                first = self._intact(receipt)
                if first is None:
                    raise
                return first
        return Installed(receipt.id, target, receipt)

    # Which one is used

    def activate(self, installed: Installed) -> None:
        """Make a version the one in use; the one before it is remembered.

        Raises NotInstalled where it is not there any more.
        """
        with self._pointer_lock():
            if self.find(installed.id) is None:
                raise NotInstalled(f"{installed.id} is not there any more")
            write_pointer(self.data, pointer_or_none(self.data).moved_to(installed.id))

    def use(self, installed: Installed) -> None:
        """Activate a version that is there already, if it is intact.

        Raises NotInstalled where it is gone meanwhile, TamperedInstall.
        """
        with self.lock(installed.id):
            self.check(installed)
            self.activate(installed)

    def rollback(self) -> Installed:
        """Go back to the version before this one; a second time comes forth again.

        Raises NotInstalled where there is none, TamperedInstall where it is not intact.
        """
        previous = self.previous()
        if previous is None:
            raise NotInstalled(
                "there is no earlier version to go back to", hint="tsuku-llm list shows all"
            )
        self.use(previous)
        return previous

    # Removing

    def remove(self, version: str) -> None:
        """Remove a version by its id, damaged or not; foreign files in it are set aside.

        If it is the active one, nothing is active any more. Raises InUse while a server
        runs from it, NotInstalled where there is none.
        """
        path = self._versions / version
        with self.lock(version), alone_with(path) as unused:
            if not os.path.lexists(path):
                raise NotInstalled(f"{version} is not there any more")
            if not unused:
                raise InUse(
                    f"a running server uses {version}", facts=users_of(path), hint="stop it first"
                )
            with self._pointer_lock():
                pointer = pointer_or_none(self.data)
                if pointer != pointer.without(version):
                    write_pointer(self.data, pointer.without(version))
            inodes = inodes_of(path)
            self._discard(version)
            self._refresh_sharers(inodes, {})
        self._drop_locks()

    def prune(self, keep: Collection[str] = (), *, legacy_home: Path | None = None) -> Pruned:
        """Remove what is neither active nor the one to roll back to, nor in ``keep`` (ids).

        What a running server uses or another process is installing stays. Where nothing is
        active, every version that can be read stays: one of them was meant. Unfinished
        downloads that nobody works on go as well; with ``legacy_home`` (tsuku's folder)
        so does what tsuku's earlier addon left there.
        """
        if read_pointer(self.data).active is None:
            keep = {*keep, *(version.id for version in self.installed())}
        removed: list[str] = []
        in_use: list[str] = []
        inodes: set[int] = set()
        try:
            for name in self.ids():
                if name not in (*self._pointed(), *keep):
                    (removed if self._prune_one(name, inodes) else in_use).append(name)
        finally:  # once for all: each time would cost the square of their number
            self._refresh_sharers(inodes, {})
        self._sweep_partials(newest=None)
        self._drop_locks()
        legacy = remove_legacy(legacy_home) if legacy_home else ()
        return Pruned(tuple(removed), tuple(in_use), legacy)

    def _prune_one(self, name: str, inodes: set[int]) -> bool:
        path = self._versions / name
        with suppress(LockTimeout), self.lock(name, timeout=0), alone_with(path) as unused:
            # Under the lock nobody activates it: what is not in use now will not be.
            removable = unused and name not in self._pointed()
            if removable:
                inodes |= inodes_of(path)
                self._discard(name)
            return removable
        return False

    def _pointed(self) -> tuple[str | None, str | None]:
        pointer = read_pointer(self.data)
        return pointer.active, pointer.previous

    def _discard(self, name: str) -> None:
        """Rename a version out of sight, in one step that lasts, then remove it.

        What is not of this program, in the version or in its place, is set aside before.
        """
        path = self._versions / name
        with disk_errors(f"setting aside what is foreign in {name}", self._versions):
            set_aside(self.data, name)
        if not os.path.lexists(path):
            return
        with self.staging() as staging, disk_errors(f"removing {name}", self._versions):
            path.rename(staging.path / REMOVED)
            flush_folder(self._versions)

    def sweep(self, *, now: float | None = None) -> None:
        """Remove what crashed commands left, as every command that writes does first.

        What a living process works on stays, and so does what is not this program's. A
        pointer that cannot be read, or names what is not there, is dropped, so that an
        install makes a new one. ``now`` is in seconds since the epoch. Raises CorruptStore
        and UnsafeLocation where the data folder or one of its places is not ours.
        """
        if not os.path.isdir(self.data):  # noqa: PTH112  # a sweep does without an answer
            return
        require_ours(self.data)
        now = time.time() if now is None else now
        with suppress(StoreError):
            sweep_staging(self.data, now)
            self._sweep_partials(newest=now - PARTIAL_LIFETIME)
            forget_dead_holders(self.data)
            self._drop_locks()
        with suppress(StoreError), self._pointer_lock(timeout=0) as locked:
            self._mend_pointer()
            older_than = math.inf if locked else now - LONGEST_INSTALL
            self._drop_temporaries((), r"active\.json", older_than)
            for name in self.ids():
                files = r"receipt\.json|fingerprint\.json"
                self._drop_temporaries(("versions", name), files, older_than)

    def _drop_temporaries(self, parts: tuple[str, ...], files: str, older_than: float) -> None:
        with opened(self.data, *parts) as folder:
            if folder is not None:
                folder.drop_temporaries(files, older_than)

    def _mend_pointer(self) -> None:
        pointer = pointer_or_none(self.data)
        for name in (pointer.active, pointer.previous):
            if name and self._is_gone(name):
                pointer = pointer.without(name)
        try:
            mended = read_pointer(self.data) == pointer
        except CorruptStore:
            mended = False
        if not mended:
            write_pointer(self.data, pointer)

    def _is_gone(self, name: str) -> bool:
        """Whether there is surely no such version: a disk that does not answer is no proof."""
        with disk_errors(f"looking for {name}", self._versions):
            try:
                (self._versions / name).lstat()
            except (FileNotFoundError, NotADirectoryError):
                return True
        return False

    def _sweep_partials(self, *, newest: float | None) -> None:
        """Remove downloads that nobody works on; with ``newest`` only those not newer.

        A folder of pip's goes at any age: nothing resumes it.
        """
        with opened(self.data, "partials") as folder, suppress(OSError):
            if folder is None:
                return
            for name in folder.names():
                if PARTIALS.fits(folder, name):
                    old = newest is None or folder.status(name).st_mtime <= newest
                    if old or folder.is_folder(name):
                        self._drop_partial(folder, name)

    def _drop_partial(self, folder: Folder, name: str) -> None:
        """Remove a download, unless another process holds its lock."""
        with suppress(OSError, StoreError), self.lock(name.partition(".")[0], timeout=0):
            (folder.remove_tree if folder.is_folder(name) else folder.unlink)(name)

    def drop_downloads(self, digests: Iterable[str]) -> None:
        """Remove the archives with these digests, which are unpacked, unless somebody uses them."""
        wanted = set(digests)
        with suppress(StoreError, OSError):
            with opened(self.data, "partials") as folder:
                if folder is None:
                    return
                for name in folder.names():
                    if name.partition(".")[0] in wanted and PARTIALS.fits(folder, name):
                        self._drop_partial(folder, name)
            self._drop_locks()

    def _drop_locks(self) -> None:
        """Remove the lock files of versions, downloads and repositories that are gone."""
        drop_locks(self.data, self._is_locked_for)

    def _is_locked_for(self, name: str) -> bool:
        if name == _POINTER_LOCK:
            return True
        repository = name.removeprefix(METADATA_LOCK)
        if repository != name:
            return os.path.lexists(self.data / "metadata" / repository)
        suffixes = ("", ".part", ".part.json", ".index")
        partials = (self.data / "partials" / (name + suffix) for suffix in suffixes)
        return any(map(os.path.lexists, (self._versions / name, *partials)))

    # Underneath

    def adopt(self) -> None:
        """Make the data folder, and mark it as this program's, before the first write.

        Raises CorruptStore and UnsafeLocation where it holds what another program made.
        """
        adopt(self.data)

    def _made(self, folder: Path) -> Path:
        self.adopt()
        with opened(self.data, folder.name):  # says what to do where it is a link
            make_folder(folder)
        check_path(folder)  # what lies in it is unpacked, run or believed next
        return folder

    def _refresh_sharers(self, inodes: Collection[int], digests: Mapping[Stamp, str]) -> None:
        refresh_sharers(self.installed(), inodes, digests)

    def _pointer_lock(self, timeout: float = _POINTER_TIMEOUT) -> AbstractContextManager[bool]:
        return self.lock(_POINTER_LOCK, timeout=timeout)


def _same_tree(one: Receipt, other: Receipt) -> bool:
    return (set(one.files), set(one.links)) == (set(other.files), set(other.links))
