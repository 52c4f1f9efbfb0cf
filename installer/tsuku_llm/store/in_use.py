"""Versions in use: a running server holds a shared lock on a file of its version.

The server inherits the locked descriptor. So the hold lasts as long as the server, even if the
process that started it is killed. The shared lock needs no write permission, so it also works
for an install that root made for all users. Windows needs no hold: it does not remove a
running program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tsuku_llm.ground.errors import NotInstalled
from tsuku_llm.ground.files import open_to_lock, open_to_read
from tsuku_llm.ground.foreign import kernel_text
from tsuku_llm.ground.own_name import TSUKU

if sys.platform != "win32":
    import fcntl

IN_USE = "in-use"
"""An empty file next to the receipt; it is never replaced, because locks belong to the inode."""


@contextmanager
def holding(version: Path) -> Iterator[int | None]:
    """Hold a version for the block; yield the locked descriptor for the server to inherit.

    Yields None on Windows, and if the version has no file to lock. Raises NotInstalled while
    another process removes the version.
    """
    if sys.platform == "win32":
        yield None
        return
    # The lock belongs to the open file, so a child that inherits ``fd`` holds it too. Our close
    # ends only our share of the hold.
    path = version / IN_USE
    fd = None
    with suppress(OSError):
        fd = open_to_read(path)
    # Another process may remove the version right now. While it works it has the exclusive lock,
    # and ours fails. If it moved the folder between our open and our lock, we locked a file that
    # is no longer at this path: compare the inodes after locking.
    if fd is not None and not (_locks(fd, alone=False) and _is_still(path, fd)):
        _close(fd)
        raise NotInstalled(f"{version.name} is being removed", hint=f"run: {TSUKU} install")
    try:
        yield fd
    finally:
        if fd is not None:
            _close(fd)


@contextmanager
def try_exclusive(version: Path) -> Iterator[bool]:
    """Yield whether no process holds a version; keep new holders out during the block."""
    if sys.platform == "win32":
        yield True
        return
    try:
        fd = open_to_lock(version / IN_USE)
    except PermissionError:  # a user who may not write here cannot see that it is unused
        yield False
        return
    except OSError:  # a damaged version: there is nothing to hold
        yield True
        return
    try:
        # The exclusive lock fails at once if a server holds the shared one. If we get it, a server
        # that starts now cannot take its shared lock, and reports NotInstalled.
        yield _locks(fd, alone=True)
    finally:
        _close(fd)


def users_of(version: Path) -> tuple[str, ...]:
    """Describe the other processes that hold a version; empty if the system is not Linux.

    Processes whose open files this user may not read are left out.
    """
    if sys.platform != "linux":
        return ()
    file = os.path.realpath(version / IN_USE)
    users = []
    for pid in sorted(int(path.name) for path in Path("/proc").glob("[0-9]*")):
        # Our own hold does not count. Another user's process cannot be read, or it has just ended.
        with suppress(OSError):
            links = () if pid == os.getpid() else Path(f"/proc/{pid}/fd").iterdir()
            if any(os.readlink(link) == file for link in links):  # compares texts
                users.append(f"process {pid} ({kernel_text(f'/proc/{pid}/comm').strip()})")
    return tuple(users)


def _close(fd: int) -> None:
    with suppress(OSError):  # nothing was written
        os.close(fd)


def _locks(fd: int, *, alone: bool) -> bool:
    """Try to lock without waiting; True if we have the lock or the file system has no locks.

    Any user who may read a file can take ``flock`` on it, also the exclusive one, and so keep
    servers from starting. Linux has locks of an open file whose exclusive kind needs a
    descriptor that may write (F_OFD_SETLK, fcntl(2)); a child inherits them as well.
    """
    if sys.platform == "linux":
        kind = fcntl.F_WRLCK if alone else fcntl.F_RDLCK
        try:
            # struct flock: the kind first; zeros mean the whole file, and no process number.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, kind.to_bytes(2, sys.byteorder) + bytes(30))
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # this file system, or this kernel's stand-in, does not have them
            pass
        else:
            return True
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
