"""Reads and writes that survive a crash.

A file is replaced, never edited. The new content is written under a temporary name in the same
folder, flushed to the disk and renamed over the old file; then the folder is flushed. So every
process sees the old bytes or the new ones, at any moment. No file is read or written through a
symbolic link in the last part of its path, on systems with ``O_NOFOLLOW`` (not Windows).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import CorruptStore
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.ownership import require_trusted_owner
from tsuku_llm.ground.records import Reader, parse

if sys.platform == "darwin":
    from fcntl import F_FULLFSYNC, fcntl

_T = TypeVar("_T")

FOLDER_MODE = 0o755
SEALED_FOLDER_MODE = 0o555
"""The mode of the folders of a build: nothing can be written beside its files by mistake."""
FILE_MODE = 0o644
_PRIVATE_FOLDER_MODE = 0o700
_MAY_CHANGE = 0o300
"""What the owner of a folder needs to add, rename and remove names in it."""
TEMPORARY_SUFFIX = ".tmp"

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)
# A fifo in the place of a file must not block the open.
_READ = os.O_RDONLY | _NOFOLLOW | _CLOEXEC | _BINARY | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC | _BINARY

_CHUNK = 1 << 20

# Some network file systems cannot flush a folder: there the server keeps the names safe.
_NO_FOLDER_FLUSH = {errno.EINVAL, errno.ENOTSUP}

# On Windows an antivirus program or an indexer opens a new file and holds it, but not for long:
# 40 tries with 50 ms between them are enough.
_REPLACE_TRIES = 40
_REPLACE_PAUSE = 0.05


def read_small(path: Path, limit: int) -> bytes | None:
    """Read a small state file; None if it does not exist.

    This program did not write it if it is a link, a folder, a fifo, another user's file or
    larger than ``limit`` bytes: these are refused. Raises CorruptStore, UnsafeLocation.
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
            # Check the open file and not the path: another process may replace the path meanwhile.
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                raise _not_ours(path)
            require_trusted_owner(path, status)
            with open(fd, "rb", closefd=False) as file:  # opened with flags
                return file.read(limit)
        finally:
            os.close(fd)


def read_record(path: Path, limit: int, read: Reader[_T], way_out: str) -> _T | None:
    """Read a state file of at most ``limit`` bytes with a reader of ``records``; None without it.

    ``way_out`` is the hint for a damaged one. Raises CorruptStore and UnsafeLocation.
    """
    content = read_small(path, limit)
    if content is None:
        return None
    try:
        return parse(content, read)
    except ValueError as error:
        facts = (f"path: {path}", str(error))
        raise CorruptStore(f"{path.name} is not readable", facts=facts, hint=way_out) from error


def _not_ours(path: Path) -> CorruptStore:
    return CorruptStore(
        f"{path.name} is not a state file of tsuku-llm",
        facts=(f"path: {path}",),
        hint=f"move that path away, then run: {TSUKU} install",
    )


def open_to_read(path: Path) -> int:
    """Open ``path`` itself for reading, never a link's target. Raises ``OSError``."""
    return os.open(path, _READ)


def open_to_lock(path: Path) -> int:
    """Open ``path`` for an exclusive lock, as ``open_to_read``; NFS demands write permission."""
    return os.open(path, _READ | os.O_RDWR)


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder and its missing parents durably, with mode 0755 under any umask.

    A ``private`` folder gets 0700, even if it exists with another mode; its parents do not.
    Raises CorruptStore if a link or file has the name of a folder, UnsafeLocation if another
    user owns a folder, also the one above: root would leave a folder that its owner cannot use.
    """
    mode = _PRIVATE_FOLDER_MODE if private else FOLDER_MODE
    with disk_errors(f"making the folder {path.name}", path.parent):
        missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
        above = missing[-1].parent if missing else path
        if missing and os.path.isdir(above) and not (status := above.stat()).st_mode & stat.S_ISVTX:
            require_trusted_owner(above, status, alone=True)
        for folder in reversed(missing):
            with suppress(FileExistsError):
                folder.mkdir(mode if folder == path else FOLDER_MODE)
            # Another process may have made the folder first. In a sticky folder (/tmp) that may be
            # another user's: check the owner before we use it.
            _require_own_folder(folder)
            # "new/.." was missing as well, but it is the folder above: its mode is not ours.
            if folder.name != os.pardir:
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


def write_new(
    path: Path, content: bytes, mode: int = FILE_MODE, owner: tuple[int, int] | None = None
) -> None:
    """Write and flush a file that must not exist yet. Raises ``OSError``.

    ``owner`` is a user and a group, None for those of this process.
    """
    with open(os.open(path, _CREATE, mode), "wb") as file:  # opened with flags
        file.write(content)
        file.flush()
        if owner and sys.platform != "win32" and owner != (os.geteuid(), os.getegid()):
            os.fchown(file.fileno(), *owner)
        set_mode(file.fileno(), mode)
        flush(file.fileno())


def copy_new(source: Path, target: Path, mode: int) -> None:
    """Copy a file to a name that must not exist yet, and flush nothing. Raises ``OSError``.

    After an error nothing has the name.
    """
    from shutil import copyfileobj

    with (
        open(open_to_read(source), "rb") as original,  # both opened with flags
        open(os.open(target, _CREATE, mode), "wb") as copy,
    ):
        try:
            copyfileobj(original, copy, _CHUNK)
            set_mode(copy.fileno(), mode)
        except OSError:
            os.unlink(target)
            raise


def replace_file(
    path: Path, content: bytes, mode: int = FILE_MODE, owner: tuple[int, int] | None = None
) -> None:
    """Replace ``path`` by ``content``: it has the old or the new bytes, also after a crash.

    Raises ``OSError``. The old file is then still there, unless the flush of the folder failed
    after the rename.
    """
    # A random name: other processes may replace the same file at this moment, and the last rename
    # wins. Sweeps recognise such names after a crash (``folders.temporaries``).
    beside = path.with_name(f".{path.name}.{unique()}{TEMPORARY_SUFFIX}")
    try:
        write_new(beside, content, mode, owner)
        # Flushed already: a rename that reaches the disk before the content would leave an empty
        # file.
        rename(beside, path)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            # The name that people know; a write that fails has none, as on a full disk.
            error.filename, error.filename2 = os.fspath(path), None
        raise
    flush_folder(path.parent)


def write_note(path: Path, content: bytes) -> None:
    """Overwrite a file of mode 0644 that may be lost; its readers must detect damage.

    It is not flushed, and a crash leaves no temporary file. If the file has other names too (hard
    links), it is replaced instead, because its content may be the user's. Raises ``OSError``.
    """
    # A fifo without a reader must not block the open.
    nonblocking = getattr(os, "O_NONBLOCK", 0)
    flags = os.O_WRONLY | os.O_CREAT | _NOFOLLOW | _CLOEXEC | _BINARY | nonblocking
    with open(os.open(path, flags, 0o644), "wb") as file:  # opened with flags
        if os.fstat(file.fileno()).st_nlink == 1:
            set_mode(file.fileno(), 0o644)
            file.truncate(0)
            file.write(content)
            return
    replace_file(path, content)


def drop_tree(path: Path) -> None:
    """Remove a folder as far as possible; a later sweep removes the rest."""
    from shutil import rmtree

    with suppress(OSError):  # ignore_errors does not cover everything that rmtree does
        # The folders of a build are sealed, and only root may remove names from such a folder.
        for folder, _, _ in os.walk(path):
            open_for_changes(Path(folder))
        rmtree(path, ignore_errors=True)


def open_for_changes(folder: Path | int) -> bool:
    """Let the owner change the names in a folder, by its path or descriptor; tell if it was sealed.

    On Windows modes seal nothing. Raises ``OSError``.
    """
    if sys.platform == "win32":
        return False
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    if mode & _MAY_CHANGE == _MAY_CHANGE:
        return False
    os.chmod(folder, mode | _MAY_CHANGE)
    return True


def rename(source: Path, target: Path) -> None:
    """Call ``os.replace``; on Windows, retry while another program holds the file.

    Raises ``OSError``.
    """
    # Windows refuses to replace a file that another program has open.
    for _ in range(_REPLACE_TRIES if sys.platform == "win32" else 0):
        with suppress(PermissionError):
            os.replace(source, target)  # a folder too
            return
        time.sleep(_REPLACE_PAUSE)
    os.replace(source, target)


def seal_file(path: Path, mode: int) -> None:
    """Set the mode of a written file under any umask, and flush it. Raises ``OSError``."""
    # Windows flushes only files that are open for writing.
    flags = (os.O_RDWR | _BINARY) if sys.platform == "win32" else _READ
    fd = os.open(path, flags)
    try:
        set_mode(fd, mode)
        flush(fd)
    finally:
        os.close(fd)


def flush_folder(path: Path) -> None:
    """Make the names in a folder durable; do nothing on Windows. Raises ``OSError``."""
    if sys.platform == "win32":  # it has no such call
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
    """Flush a file or folder to the drive's medium. Raises ``OSError``."""
    if sys.platform == "darwin":  # fsync stops at the drive's cache there
        with suppress(OSError):  # a network file system may not know the call
            fcntl(fd, F_FULLFSYNC)
            return
    os.fsync(fd)


def unique() -> str:
    """Make a random name that no other process picks: 16 hexadecimal digits."""
    return os.urandom(8).hex()


def set_mode(fd: int, mode: int) -> None:
    """Set the mode of an open file, under any umask. Raises ``OSError``."""
    if sys.platform != "win32" and stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        os.fchmod(fd, mode)


# Reads and writes at an offset of an open file, for any thread.
if sys.platform == "win32":
    import threading

    # Windows has one position for each open file. Without the lock, another thread could move
    # it between our seek and our read. One lock for all files: these calls are short.
    _POSITION = threading.Lock()

    def read_at(descriptor: int, length: int, offset: int) -> bytes:
        """Do what ``os.pread`` does, which Windows lacks."""
        with _POSITION:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, length)

    def write_at(descriptor: int, data: memoryview, offset: int) -> int:
        """Do what ``os.pwrite`` does, which Windows lacks."""
        with _POSITION:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.write(descriptor, data)

else:
    read_at = os.pread
    write_at = os.pwrite


def write_output(path: Path, text: str) -> None:
    """Replace a file that the user names, as ``replace_output``. Raises ``StoreError``."""
    with disk_errors(f"writing {path.name}", path.parent):
        replace_output(path, text)


def replace_output(path: Path, text: str) -> None:
    """Replace a file by a text in one step: a reader sees the old text or the new one.

    Raises ``OSError``, also for a link, a pipe or a device: neither its target is written, nor
    is it replaced itself.
    """
    mode = FILE_MODE
    with suppress(FileNotFoundError):
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        mode = stat.S_IMODE(status.st_mode)
    replace_file(path, text.encode("utf-8"), mode)
