"""The store: the reading of ``StoreReader``, and everything that changes the versions.

Several processes may change a store at the same time. A lock per version id and one for the
pointer make them wait for each other. Every change is one rename, so a reader without a lock
sees the old state or the new one.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import (
    CorruptStore,
    InUse,
    LockTimeout,
    NoSpace,
    NotInstalled,
    StoreError,
    TsukuError,
)
from tsuku_llm.ground.files import drop_tree, flush_folder, make_folder, replace_file
from tsuku_llm.ground.folders import Folder, opened
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.store.finalize import finalize
from tsuku_llm.store.foreign import set_aside
from tsuku_llm.store.in_use import try_exclusive, users_of
from tsuku_llm.store.layout import (
    LOCK,
    PARTIALS,
    POINTER_LOCK,
    adopt,
    require_ours,
)
from tsuku_llm.store.locks import (
    Holder,
    drop_locks,
    exclusive,
    forget_dead_holders,
)
from tsuku_llm.store.reader import StoreReader
from tsuku_llm.store.records.installed import (
    Installed,
    Pointer,
    pointer_or_none,
    read_pointer,
    write_pointer,
)
from tsuku_llm.store.records.receipt import RECEIPT, Receipt
from tsuku_llm.store.records.updates import JOURNAL, MARKS
from tsuku_llm.store.reuse import (
    find_sources,
    inodes_of,
    refresh_sharers,
)
from tsuku_llm.store.staging import LONGEST_INSTALL, Staging, reserved, staged, sweep_staging

LOCK_TIMEOUT = 1800.0
"""Seconds that a command waits for another one, which may be downloading large archives."""

PARTIAL_LIFETIME = 7 * 24 * 3600.0
"""Seconds after which a download that was not resumed is a leftover."""

_POINTER_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of a prune: the ids removed, and the ids kept because in use."""

    removed: tuple[str, ...]
    in_use: tuple[str, ...]


class Store(StoreReader):
    """The store in the folder ``data``; a folder is created only when something is written.

    ``lock_timeout`` is the time to wait for a lock, in seconds. ``on_wait`` is called once per
    wait, with the holder of the lock (None: not known). Every method raises StoreError or a
    subclass if the file system reports an error.
    """

    def __init__(
        self,
        data: Path,
        *,
        lock_timeout: float = LOCK_TIMEOUT,
        on_wait: Callable[[Holder | None], None] | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(data, note=note)
        self._lock_timeout = lock_timeout
        self._on_wait = on_wait
        self._staging = data / "staging"
        self._adopted = False

    # Putting together

    @property
    def partials(self) -> Path:
        """The folder of unfinished downloads, created if missing."""
        return self._made(self.data / "partials")

    def lock(self, name: str, *, timeout: float | None = None) -> AbstractContextManager[bool]:
        """Lock ``name`` (a version's id, a digest) against other processes for the block.

        ``timeout`` is in seconds; None means the store's default. Raises LockTimeout, which
        names the process and the path, and ValueError for a name of none of the known kinds:
        ``list`` would call its file foreign, and nothing would remove it.
        """
        if not re.fullmatch(LOCK, name):
            raise ValueError(f"{name!r} cannot name a lock")
        folder = self._made(self.data / "locks")
        timeout = self._lock_timeout if timeout is None else timeout
        return exclusive(folder / f"{name}.lock", timeout=timeout, on_wait=self._on_wait)

    @contextmanager
    def lock_place(self, place: Path) -> Iterator[None]:
        """Lock a file that the user named against all processes that write it, of any store.

        The lock file is hidden beside it, and gone after the block. The rest is as for ``lock``.
        """
        lock = place.with_name(f".{place.name}.lock")
        with exclusive(lock, timeout=self._lock_timeout, on_wait=self._on_wait) as alone:
            try:
                yield
            finally:
                # While we hold it: a process that waits opens the name again, as in ``drop_locks``.
                if alone:
                    with suppress(OSError):
                        lock.unlink()

    def staging(self) -> AbstractContextManager[Staging]:
        """Make a folder to extract into, removed at the end of the block unless committed."""
        return staged(self._made(self._staging))

    def commit(self, staging: Staging, receipt: Receipt) -> Installed:
        """Make a staged tree a version: it appears complete under its name, or not at all.

        If the same files are installed and intact, they stay and only the receipt is replaced.
        Raises TamperedInstall unless the tree holds exactly what the receipt lists.
        """
        # The caller holds the version's lock, so no other process commits or removes it meanwhile.
        installed = self._intact(receipt)
        if installed:
            installed = self.restate(installed, receipt)
        else:
            # Everything is on the disk before the rename: after a crash, a version that has its
            # name is complete.
            others = self.installed()
            # What it links is hashed, and a copy of a damaged one put back.
            sources = find_sources(receipt.files, others, damaged=True)
            digests = finalize(staging, receipt, sources)
            installed = self._publish(staging, receipt)
            # The new links changed the change time of the sources' files: store new stamps for the
            # sources' versions, which would otherwise hash them at their next start.
            if digests:
                refresh_sharers(others, {stamp[-1] for stamp in digests}, digests)
        # Only now is the rename durable. The caller activates the version afterwards, so the
        # pointer never names a version that a crash can still undo.
        with disk_errors("flushing the folder of versions", self._versions):
            flush_folder(self._versions)
        return installed

    def _intact(self, receipt: Receipt) -> Installed | None:
        with suppress(TsukuError):
            installed = self.find(receipt.id)
            wanted = {*receipt.files, *receipt.links}
            if installed and wanted == {*installed.receipt.files, *installed.receipt.links}:
                self.admit(installed, full=True)
                return installed
        return None

    def restate(self, installed: Installed, receipt: Receipt) -> Installed:
        """Keep the tree and replace its receipt: another request, device or repository.

        The receipt stays if only ``installed_at`` differs.
        """
        if installed.receipt == receipt._replace(installed_at=installed.receipt.installed_at):
            return installed
        with disk_errors("replacing the receipt", installed.path):
            replace_file(installed.path / RECEIPT, receipt.to_json())
        return Installed(installed.id, installed.path, receipt)

    def _publish(self, staging: Staging, receipt: Receipt) -> Installed:
        """Rename it into place, unless another process that ignored our lock was first."""
        target = self._made(self._versions) / receipt.id
        with disk_errors(f"renaming {receipt.id} into its place", self._versions):
            # A damaged version, or a foreign folder of this name: move it out of the way.
            if os.path.lexists(target) and not self._intact(receipt):
                self._discard(receipt.id)
            try:
                # The commit: one rename within the same file system.
                staging.path.rename(target)
            except OSError:
                # A rename onto a folder that is not empty fails. Locks may not work here, so
                # another process may have published the same version meanwhile: use that one if it
                # is intact.
                first = self._intact(receipt)
                if first is None:
                    raise
                return first
        return Installed(receipt.id, target, receipt)

    # Which one is used

    def activate(self, installed: Installed) -> None:
        """Make a version the active one; the former one becomes the previous one.

        Raises NotInstalled if the version was removed meanwhile.
        """
        with self.lock(POINTER_LOCK, timeout=_POINTER_TIMEOUT):
            # Processes change the pointer only under this lock, so no change is lost between our
            # read and our write. The caller also holds the version's lock, so neither ``remove``
            # nor ``prune`` removes the version meanwhile.
            if self.find(installed.id) is None:
                raise NotInstalled(f"{installed.id} no longer exists")
            write_pointer(self.data, pointer_or_none(self.data).moved_to(installed.id))

    def use(self, installed: Installed) -> None:
        """Activate a version that is installed already, if it is intact.

        Raises NotInstalled if it was removed meanwhile, TamperedInstall.
        """
        with self.lock(installed.id):
            self.admit(installed)
            self.activate(installed)

    def rollback(self) -> Installed:
        """Go back to the previous version; run it again to return.

        Raises NotInstalled if there is none, TamperedInstall if it is not intact.
        """
        previous = self.previous()
        if previous is None:
            raise NotInstalled(
                "there is no earlier version to go back to", hint=f"{TSUKU} list shows all"
            )
        self.use(previous)
        return previous

    # Removing

    def remove(self, version: str, *, dry_run: bool = False) -> None:
        """Remove a version by its id, damaged or not; foreign files in it are set aside.

        If it is the active one, no version is active afterwards. Raises InUse while a server
        runs from it, NotInstalled if there is no such version. ``dry_run`` only raises.
        """
        path = self._versions / version
        # The lock keeps out commands that install or activate this version. ``try_exclusive`` keeps
        # out servers: none runs from it now, and none can start from it until we are done.
        with self.lock(version), try_exclusive(path) as unused:
            if not os.path.lexists(path):
                raise NotInstalled(f"{version} no longer exists")
            if not unused:
                raise InUse(
                    f"a running server uses {version}", facts=users_of(path), hint="stop it first"
                )
            if dry_run:
                return
            # Read the inodes while the version still has its fingerprint: removing its links
            # changes the change time of the files that other versions share.
            inodes = inodes_of(path)
            try:
                # The pointer first: after a crash at this point the version is installed and not
                # active. The other way round, the pointer would name a version that is gone.
                self._forget(version)
                self._discard(version)
            except NoSpace:
                # On a full disk only the removal makes room for the pointer. After a crash at this
                # point, the next sweep mends the pointer.
                self._discard(version)
                self._forget(version)
            refresh_sharers(self.installed(), inodes, {})
        drop_locks(self.data)

    def _forget(self, version: str) -> None:
        """Drop a version from the pointer; the caller holds the version's lock."""
        with self.lock(POINTER_LOCK, timeout=_POINTER_TIMEOUT):
            pointer = pointer_or_none(self.data)
            if pointer != pointer.without(version):
                write_pointer(self.data, pointer.without(version))

    def prune(self, keep: Collection[str] = (), *, dry_run: bool = False) -> Pruned:
        """Remove all versions except the active one, the previous one and ``keep`` (ids).

        Versions that a running server uses or another process installs stay. If no version is
        active, every readable version stays: the user may want one of them. Unfinished
        downloads that no process works on are removed too. ``dry_run`` removes nothing.
        """
        if read_pointer(self.data).active is None:
            keep = {*keep, *(version.id for version in self.installed())}
        removed: list[str] = []
        in_use: list[str] = []
        inodes: set[int] = set()
        try:
            for name in self.ids():
                if name not in (*read_pointer(self.data), *keep):
                    goes = self._prune_one(name, inodes, dry_run=dry_run)
                    (removed if goes else in_use).append(name)
        finally:  # one pass at the end: a pass per removed version takes quadratic time
            refresh_sharers(self.installed(), inodes, {})
        if not dry_run:
            self._sweep_partials(newest=None)
        drop_locks(self.data)
        return Pruned(tuple(removed), tuple(in_use))

    def _prune_one(self, name: str, inodes: set[int], *, dry_run: bool = False) -> bool:
        path = self._versions / name
        # A prune never waits: a version whose lock is busy is being installed or activated.
        with suppress(LockTimeout), self.lock(name, timeout=0), try_exclusive(path) as unused:
            # The pointer may have changed since ``prune`` looked. Under the version's lock no
            # process activates it, so what is not in use now stays unused until we are done.
            removable = unused and name not in read_pointer(self.data)
            if removable and not dry_run:
                inodes |= inodes_of(path)
                self._discard(name)
            return removable
        return False

    def _discard(self, name: str) -> None:
        """Rename a version into staging, durably, then remove it there.

        Foreign files, in the version or in its place, are set aside before.
        """
        path = self._versions / name
        with disk_errors(f"moving foreign files out of {name}", self._versions):
            set_aside(self.data, name)
        if not os.path.lexists(path):
            return
        staging = self._made(self._staging)
        with reserved(staging) as away, disk_errors(f"removing {name}", self._versions):
            # One rename takes the whole version away; the end of the block removes its files. After
            # a crash in between, a sweep removes the rest, and no half-removed version has its
            # name.
            try:
                path.rename(away)
            except OSError as error:
                # overlayfs renames no folder of a lower layer, such as a container's image (the
                # kernel's documentation of it). The receipt goes first: what a crash leaves is then
                # no version.
                if error.errno != errno.EXDEV:
                    raise
                (path / RECEIPT).unlink(missing_ok=True)
                drop_tree(path)
            flush_folder(self._versions)

    def sweep(self) -> None:
        """Remove what crashed commands left; every command that writes does this first.

        Files of living processes stay, and so do foreign files. A pointer that cannot be read
        is replaced by an empty one; names of missing versions are dropped from it. Raises
        CorruptStore and UnsafeLocation if the data folder or one of its places is not ours.
        """
        if not os.path.isdir(self.data):  # an error means: nothing to sweep
            return
        require_ours(self.data)
        now = time.time()
        with suppress(StoreError):
            # Live processes hold locks on their staging folders, downloads and notes. Each of these
            # steps removes only files whose lock it gets at once.
            sweep_staging(self.data, now)
            self._sweep_partials(newest=now - PARTIAL_LIFETIME)
            forget_dead_holders(self.data)
            drop_locks(self.data)
        # Do not wait: if another process has the pointer's lock, it is at work on these files, and
        # the next sweep does this part.
        with suppress(StoreError), self.lock(POINTER_LOCK, timeout=0) as locked:
            self._mend_pointer()
            # Under a working lock no process is replacing the pointer: its temporaries are
            # leftovers. Without locks, only age proves that.
            older_than = math.inf if locked else now - LONGEST_INSTALL
            self._drop_temporaries((), r"active\.json", older_than)
            # These are written without the pointer's lock.
            of_updates = rf"{re.escape(JOURNAL)}|{re.escape(MARKS)}"
            self._drop_temporaries((), of_updates, now - LONGEST_INSTALL)
            for name in self.ids():
                # Another process may be replacing these: receipts under the version's lock, stamps
                # without a lock. If its temporary goes, it keeps the old file and fails, or hashes
                # again later.
                files = r"receipt\.json|fingerprint\.json"
                self._drop_temporaries(("versions", name), files, older_than)

    def drop_journal_temporaries(self) -> None:
        """Remove what a killed update left of its journal; hold a working ``UNATTENDED_LOCK``."""
        with suppress(StoreError):
            self._drop_temporaries((), re.escape(JOURNAL), math.inf)

    def _drop_temporaries(self, parts: tuple[str, ...], files: str, older_than: float) -> None:
        with opened(self.data, *parts) as folder:
            if folder is not None:
                folder.drop_temporaries(files, older_than)

    def _mend_pointer(self) -> None:
        found: Pointer | None = None
        with suppress(CorruptStore):
            found = read_pointer(self.data)
        pointer = found or Pointer()
        for name in pointer:
            if name is None:
                continue
            # Other errors of the look-up prove nothing, so they end the sweep.
            with disk_errors(f"looking for {name}", self._versions):
                try:
                    (self._versions / name).lstat()
                except (FileNotFoundError, NotADirectoryError):
                    pointer = pointer.without(name)
        if pointer != found:
            write_pointer(self.data, pointer)

    def _sweep_partials(self, *, newest: float | None) -> None:
        """Remove downloads that no process works on; with ``newest``, keep newer ones.

        ``newest`` is in seconds since the epoch. A folder of pip is removed at any age, because
        nothing resumes it.
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
        """Remove a download, unless another process holds its lock or it cannot be removed."""
        # A download holds the lock of its digest all the time.
        with suppress(OSError, StoreError), self.lock(name.partition(".")[0], timeout=0):
            (folder.remove_tree if folder.is_folder(name) else folder.unlink)(name)

    def drop_downloads(self, digests: Iterable[str]) -> None:
        """Remove the archives with these digests, already extracted, unless a process uses them."""
        wanted = set(digests)
        with suppress(StoreError, OSError):
            with opened(self.data, "partials") as folder:
                if folder is None:
                    return
                for name in folder.names():
                    if name.partition(".")[0] in wanted and PARTIALS.fits(folder, name):
                        self._drop_partial(folder, name)
            drop_locks(self.data)

    # Underneath

    def adopt(self) -> None:
        """Create the data folder and mark it as this program's, before the first write.

        Raises CorruptStore and UnsafeLocation if it holds another program's files.
        """
        if not self._adopted:
            adopt(self.data)
            self._adopted = True

    def _made(self, folder: Path) -> Path:
        self.adopt()
        with opened(self.data, folder.name):  # refuses a link, with a hint
            make_folder(folder)
        check_path(folder)  # its files are extracted, run or believed next
        return folder
