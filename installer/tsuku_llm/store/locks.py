"""Locks between processes: they save work; the store stays correct without them.

Two mechanisms work together. The file lock (flock) comes first: the operating system frees it
when its process dies. Next to it lies a note with the holder's pid. The note separates the
processes of one machine on file systems without locks, or with locks that exclude no process
(some NFS). Processes of several machines are not separated there. That is safe, because every
change of the store is a rename.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from platform import node
from typing import TYPE_CHECKING

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import CorruptStore, LockTimeout, StoreError
from tsuku_llm.ground.files import read_small, set_mode
from tsuku_llm.ground.folders import opened
from tsuku_llm.ground.foreign import kernel_text
from tsuku_llm.ground.ownership import require_trusted_owner
from tsuku_llm.ground.processes.process import Process
from tsuku_llm.store.layout import LASTING_LOCKS, LOCKS, METADATA_LOCK

if TYPE_CHECKING:
    from filelock import BaseFileLock

_LONGEST_NAME = 300
_LOCK_SUFFIX = ".lock"
_HOLDER_SUFFIX = ".pid"
"""That of the note: not the lock file, which Windows locks against reading."""
_NAME_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_PAUSE = 0.05
_MODE = 0o600
"""The mode of lock files: a user who may read one could lock it and make its owner wait."""
_LOOKS = 4
"""How often an unreadable note is read: it is being written, or its writer died before that."""
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, and the name of its machine."""

    process: Process
    host: str

    @property
    def is_here(self) -> bool:
        """True if the machine of the process has this machine's name."""
        return self.host == node()

    @property
    def is_alive(self) -> bool:
        """True if the process surely runs; False for processes of another machine."""
        return self.is_here and self.process.is_alive

    def __str__(self) -> str:
        name = f"process {self.process.pid}"
        return name if self.is_here else f"{name} on {self.host}"


@contextmanager
def exclusive(
    path: Path, *, timeout: float, on_wait: Callable[[Holder | None], None] | None = None
) -> Iterator[bool]:
    """Hold the lock file ``path`` for the block; ``timeout`` in seconds.

    Yields whether the file lock is held: False if the file system has no locks. If the lock is
    busy, calls ``on_wait`` once with the holder, or None if the holder is not known. Raises
    LockTimeout; CorruptStore and UnsafeLocation if the path is not a lock file of ours;
    NotWritable.
    """
    # Look before opening: another user may have put a link or a fifo in the place of the file.
    _require_lock_file(path)
    # One deadline for both mechanisms: the file lock here, the note in ``_name_us``.
    waiting = _Waiting(path, time.monotonic() + timeout, on_wait)
    with disk_errors(f"taking the lock {path.name}", path.parent):
        # From here on, processes that respect flock wait for us.
        lock = _acquire(waiting)
    try:
        # If flock works, a note that is here now is a dead holder's. If not, we wait here.
        named = _name_us(waiting, locked=lock.is_locked)
        try:
            yield lock.is_locked
        finally:
            # Remove the note while we still hold the lock: once it is free, the next holder
            # writes its own note under the same name, and we must not remove that one.
            if named:
                with suppress(OSError):
                    path.with_suffix(_HOLDER_SUFFIX).unlink()
    finally:
        with suppress(OSError):  # the system frees the lock when this process ends
            lock.release()


def holder_of(path: Path) -> Holder | None:
    """Read the note of a lock: its holder, or the one that crashed; None without a note."""
    try:
        # No lock is held here: the note may be half written, or gone at any moment. Both give None.
        note = read_small(path.with_suffix(_HOLDER_SUFFIX), _LONGEST_NAME)
        pid, started, host = (note or b"").decode().split()
        return Holder(Process(int(pid), started), host)
    except (ValueError, StoreError):
        return None


def forget_dead_holders(data: Path) -> None:
    """Remove the notes that dead processes left next to the store's locks."""
    with opened(data, "locks") as folder, suppress(OSError):
        if folder is None:
            return
        for name in folder.names():
            if name.endswith(_HOLDER_SUFFIX) and LOCKS.fits(folder, name):
                lock = (folder.path / name).with_suffix(_LOCK_SUFFIX)
                holder = holder_of(lock)
                if holder is None or (holder.is_here and not holder.is_alive):
                    # A new process may take this lock now and write its note: never remove a
                    # note without the lock. Taking the lock replaces the note of a dead holder
                    # by ours, and releasing it removes ours. If the lock is busy, its holder
                    # takes care of the note.
                    with suppress(StoreError), exclusive(lock, timeout=0):
                        pass


def drop_locks(data: Path) -> None:
    """Remove the lock files of versions, downloads and repositories that no longer exist.

    Two processes never hold one name: a waiting process opens the file again at each try, and
    filelock checks after locking that the file still has its name.
    """
    with opened(data, "locks") as folder, suppress(OSError):
        if folder is None:
            return
        for name in folder.names():
            locked = name.removesuffix(_LOCK_SUFFIX)
            # A first look without the lock, only to save work.
            if locked == name or not LOCKS.fits(folder, name) or _is_needed(data, locked):
                continue
            with suppress(StoreError), exclusive(folder.path / name, timeout=0) as alone:
                # Ask again under the lock: another process may have created what it is for
                # meanwhile. Without working locks (``alone`` is False) the file stays.
                if alone and not _is_needed(data, locked):
                    folder.unlink(name)


def _is_needed(data: Path, name: str) -> bool:
    """Tell whether what a lock of this name is for exists."""
    if name in LASTING_LOCKS:
        return True
    repository = name.removeprefix(METADATA_LOCK)
    if repository != name:
        return os.path.lexists(data / "metadata" / repository)
    suffixes = ("", ".part", ".part.json", ".index")
    partials = (data / "partials" / (name + suffix) for suffix in suffixes)
    return any(map(os.path.lexists, (data / "versions" / name, *partials)))


class _Waiting:
    """One wait for a lock that another process holds, until ``end`` (monotonic clock)."""

    def __init__(
        self, path: Path, end: float, on_wait: Callable[[Holder | None], None] | None
    ) -> None:
        self.path = path
        self._end = end
        self._on_wait = on_wait

    @property
    def left(self) -> float:
        """The seconds that are left to wait, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def tell(self) -> None:
        """Call ``on_wait`` with the holder, once, and only if there is time left to wait."""
        if self._on_wait and self.left:
            self._on_wait(holder_of(self.path))
            self._on_wait = None

    def over(self) -> LockTimeout:
        """Make the error for a wait that reached its end; without a note the holder is unknown."""
        holder = holder_of(self.path)
        if holder is None:
            return LockTimeout(
                "a lock is held by another process",
                facts=(f"lock: {self.path}", "the process left no note: it may not be tsuku-llm"),
                hint=f"see who has it open: fuser -v '{self.path}'",
            )
        hint = "wait for it, then run it again"
        facts = [f"lock: {self.path}", f"held by: {holder}"]
        if holder.is_here:
            pid = holder.process.pid
            hint = f"wait for it, or end it: kill {pid}"
            state: list[str] = []
            if sys.platform == "linux":
                with suppress(OSError):
                    state = kernel_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
            if state[:1] == ["T"]:
                facts.append(f"it is stopped; kill -CONT {pid} lets it continue")
        message = f"another tsuku-llm ({holder}) is still running"
        return LockTimeout(message, facts=tuple(facts), hint=hint)


def _acquire(waiting: _Waiting) -> BaseFileLock:
    from filelock import FileLock, Timeout

    # Without flock, filelock would fall back to marker files. A crashed process leaves its marker
    # behind and locks out all others. Our note counts only while its process lives.
    lock = FileLock(waiting.path, mode=_MODE, thread_local=False, fallback_to_soft=False)
    try:
        try:
            lock.acquire(timeout=0)  # a free lock is taken without a message
        except Timeout:
            waiting.tell()
            lock.acquire(timeout=waiting.left)
    except Timeout as exc:
        raise waiting.over() from exc
    except OSError as exc:
        # Without flock we go on with ``lock.is_locked`` False; the note has to do.
        if exc.errno not in _NO_LOCKS:
            raise
    return lock


def _name_us(waiting: _Waiting, *, locked: bool) -> bool:
    """Write our pid note; wait while another live process on this machine has one.

    ``locked`` tells whether we hold the file lock.

    Returns whether it is written. If it cannot be written, only the file lock protects.
    """
    note = waiting.path.with_suffix(_HOLDER_SUFFIX)
    ourselves = Process.of(os.getpid())
    if ourselves is None:
        return False
    words = f"{ourselves.pid} {ourselves.started} {node()}\n"
    unread = 0
    while True:
        try:
            # O_EXCL: of several processes that try at once, one creates the note.
            if _create(note, words):
                return True
            holder = holder_of(waiting.path)
            # The note exists but cannot be read. Its process may be between creating and writing
            # it: give it a moment before we take it for the leftover of a crash.
            if holder is None and unread < _LOOKS:
                unread += 1
                time.sleep(_PAUSE)
                continue
            # The file lock excludes our own threads too, so this note is from an earlier block,
            # which could not remove it.
            left_by_us = locked and holder == Holder(ourselves, node())
            # Or the writer is dead, or runs on another machine, of which we know nothing: remove
            # the note and try to create ours. Without flock, another process may do the same now,
            # and its new note gets lost. Both then go on: see the module's docstring.
            if holder is None or left_by_us or not holder.is_alive:
                note.unlink(missing_ok=True)
                continue
        except OSError:
            return False
        # A live process of this machine has the note, and the file lock did not stop us: locks
        # do not work on this file system, and the note decides.
        waiting.tell()
        if not waiting.left:
            raise waiting.over()
        time.sleep(_PAUSE)


def _create(path: Path, text: str) -> bool:
    """Create a file; False if it exists already.

    If it cannot be written, for example on a full disk, no file is left. Raises ``OSError``.
    """
    try:
        fd = os.open(path, _NAME_FLAGS, 0o644)
    except FileExistsError:
        return False
    try:
        with open(fd, "w", encoding="utf-8") as file:  # opened with flags
            set_mode(fd, 0o644)  # waiting processes of other users read whom they wait for
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _require_lock_file(path: Path) -> None:
    with disk_errors(f"looking at the lock {path.name}", path.parent):
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
    if not stat.S_ISREG(status.st_mode):
        raise CorruptStore(
            "the lock is not a file",
            facts=(f"path: {path}",),
            hint="move that path away, then run it again",
        )
    require_trusted_owner(path, status)
