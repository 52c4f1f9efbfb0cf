"""Locks between processes: they save work, and nothing relies on them to be correct.

The operating system frees the lock of a process that died. Beside it lies a note of who
holds it, which keeps the processes of one machine apart where a file system has no locks, or
has some that exclude nobody (NFS); those of several machines are not, and every change of the
store is a rename.
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

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import open_to_read, read_small, set_mode
from tsuku_llm.errors import CorruptStore, LockTimeout, StoreError
from tsuku_llm.folders import opened
from tsuku_llm.ownership import require_trusted_owner
from tsuku_llm.process import Process
from tsuku_llm.store.layout import LOCKS

if TYPE_CHECKING:
    from filelock import BaseFileLock

_LONGEST_NAME = 300
_LOCK_SUFFIX = ".lock"
_HOLDER_SUFFIX = ".pid"
_NAME_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_PAUSE = 0.05
_MODE = 0o600
"""Of lock files: whoever can read one can hold it, and keep its owner waiting."""
_LOOKS = 4
"""At a note that nobody can read: it is being written, or was not when its writer died."""
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, and the machine that it runs on."""

    process: Process
    host: str

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, as far as its name tells."""
        return self.host == node()

    @property
    def is_alive(self) -> bool:
        """Whether it surely is at work: of another machine's processes nothing is known."""
        return self.is_here and self.process.is_alive

    def __str__(self) -> str:
        name = f"process {self.process.pid}"
        return name if self.is_here else f"{name} on {self.host}"


@contextmanager
def exclusive(
    path: Path, *, timeout: float, on_wait: Callable[[Holder | None], None] | None = None
) -> Iterator[bool]:
    """Hold the lock file ``path`` for the block; ``timeout`` in seconds.

    Gives whether it is held: False where the file system has no locks. ``on_wait`` is told
    once, with the holder where it is known, that the lock is busy. Raises
    LockTimeout; CorruptStore and UnsafeLocation where the path is not a lock file of ours;
    NotWritable.
    """
    _require_lock_file(path)
    waiting = _Waiting(path, time.monotonic() + timeout, on_wait)
    with disk_errors(f"taking the lock {path.name}", path.parent):
        lock = _acquire(waiting)
    try:
        named = _name_us(waiting)
        try:
            yield lock.is_locked
        finally:
            if named:  # before the lock: the note is the next holder's as soon as that is free
                with suppress(OSError):
                    _holder_file(path).unlink()
    finally:
        with suppress(OSError):  # it ends with this process at the latest
            lock.release()


def holder_of(path: Path) -> Holder | None:
    """Who holds a lock, or held it when it crashed; None where nobody says so."""
    try:
        words = (read_small(_holder_file(path), _LONGEST_NAME) or b"").decode().split()
        pid, started, host = words
        return Holder(Process(int(pid), started), host)
    except (ValueError, StoreError):
        return None


def forget_dead_holders(data: Path) -> None:
    """Remove what processes that are gone wrote about themselves beside the store's locks."""
    with opened(data, "locks") as folder, suppress(OSError):
        if folder is None:
            return
        for name in folder.names():
            if name.endswith(_HOLDER_SUFFIX) and LOCKS.fits(folder, name):
                lock = (folder.path / name).with_suffix(_LOCK_SUFFIX)
                holder = holder_of(lock)
                if holder is None or (holder.is_here and not holder.is_alive):
                    # Taking the lock puts our own note in its place, and removes it.
                    with suppress(StoreError), exclusive(lock, timeout=0):
                        pass


def drop_locks(data: Path, is_needed: Callable[[str], bool]) -> None:
    """Remove the lock files of names that are gone; ``is_needed`` is asked under the lock.

    A process that waits opens the file anew at each try, and one that locked a removed file
    sees that it has no name any more (filelock looks), so two never hold one name.
    """
    with opened(data, "locks") as folder, suppress(OSError):
        if folder is None:
            return
        for name in folder.names():
            locked = name.removesuffix(_LOCK_SUFFIX)
            if locked == name or not LOCKS.fits(folder, name) or is_needed(locked):
                continue
            with suppress(StoreError), exclusive(folder.path / name, timeout=0) as alone:
                if alone and not is_needed(locked):
                    folder.unlink(name)


class _Waiting:
    """For a lock that another process holds: until ``end``, on the monotonic clock."""

    def __init__(
        self, path: Path, end: float, on_wait: Callable[[Holder | None], None] | None
    ) -> None:
        self.path = path
        self._end = end
        self._on_wait = on_wait

    @property
    def left(self) -> float:
        """Seconds."""
        return max(0.0, self._end - time.monotonic())

    def tell(self) -> None:
        """Say once for whom, if there is time to wait at all."""
        if self._on_wait and self.left:
            self._on_wait(holder_of(self.path))
            self._on_wait = None

    def over(self) -> LockTimeout:
        """The error for a wait that came to nothing."""
        return _timed_out(self.path, holder_of(self.path))


def _acquire(waiting: _Waiting) -> BaseFileLock:
    from filelock import FileLock, Timeout  # noqa: PLC0415

    # No marker files of filelock's where there is no flock: whoever crashed would lock everybody
    # out. The note of the holder counts only as long as he lives.
    lock = FileLock(waiting.path, mode=_MODE, thread_local=False, fallback_to_soft=False)
    try:
        _try(lock, 0)
    except Timeout:
        waiting.tell()
        try:
            _try(lock, waiting.left)
        except Timeout as exc:
            raise waiting.over() from exc
    return lock


def _try(lock: BaseFileLock, timeout: float) -> None:
    try:
        lock.acquire(timeout=timeout)
    except OSError as exc:
        if exc.errno not in _NO_LOCKS:
            raise


def _name_us(waiting: _Waiting) -> bool:
    """Write who holds the lock, once nobody else who lives on this machine says that he does.

    Gives whether it is written. Where it cannot be, the lock is all there is.
    """
    note = _holder_file(waiting.path)
    ourselves = Process.of(os.getpid())
    if ourselves is None:
        return False
    words = f"{ourselves.pid} {ourselves.started} {node()}\n"
    unread = 0
    while True:
        try:
            if _create(note, words):
                return True
            holder = holder_of(waiting.path)
            if holder is None and unread < _LOOKS:
                unread += 1
                time.sleep(_PAUSE)
                continue
            if holder is None or not holder.is_alive:
                note.unlink(missing_ok=True)
                continue
        except OSError:
            return False
        waiting.tell()
        if not waiting.left:
            raise waiting.over()
        time.sleep(_PAUSE)


def _create(path: Path, text: str) -> bool:
    """Make a file that is not there; False where it is, and none where the disk is full."""
    try:
        fd = os.open(path, _NAME_FLAGS, 0o644)
    except FileExistsError:
        return False
    try:
        with open(fd, "w", encoding="utf-8") as file:  # noqa: PTH123  # opened with flags
            set_mode(fd, 0o644)  # other users who wait read whom they wait for
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
            hint="remove that path, then run it again",
        )
    require_trusted_owner(path, status)
    if sys.platform != "win32" and status.st_uid == os.geteuid() and status.st_mode & 0o077:
        # The version before this one made them 0644.
        with suppress(OSError):
            fd = open_to_read(path)
            try:
                os.fchmod(fd, _MODE)
            finally:
                os.close(fd)


def _holder_file(path: Path) -> Path:
    """Beside the lock: Windows locks the bytes of the file itself against reading."""
    return path.with_suffix(_HOLDER_SUFFIX)


def _timed_out(path: Path, holder: Holder | None) -> LockTimeout:
    """Word the end of a wait; without a note it is not known what the holder is."""
    if holder is None:
        return LockTimeout(
            "a lock is held by another process",
            facts=(f"lock: {path}", "the process left no note: it may be no tsuku-llm"),
            hint=f"see who has it open: fuser -v '{path}'",
        )
    hint = "wait for it, then run it again"
    facts = [f"lock: {path}", f"held by: {holder}"]
    if holder.is_here:
        pid = holder.process.pid
        hint = f"wait for it, or end it: kill {pid}"
        if _is_stopped(pid):
            facts.append(f"it is stopped; kill -CONT {pid} lets it go on")
    message = f"another tsuku-llm ({holder}) is still at work"
    return LockTimeout(message, facts=tuple(facts), hint=hint)


def _is_stopped(pid: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == ["T"]
