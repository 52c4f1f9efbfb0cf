"""The reader of a folder: its files and links as members, with the checks of an archive's.

Links are not followed. What is neither file, folder nor link is refused, and what cannot be read is
an error: the copy would lack it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tsuku_llm.archive.formats.budget import LARGEST, MEMBERS, Budget, Spending
from tsuku_llm.archive.formats.member import CHUNK, Chunk, Member, unsafe
from tsuku_llm.ground.errors import StoreError

FOLDER_BUDGET = Budget(LARGEST, MEMBERS)
"""Limits for a folder: more is no build, but perhaps the folder that it was compiled in."""

_READ = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    # A fifo that took the place of a file meanwhile must not block.
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise ``StoreError`` with the file: the caller's errors are about the disk that it writes."""
    try:
        yield
    except (PermissionError, FileNotFoundError) as error:
        raise StoreError(
            "a file of the build cannot be read",
            facts=(f"{error.strerror}: {error.filename or path}",),
            hint="make it readable for you, or remove it; then run the command again",
        ) from error


def folder_members(folder: Path, spending: Spending) -> Iterator[Member]:
    """Yield the members below a folder, sorted by name.

    Raises ``UnsafeArchive``, ``StoreError`` for what cannot be read or is gone, and ``OSError``.
    """

    def refused(error: OSError) -> None:
        with _reading(folder):
            raise error

    # Without onerror, os.walk skips what it cannot read.
    for place, folders, files in os.walk(folder, onerror=refused):
        folders.sort()
        # os.walk lists a link to a folder among the folders, and does not follow it.
        links = [name for name in folders if Path(place, name).is_symlink()]
        for name in sorted((*files, *links)):
            spending.member()
            yield _member(Path(place, name), folder, spending)


def _member(path: Path, folder: Path, spending: Spending) -> Member:
    name = path.relative_to(folder).as_posix()
    with _reading(path):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)  # as text
            return Member(name=name, kind="link", target=target)
    if not stat.S_ISREG(status.st_mode):
        raise unsafe("a member is neither a file, a folder nor a link", name)
    spending.spend(status.st_size)

    def content() -> Iterator[Chunk]:
        with _reading(path):
            descriptor = os.open(path, _READ)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise unsafe("a member changed while it was read", name)
            left = status.st_size
            while chunk := file.read(min(CHUNK, left + 1)):
                left -= len(chunk)
                # It was counted with the size that it had.
                if left < 0:
                    raise unsafe("a member grew while it was read", name)
                yield chunk

    return Member(
        name=name,
        kind="file",
        size=status.st_size,
        executable=bool(status.st_mode & 0o111),
        content=content,
        alone=True,
    )
