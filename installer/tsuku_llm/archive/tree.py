"""The folder into which an archive is unpacked; nothing outside it is written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from tsuku_llm.archive.formats.member import CHUNK, Chunk, unsafe
from tsuku_llm.archive.names import Parts
from tsuku_llm.ground.disk import disk_errors

FOLDER_MODE = 0o755
FILE_MODE = 0o644
PROGRAM_MODE = 0o755

_RELATIVE = os.open in os.supports_dir_fd and os.mkdir in os.supports_dir_fd
"""Whether paths can be opened relative to an open folder (not on Windows)."""

_FLUSH = 8 << 20
"""Bytes after which the system is told to begin writing them to the disk."""

_NEW_FILE = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL  # never overwrite: not a file of another artifact, not through a link
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_OLD_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


@contextlib.contextmanager
def opened_tree(root: Path) -> Iterator[Tree]:
    """Open the tree of a folder; make the folder if it does not exist."""
    folders: dict[Parts, int] = {}
    # The tree adds to ``folders`` what it opens. At the end no thread writes any more: the
    # writer's block, which waits for its threads, is inside this one.
    try:
        with disk_errors("opening the folder", root):
            root.mkdir(parents=True, exist_ok=True)
            if _RELATIVE:
                folders[()] = os.open(root, _FOLDER)
        yield Tree(root, folders)
    finally:
        for descriptor in folders.values():
            os.close(descriptor)


class Tree:
    """An open folder; every path is resolved from it, part by part, never through a link.

    Several threads may write into it at the same time, each its own files.
    """

    def __init__(self, root: Path, folders: dict[Parts, int]) -> None:
        self._root = root
        self._folders = folders
        # Guards `_folders`. Reentrant: _opened() calls itself for the folder above.
        self._opening = threading.RLock()

    def _place(self, parts: Parts) -> tuple[str, int | None]:
        """Make a member's folders; return the arguments ``path, dir_fd`` for the member."""
        if not _RELATIVE:
            self.folder(parts[:-1])
            return str(self._root.joinpath(*parts)), None
        return parts[-1], self._opened(parts[:-1])

    def _opened(self, parts: Parts) -> int:
        # Two threads may need a folder at once: one opens it, the other gets its descriptor.
        with self._opening:
            if parts not in self._folders:
                above = self._opened(parts[:-1])
                # It exists if another artifact has it, or an archive that was unpacked before.
                with contextlib.suppress(FileExistsError):
                    os.mkdir(parts[-1], FOLDER_MODE, dir_fd=above)
                # If it is a link or a file, this fails: O_NOFOLLOW and O_DIRECTORY.
                descriptor = os.open(parts[-1], _FOLDER, dir_fd=above)
                self._folders[parts] = descriptor  # before fchmod, which can fail: it gets closed
                os.fchmod(descriptor, FOLDER_MODE)  # mkdir's mode is reduced by the umask
            return self._folders[parts]

    def folder(self, parts: Parts) -> None:
        """Make a folder with mode 0755, independent of the umask."""
        with disk_errors("making a folder", self._root):
            if _RELATIVE:
                self._opened(parts)
            else:
                self._root.joinpath(*parts).mkdir(parents=True, exist_ok=True)

    def write(self, parts: Parts, chunks: Iterable[Chunk], *, executable: bool) -> tuple[int, str]:
        """Write a new file; return its size and SHA-256. Any thread may call this.

        If another artifact has put a file there, it must have the same bytes, and stays.
        """
        with disk_errors(f"writing {parts[-1]}", self._root):
            path, at = self._place(parts)
            try:
                descriptor = os.open(path, _NEW_FILE, FILE_MODE, dir_fd=at)
            except FileExistsError:
                return self._compare(parts, chunks)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                size, digest = _copy(chunks, file.fileno())
                # Last, and on the descriptor: independent of the umask, and never through a link.
                if os.name == "posix":
                    os.fchmod(file.fileno(), PROGRAM_MODE if executable else FILE_MODE)
        return size, digest

    def _compare(self, parts: Parts, chunks: Iterable[Chunk]) -> tuple[int, str]:
        path, at = self._place(parts)
        name = "/".join(parts)
        taken = unsafe("a name is used by something that is not a file", name)
        try:
            descriptor = os.open(path, _OLD_FILE, dir_fd=at)
        except OSError as error:
            raise taken from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise taken
        old, new, size = hashlib.sha256(), hashlib.sha256(), 0
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            while block := file.read(CHUNK):
                old.update(block)
        for chunk in chunks:
            new.update(chunk)
            size += len(chunk)
        if new.digest() != old.digest():
            raise unsafe("two archives have different files of the same name", name)
        return size, new.hexdigest()

    def link(self, parts: Parts, target: str) -> None:
        """Make a symbolic link; the same link may exist already."""
        with disk_errors(f"linking {parts[-1]}", self._root):
            path, at = self._place(parts)
            try:
                os.symlink(target, path, dir_fd=at)
            except FileExistsError as error:
                there = None
                with contextlib.suppress(OSError):  # no link has that name
                    there = os.readlink(path, dir_fd=at)
                if there != target:
                    raise unsafe(
                        "two archives have different entries of the same name", "/".join(parts)
                    ) from error


def _copy(chunks: Iterable[Chunk], descriptor: int) -> tuple[int, str]:
    hasher = hashlib.sha256()
    size = flushed = 0
    for chunk in chunks:
        hasher.update(chunk)
        size += len(chunk)
        view = memoryview(chunk)
        while view:  # one call may write less than all
            view = view[os.write(descriptor, view) :]
        if size - flushed >= _FLUSH:
            _begin_to_flush(descriptor, flushed, size)
            flushed = size
    _begin_to_flush(descriptor, flushed, size)
    return size, hasher.hexdigest()


def _begin_to_flush(descriptor: int, start: int, end: int) -> None:
    """Let the disk begin to write, so that the store's flush at the commit is short.

    Linux starts to write pages that are declared as not needed, and does not wait
    (mm/fadvise.c). Without that call, or if it fails, the commit only takes longer.
    """
    if sys.platform == "linux" and end > start:
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
