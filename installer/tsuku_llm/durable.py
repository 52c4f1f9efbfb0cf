"""Reads and writes that survive a crash.

A file is replaced, never edited: written beside under a name of its own, flushed to the
disk, renamed over the old one, and then the folder is flushed. Whoever looks, at any
moment, sees the old bytes or the new ones. Nothing here follows a symbolic link in the
last part of a path.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

from tsuku_llm.disk import disk_errors
from tsuku_llm.errors import CorruptStore
from tsuku_llm.ownership import require_trusted_owner

if sys.platform == "darwin":
    from fcntl import F_FULLFSYNC, fcntl

FOLDER_MODE = 0o755
FILE_MODE = 0o644
_PRIVATE_FOLDER_MODE = 0o700
TEMPORARY_SUFFIX = ".tmp"

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)
# A fifo in the place of a file must not block the open.
_READ = os.O_RDONLY | _NOFOLLOW | _CLOEXEC | _BINARY | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC | _BINARY

# Some network file systems cannot flush a folder; their server keeps its names itself.
_NO_FOLDER_FLUSH = {errno.EINVAL, errno.ENOTSUP}

# An antivirus or an indexer holds a fresh file for moments, not for seconds.
_REPLACE_TRIES = 40
_REPLACE_PAUSE = 0.05


def read_small(path: Path, limit: int) -> bytes | None:
    """The bytes of a small state file; None where there is none.

    A link, a folder, a fifo, a file of somebody else or one of more than ``limit`` bytes
    is refused: it is not what was written here. Raises CorruptStore, UnsafeLocation.
    """
    with disk_errors(f"reading {path.name}", path.parent):
        try:
            fd = open_to_read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise _not_ours(path) from exc
            raise
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                raise _not_ours(path)
            require_trusted_owner(path, status)
            with open(fd, "rb", closefd=False) as file:  # opened with flags
                return file.read(limit)
        finally:
            os.close(fd)


def _not_ours(path: Path) -> CorruptStore:
    return CorruptStore(
        f"{path.name} is not a state file of tsuku-llm",
        facts=(f"path: {path}",),
        hint="move that path away, then run: tsuku-llm install",
    )


def open_to_read(path: Path) -> int:
    """A descriptor that reads ``path`` itself, never what a link names. Raises ``OSError``."""
    return os.open(path, _READ)


def open_to_lock(path: Path) -> int:
    """As ``open_to_read``, for a lock that excludes everybody: NFS wants the right to write."""
    return os.open(path, _READ | os.O_RDWR)


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder and its missing parents durably, 0755 whatever the umask.

    A ``private`` folder is 0700, also where it was there with another mode; its parents are
    not. Raises CorruptStore where something else (a link, a file) has the name of one,
    UnsafeLocation where another user owns it.
    """
    mode = _PRIVATE_FOLDER_MODE if private else FOLDER_MODE
    with disk_errors(f"making the folder {path.name}", path.parent):
        missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
        for folder in reversed(missing):
            with suppress(FileExistsError):
                folder.mkdir(mode if folder == path else FOLDER_MODE)
            # In a sticky folder another user may have been first: look before going on into it.
            _require_own_folder(folder)
            folder.chmod(mode if folder == path else FOLDER_MODE)
            flush_folder(folder.parent)
        if not missing:
            _require_own_folder(path)
            if private:
                path.chmod(mode)


def _require_own_folder(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise CorruptStore(
            f"{path.name} is not a folder",
            facts=(f"path: {path}",),
            hint="move that path away, then run it again",
        )
    require_trusted_owner(path, status)


def write_new(path: Path, content: bytes, mode: int = FILE_MODE) -> None:
    """Write a file that must not exist yet, flushed. Raises ``OSError``."""
    with open(os.open(path, _CREATE, mode), "wb") as file:  # noqa: PTH123  # opened with flags
        file.write(content)
        file.flush()
        set_mode(file.fileno(), mode)
        flush(file.fileno())


def replace_file(path: Path, content: bytes, mode: int = FILE_MODE) -> None:
    """Put ``content`` in the place of ``path``: old bytes or new ones, also after a crash.

    Raises ``OSError``; the old file is then still there, unless the flush of the folder
    failed after the rename.
    """
    beside = path.with_name(f".{path.name}.{unique()}{TEMPORARY_SUFFIX}")
    try:
        write_new(beside, content, mode)
        rename(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    flush_folder(path.parent)


def write_note(path: Path, content: bytes) -> None:
    """Write over a file that may be torn or lost, 0644; whoever reads it must be able to tell.

    So nothing is flushed, and a crash leaves nothing beside it. Raises ``OSError``.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NOFOLLOW | _CLOEXEC | _BINARY
    with open(os.open(path, flags, 0o644), "wb") as file:  # noqa: PTH123  # opened with flags
        set_mode(file.fileno(), 0o644)
        file.write(content)


def remove_tree(path: Path) -> None:
    """Remove a folder and what is in it, following no link. Raises ``OSError``."""
    from shutil import rmtree  # noqa: PLC0415  # imports every compression there is

    rmtree(path)


def remove(path: Path) -> None:
    """Remove whatever has that name, if anything has; a link is not followed.

    Raises ``OSError``.
    """
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def drop_tree(path: Path) -> None:
    """Remove of a folder what can be removed; the rest is for a later sweep."""
    from shutil import rmtree  # noqa: PLC0415

    with suppress(OSError):  # not all that rmtree does is covered by its own ignore_errors
        rmtree(path, ignore_errors=True)


def rename(source: Path, target: Path) -> None:
    """``os.replace``, repeated on Windows while something holds the file."""
    for _ in range(_REPLACE_TRIES if sys.platform == "win32" else 0):
        with suppress(PermissionError):
            os.replace(source, target)  # noqa: PTH105  # a folder too
            return
        time.sleep(_REPLACE_PAUSE)
    os.replace(source, target)  # noqa: PTH105


def seal_file(path: Path, mode: int) -> None:
    """Give a written file its mode, whatever the umask was, and flush it. Raises ``OSError``."""
    # Windows flushes only what is open for writing.
    flags = (os.O_RDWR | _BINARY) if sys.platform == "win32" else _READ
    fd = os.open(path, flags)
    try:
        set_mode(fd, mode)
        flush(fd)
    finally:
        os.close(fd)


def flush_folder(path: Path) -> None:
    """Make the names in a folder durable; Windows has no such call. Raises ``OSError``."""
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _CLOEXEC)
    try:
        flush(fd)
    except OSError as exc:
        if exc.errno not in _NO_FOLDER_FLUSH:
            raise
    finally:
        os.close(fd)


def flush(fd: int) -> None:
    """Flush to the medium: macOS's fsync stops at the drive's cache. Raises ``OSError``."""
    if sys.platform == "darwin":
        with suppress(OSError):  # a network file system may not know the call
            fcntl(fd, F_FULLFSYNC)
            return
    os.fsync(fd)


def unique() -> str:
    """A name that no other process picks."""
    return os.urandom(8).hex()


def set_mode(fd: int, mode: int) -> None:
    """Give an open file its mode, whatever the umask was. Raises ``OSError``."""
    if sys.platform != "win32" and stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        os.fchmod(fd, mode)
