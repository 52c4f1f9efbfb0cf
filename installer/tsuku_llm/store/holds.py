"""Which versions are in use: a running server holds a shared lock on a file of its version.

The descriptor is handed on to the server, so the hold lasts as long as the server does,
also when whoever started it is killed, and needs no right to write (an install that root
made for everybody). Windows needs none of this: it removes no running program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tsuku_llm.durable import open_to_lock, open_to_read
from tsuku_llm.errors import NotInstalled

if sys.platform != "win32":
    import fcntl

IN_USE = "in-use"
"""Lies beside the receipt, is empty, and is never replaced: locks belong to the inode."""


@contextmanager
def holding(version: Path) -> Iterator[int | None]:
    """Hold a version for the block; the descriptor to hand on, None where there is none.

    Raises NotInstalled when the version is being removed.
    """
    if sys.platform == "win32":
        yield None
        return
    fd = _held(version / IN_USE)
    try:
        yield fd
    finally:
        if fd is not None:
            _close(fd)


@contextmanager
def alone_with(version: Path) -> Iterator[bool]:
    """Whether nobody holds a version; while the block lasts, nobody can begin to."""
    if sys.platform == "win32":
        yield True
        return
    try:
        fd = open_to_lock(version / IN_USE)
    except OSError:  # a damaged version: there is nothing to hold
        yield True
        return
    try:
        yield _locks(fd, alone=True)
    finally:
        _close(fd)


def users_of(version: Path) -> tuple[str, ...]:
    """The other processes that hold a version, for people; those that Linux lets us see."""
    if sys.platform != "linux":
        return ()
    file = os.path.realpath(version / IN_USE)
    pids = sorted(int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return tuple(
        f"process {pid} ({_program(pid)})"
        for pid in pids
        if pid != os.getpid() and _has_open(pid, file)
    )


def _has_open(pid: int, file: str) -> bool:
    with suppress(OSError):  # somebody else's, or just ended
        return any(os.readlink(link) == file for link in Path(f"/proc/{pid}/fd").iterdir())  # noqa: PTH115  # compares texts
    return False


def _program(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    return "ended"


def _held(path: Path) -> int | None:
    try:
        fd = open_to_read(path)
    except OSError:
        return None
    if _locks(fd, alone=False) and _is_still(path, fd):
        return fd
    _close(fd)
    raise NotInstalled(f"{path.parent.name} is being removed", hint="run: tsuku-llm install")


def _close(fd: int) -> None:
    with suppress(OSError):  # nothing was written
        os.close(fd)


def _locks(fd: int, *, alone: bool) -> bool:
    """Whether the lock is ours, or the file system has none (then nobody can tell)."""
    if sys.platform != "win32":
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
    return True


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except OSError:
        return False
