"""Locks between processes: they save work, and nothing relies on them to be correct.

The operating system frees the lock of a process that died. Where a file system has no
locks at all, the block runs without one: every change of the store is a rename.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm.disk import disk_errors
from tsuku_llm.errors import CorruptStore, LockTimeout, StoreError
from tsuku_llm.store.durable import read_small, require_trusted_owner

if TYPE_CHECKING:
    from filelock import BaseFileLock

_NAME_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextmanager
def exclusive(
    path: Path, *, timeout: float, on_wait: Callable[[int | None], None] | None = None
) -> Iterator[None]:
    """Hold the lock file ``path`` for the block; ``timeout`` in seconds.

    ``on_wait`` is told once, with the holder's process id where it is known, that the lock
    is busy. Raises LockTimeout; CorruptStore and UnsafeLocation where the path is not a
    lock file of ours; NotWritable.
    """
    _require_lock_file(path)
    with disk_errors(f"taking the lock {path.name}", path.parent):
        lock = _acquire(path, timeout, on_wait)
    holder = _holder_file(path)
    _name_us(holder)
    try:
        yield
    finally:
        with suppress(OSError):
            holder.unlink()
        with suppress(OSError):  # it ends with this process at the latest
            lock.release()


def _acquire(
    path: Path, timeout: float, on_wait: Callable[[int | None], None] | None
) -> BaseFileLock:
    from filelock import FileLock, Timeout  # noqa: PLC0415

    lock = FileLock(path, mode=0o644, thread_local=False)
    try:
        _try(lock, 0)
    except Timeout:
        pid = _holder(path)
        if on_wait and timeout > 0:
            on_wait(pid)
        try:
            _try(lock, timeout)
        except Timeout as exc:
            raise _timed_out(path, _holder(path)) from exc
    return lock


def _try(lock: BaseFileLock, timeout: float) -> None:
    try:
        with warnings.catch_warnings():
            # It says that it falls back to marker files, which is all right here.
            warnings.simplefilter("ignore")
            lock.acquire(timeout=timeout)
    except NotImplementedError:
        return
    except OSError as exc:
        if exc.errno not in _NO_LOCKS:
            raise


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
        with open(fd, "w", encoding="ascii") as file:  # noqa: PTH123  # opened with flags
            file.write(f"{os.getpid()}\n")


def _holder_file(path: Path) -> Path:
    """Beside the lock: Windows locks the bytes of the file itself against reading."""
    return path.with_suffix(".pid")


def _holder(path: Path) -> int | None:
    try:
        text = read_small(_holder_file(path), 32)
        return int(text) if text else None
    except (ValueError, StoreError):
        return None


def _timed_out(path: Path, pid: int | None) -> LockTimeout:
    who = f"process {pid}" if pid else "another process"
    facts = [f"lock: {path}", f"held by: {who}"]
    if pid and _is_stopped(pid):
        facts.append(f"process {pid} is stopped (kill -CONT {pid} lets it go on)")
    return LockTimeout(
        f"another tsuku-llm ({who}) is still at work",
        facts=tuple(facts),
        hint=f"wait for it, or end it: kill {pid}" if pid else "wait for it, then run it again",
    )


def _is_stopped(pid: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == ["T"]
