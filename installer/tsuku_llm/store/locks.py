"""Locks between processes: they save work, and nothing relies on them to be correct.

The operating system frees the lock of a process that died. Where a file system has no
locks at all, the block runs without one: every change of the store is a rename.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from platform import node
from typing import TYPE_CHECKING

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import read_small, require_trusted_owner
from tsuku_llm.errors import CorruptStore, LockTimeout, StoreError

if TYPE_CHECKING:
    from filelock import BaseFileLock

_LONGEST_NAME = 300
_LOCK_SUFFIX = ".lock"
_HOLDER_SUFFIX = ".pid"
_NAME_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, and the machine that it runs on."""

    pid: int
    host: str

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, as far as its name tells."""
        return self.host == node()

    def __str__(self) -> str:
        return f"process {self.pid}" if self.is_here else f"process {self.pid} on {self.host}"


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
    with disk_errors(f"taking the lock {path.name}", path.parent):
        lock = _acquire(path, timeout, on_wait)
    if lock.is_locked:
        _name_us(_holder_file(path))
    try:
        yield lock.is_locked
    finally:
        _release(lock, path)


def holder_of(path: Path) -> Holder | None:
    """Who holds a lock, or held it when it crashed; None where nobody says so."""
    try:
        pid, host = (read_small(_holder_file(path), _LONGEST_NAME) or b"").decode().split()
        return Holder(int(pid), host)
    except (ValueError, StoreError):
        return None


def forget_dead_holders(folder: Path) -> None:
    """Remove from a folder of locks what processes that are gone wrote about themselves."""
    with suppress(OSError):
        for path in folder.glob(f"*{_HOLDER_SUFFIX}"):
            holder = holder_of(path)
            if holder is None:
                _replace_unreadable(path)
            elif holder.is_here and _is_dead(holder.pid):
                path.unlink(missing_ok=True)


def _replace_unreadable(holder: Path) -> None:
    """A note without its bytes, after a power loss: whoever can take the lock has his own."""
    with suppress(StoreError), exclusive(holder.with_suffix(_LOCK_SUFFIX), timeout=0):
        pass


def _is_dead(pid: int) -> bool:
    if sys.platform == "win32":  # asking there is ending it
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _acquire(
    path: Path, timeout: float, on_wait: Callable[[Holder | None], None] | None
) -> BaseFileLock:
    from filelock import FileLock, Timeout  # noqa: PLC0415

    # No marker files where there is no flock: whoever crashed would lock everybody out.
    lock = FileLock(path, mode=0o644, thread_local=False, fallback_to_soft=False)
    try:
        _try(lock, 0)
    except Timeout:
        if on_wait and timeout > 0:
            on_wait(holder_of(path))
        try:
            _try(lock, timeout)
        except Timeout as exc:
            raise _timed_out(path, holder_of(path)) from exc
    return lock


def _try(lock: BaseFileLock, timeout: float) -> None:
    try:
        lock.acquire(timeout=timeout)
    except OSError as exc:
        if exc.errno not in _NO_LOCKS:
            raise


def _release(lock: BaseFileLock, path: Path) -> None:
    if lock.is_locked:
        with suppress(OSError):
            _holder_file(path).unlink()
        with suppress(OSError):  # it ends with this process at the latest
            lock.release()


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


def _name_us(holder: Path) -> None:
    """Write who holds the lock; it is only for others to read."""
    with suppress(OSError):
        fd = os.open(holder, _NAME_FLAGS, 0o644)
        with open(fd, "w", encoding="utf-8") as file:  # noqa: PTH123  # opened with flags
            file.write(f"{os.getpid()} {node()}\n")


def _holder_file(path: Path) -> Path:
    """Beside the lock: Windows locks the bytes of the file itself against reading."""
    return path.with_suffix(_HOLDER_SUFFIX)


def _timed_out(path: Path, holder: Holder | None) -> LockTimeout:
    who = str(holder) if holder else "another process"
    hint = "wait for it, then run it again"
    facts = [f"lock: {path}", f"held by: {who}"]
    if holder and holder.is_here:
        hint = f"wait for it, or end it: kill {holder.pid}"
        if _is_stopped(holder.pid):
            facts.append(f"it is stopped; kill -CONT {holder.pid} lets it go on")
    return LockTimeout(f"another tsuku-llm ({who}) is still at work", facts=tuple(facts), hint=hint)


def _is_stopped(pid: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == ["T"]
