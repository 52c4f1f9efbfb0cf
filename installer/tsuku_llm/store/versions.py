"""The store: versions that are complete or not there, and a pointer to the one in use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.errors import (
    CorruptStore,
    LockTimeout,
    NoSpace,
    NotInstalled,
    StoreError,
    TsukuError,
)
from tsuku_llm.store import holds
from tsuku_llm.store.durable import (
    TEMPORARY_SUFFIX,
    flush_folder,
    make_folder,
    read_small,
    wrapped,
)
from tsuku_llm.store.integrity import TREE, Stamp, check_version, read_stamps
from tsuku_llm.store.locks import exclusive
from tsuku_llm.store.pointer import Pointer, read_pointer, write_pointer
from tsuku_llm.store.receipt import RECEIPT, Receipt, is_version_id
from tsuku_llm.store.sealing import seal
from tsuku_llm.store.sharing import Content
from tsuku_llm.store.staging import Staging, staged, sweep_staging

LOCK_TIMEOUT = 1800.0
PARTIAL_LIFETIME = 7 * 24 * 3600.0
"""Seconds after which a download that nobody resumed is a leftover."""

_RECEIPT_LIMIT = 16 << 20
_POINTER_TIMEOUT = 30.0
_POINTER_LOCK = "active"


@dataclass(frozen=True, slots=True)
class Installed:
    """One version in the store: its folder and its receipt."""

    id: str
    path: Path
    receipt: Receipt

    @property
    def tree(self) -> Path:
        """The folder with the build itself."""
        return self.path / TREE


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune removed, and what it left because something uses it; ids."""

    removed: tuple[str, ...]
    in_use: tuple[str, ...]


class Store:
    """The folder ``data`` and what is in it; nothing is created before something is written.

    Every method raises StoreError or one of its kinds when the disk does not play along.
    """

    def __init__(self, data: Path) -> None:
        self.data = data
        self._versions = data / "versions"
        self._staging = data / "staging"
        self._partials = data / "partials"

    @property
    def partials(self) -> Path:
        """The folder of unfinished downloads, made if need be."""
        return self._made(self._partials)

    def _made(self, folder: Path) -> Path:
        make_folder(self.data)
        make_folder(folder)
        return folder

    def lock(
        self,
        name: str,
        *,
        timeout: float = LOCK_TIMEOUT,
        on_wait: Callable[[int | None], None] | None = None,
    ) -> AbstractContextManager[None]:
        """Keep other processes out of ``name`` (a version's id, a digest) for a block.

        ``on_wait`` is told the holder's process id once if there is one; ``timeout`` is in
        seconds. Raises LockTimeout, which names the process and the path.
        """
        if not is_version_id(name):
            raise ValueError(f"{name!r} cannot name a lock")
        folder = self._made(self.data / "locks")
        return exclusive(folder / f"{name}.lock", timeout=timeout, on_wait=on_wait)

    def staging(self) -> AbstractContextManager[Staging]:
        """A folder to unpack into, removed at the end of the block unless committed."""
        return staged(self._made(self._staging))

    def require_space(self, needed: int) -> None:
        """Refuse to begin what cannot end: ``needed`` bytes more. Raises NoSpace."""
        from shutil import disk_usage  # noqa: PLC0415

        existing = next(path for path in (self.data, *self.data.parents) if path.exists())
        with wrapped("ask for the free space", existing):
            free = disk_usage(existing).free
        if free < needed:
            raise NoSpace(
                f"{_megabytes(needed)} are needed and {_megabytes(free)} are free",
                facts=(f"folder: {self.data}",),
                hint="free some space, or set TSUKU_HOME to a folder on a larger disk",
            )

    def installed(self) -> tuple[Installed, ...]:
        """Every version with a readable receipt, by id; the others are no versions."""
        found = []
        for name in self._names():
            with suppress(CorruptStore):
                version = self.find(name)
                if version:
                    found.append(version)
        return tuple(found)

    def find(self, version: str) -> Installed | None:
        """A version by its id. Raises CorruptStore where its receipt is not readable."""
        if not is_version_id(version):
            return None
        path = self._versions / version
        content = read_small(path / RECEIPT, _RECEIPT_LIMIT)
        if content is None:
            return None
        receipt = Receipt.from_json(content)
        if receipt.id != version or path.is_symlink():
            raise CorruptStore(
                f"{version} has the receipt of {receipt.id}",
                facts=(f"path: {path}",),
                hint="tsuku-llm install --force writes it anew",
            )
        return Installed(version, path, receipt)

    def active(self) -> Installed | None:
        """The version in use; None where there is none.

        Raises CorruptStore where the pointer or the version it names cannot be read.
        """
        version = read_pointer(self.data).active
        if version is None:
            return None
        return self.find(version) or self._dangling(version)

    def previous(self) -> Installed | None:
        """The version that ``rollback`` would go back to; None where there is none."""
        version = read_pointer(self.data).previous
        return self.find(version) if version else None

    def _dangling(self, version: str) -> Installed:
        raise CorruptStore(
            f"the active version {version} is not there",
            facts=(f"path: {self._versions / version}",),
            hint="tsuku-llm install writes it anew; tsuku-llm rollback goes to the one before",
        )

    def commit(self, staging: Staging, receipt: Receipt) -> Installed:
        """Make a staged tree a version: complete under its name, or not there at all.

        Where the same version is installed and intact, that one is returned; a damaged one
        is replaced. The tree must hold exactly what the receipt lists: else TamperedInstall.
        """
        installed = self._intact(receipt.id)
        if installed is None:
            digests = seal(staging, receipt, self._donors(receipt))
            installed = self._publish(staging, receipt)
            inodes = {stamp[-1] for stamp in digests}
            self._refresh_sharers(receipt.id, inodes, digests)
        with wrapped("flush the folder of versions", self._versions):
            flush_folder(self._versions)
        return installed

    def _intact(self, version: str) -> Installed | None:
        with suppress(TsukuError):
            installed = self.find(version)
            if installed:
                self.check(installed, full=True)
                return installed
        return None

    def _donors(self, receipt: Receipt) -> dict[Content, Path]:
        """For the receipt's files, where another version has the same."""
        wanted = {(file.sha256, file.executable) for file in receipt.files if file.size}
        return {
            (file.sha256, file.executable): other.tree / file.path
            for other in self.installed()
            for file in other.receipt.files
            if (file.sha256, file.executable) in wanted
        }

    def _publish(self, staging: Staging, receipt: Receipt) -> Installed:
        target = self._versions / receipt.id
        self._made(self._versions)
        with wrapped(f"put {receipt.id} in its place", target):
            if os.path.lexists(target):  # damaged, or it would have been taken as it is
                self._discard(target)
            try:
                staging.path.rename(target)
            except OSError:
                first = self._intact(receipt.id)  # somebody without our lock
                if first is None:
                    raise
                return first
        return Installed(receipt.id, target, receipt)

    def check(self, installed: Installed, *, full: bool = False) -> None:
        """Refuse a tree that is not what its receipt says; ``full`` hashes every file.

        Raises TamperedInstall with every name that differs.
        """
        check_version(installed.path, installed.receipt, full=full)

    def activate(self, installed: Installed) -> None:
        """Make a version the one in use; the one before it is remembered."""
        with self._pointer_lock():
            write_pointer(self.data, self._pointer_or_none().moved_to(installed.id))

    def rollback(self) -> Installed:
        """Go back to the version before this one, which ``rollback`` then goes back to.

        Raises NotInstalled where there is none, TamperedInstall where it is not intact.
        """
        previous = self.previous()
        if previous is None:
            raise NotInstalled(
                "there is no earlier version to go back to", hint="tsuku-llm list shows all"
            )
        self.check(previous)
        self.activate(previous)
        return previous

    def hold(self, installed: Installed) -> AbstractContextManager[int | None]:
        """Keep a version from being removed for the block.

        A child that is given the descriptor (None on Windows) holds it as well, for as long
        as it lives. Raises NotInstalled when the version is being removed.
        """
        return holds.holding(installed.path)

    def remove(self, installed: Installed) -> None:
        """Remove a version; if it is the active one, nothing is active any more.

        Raises StoreError while a server runs from it.
        """
        with self.lock(installed.id), holds.alone_with(installed.path) as unused:
            if not unused:
                raise StoreError(
                    f"a running server uses {installed.id}",
                    hint="stop it first (tsuku-llm stop)",
                )
            with self._pointer_lock():
                pointer = self._pointer_or_none()
                if pointer != pointer.without(installed.id):
                    write_pointer(self.data, pointer.without(installed.id))
            self._take_away(installed.path)

    def prune(self, keep: Collection[str] = ()) -> Pruned:
        """Remove what is neither active nor the one to roll back to, nor in ``keep`` (ids).

        What a running server uses or another process is installing stays. Unfinished
        downloads that nobody works on go as well.
        """
        pointer = read_pointer(self.data)
        removed: list[str] = []
        in_use: list[str] = []
        for name in self._names():
            if name in (pointer.active, pointer.previous, *keep):
                continue
            (removed if self._prune_one(name) else in_use).append(name)
        self._sweep_partials(older_than=0.0)
        return Pruned(tuple(removed), tuple(in_use))

    def _prune_one(self, name: str) -> bool:
        path = self._versions / name
        with suppress(LockTimeout), self.lock(name, timeout=0), holds.alone_with(path) as unused:
            if unused:
                self._take_away(path)
            return unused
        return False

    def _take_away(self, path: Path) -> None:
        """Remove a version; the others that shared files with it get fresh fingerprints."""
        inodes = {stamp[-1] for stamp in read_stamps(path).values()}
        self._discard(path)
        with wrapped("flush the folder of versions", self._versions):
            flush_folder(self._versions)
        self._refresh_sharers(path.name, inodes, {})

    def _discard(self, path: Path) -> None:
        """Out of sight in one step, then removed."""
        with self.staging() as staging, wrapped(f"remove {path.name}", path):
            path.rename(staging.path / "removed")

    def _refresh_sharers(
        self, version: str, inodes: AbstractSet[int], digests: Mapping[Stamp, str]
    ) -> None:
        """Making or removing a hard link changes the change time of every other name.

        A version that is found damaged is reported when it is used, not here.
        """
        for other in self.installed():
            shared = inodes & {stamp[-1] for stamp in read_stamps(other.path).values()}
            if other.id != version and shared:
                with suppress(TsukuError):
                    check_version(other.path, other.receipt, known=digests)

    def sweep(self, *, now: float | None = None) -> None:
        """Remove what crashed commands left, as every command that writes does first.

        What a living process works on stays. A pointer that cannot be read is dropped, so
        that an install makes a new one. ``now`` is seconds since the epoch.
        """
        if not self.data.is_dir():
            return
        sweep_staging(self._staging)
        self._sweep_partials(PARTIAL_LIFETIME, time.time() if now is None else now)
        with suppress(StoreError), self._pointer_lock(timeout=0):
            self._mend_pointer()
            for temporary in self._temporaries():
                with suppress(OSError):
                    temporary.unlink()

    def _mend_pointer(self) -> None:
        pointer = self._pointer_or_none()
        for name in (pointer.active, pointer.previous):
            if name and not os.path.lexists(self._versions / name):
                pointer = pointer.without(name)
        try:
            stale = read_pointer(self.data) != pointer
        except CorruptStore:
            stale = True
        if stale:
            write_pointer(self.data, pointer)

    def _temporaries(self) -> list[Path]:
        pattern = f".*{TEMPORARY_SUFFIX}"
        return [*self.data.glob(pattern), *self._versions.glob(f"*/{pattern}")]

    def _sweep_partials(self, older_than: float, now: float = 0.0) -> None:
        with suppress(OSError):
            for path in self._partials.iterdir():
                if older_than == 0.0 or now - path.lstat().st_mtime > older_than:
                    self._drop_partial(path)

    def _drop_partial(self, path: Path) -> None:
        with suppress(OSError, StoreError), self.lock(path.name.partition(".")[0], timeout=0):
            path.unlink()

    def _pointer_lock(self, timeout: float = _POINTER_TIMEOUT) -> AbstractContextManager[None]:
        return self.lock(_POINTER_LOCK, timeout=timeout)

    def _pointer_or_none(self) -> Pointer:
        """The pointer, or an empty one in the place of one that cannot be read."""
        try:
            return read_pointer(self.data)
        except CorruptStore:
            return Pointer()

    def _names(self) -> list[str]:
        with wrapped("list the installed versions", self._versions):
            try:
                names = [path.name for path in self._versions.iterdir()]
            except FileNotFoundError:
                names = []
        return sorted(filter(is_version_id, names))


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
