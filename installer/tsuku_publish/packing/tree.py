"""The contents of a folder, as the entries of a tree."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from tsuku_llm.archive.names import Names, checked_parts
from tsuku_llm.catalog.manifest import can_list
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UnsafeArchive, UsageError
from tsuku_llm.ground.foreign import open_foreign
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry, TreeEntry

_BLOCK = 1 << 20


def contents(folder: Path) -> tuple[TreeEntry, ...]:
    """Return every file and link below a folder, sorted by path.

    Empty folders are left out. Raises ``UsageError`` for what every client would refuse to install:
    special files, links that do not lead to a file of the folder, and names that some system cannot
    hold or a release file cannot list. Also raises the errors of the disk.
    """
    # The clients check names with the same class when they unpack.
    names = Names()
    with disk_errors("reading", folder):
        try:
            found = [_described(path, folder, names) for path in entries(folder)]
            names.check_links()
        except UnsafeArchive as error:
            raise _refused(error.message, *error.facts) from error
    return tuple(sorted(found, key=lambda item: item.path))


def without_top(folder: Path) -> tuple[Path, tuple[TreeEntry, ...]]:
    """Return a folder and its ``contents`` without the one top folder that holds everything."""
    items = contents(folder)
    tops = {item.path.partition("/")[0] for item in items}
    top = f"{next(iter(tops), '')}/"
    if len(tops) != 1 or not all(item.path.startswith(top) for item in items):
        return folder, items
    return folder / top, tuple(item._replace(path=item.path.removeprefix(top)) for item in items)


def entries(folder: Path, left_out: Callable[[Path], bool] = lambda _: False) -> Iterator[Path]:
    """Yield the path of every file and link below a folder, in an order that never changes.

    A folder that is ``left_out`` is not entered. Raises the first ``OSError``.
    """

    def refused(error: OSError) -> None:
        raise error

    # Without onerror, os.walk skips what it cannot read, and the build would lack files.
    for place, folders, files in os.walk(folder, onerror=refused):
        folders[:] = sorted(name for name in folders if not left_out(Path(place, name)))
        # os.walk lists a link to a folder among the folders, and does not follow it.
        links = [name for name in folders if Path(place, name).is_symlink()]
        paths = (Path(place, name) for name in sorted([*files, *links]))
        yield from (path for path in paths if not left_out(path))


def _described(path: Path, folder: Path, names: Names) -> TreeEntry:
    name, status = path.relative_to(folder).as_posix(), path.lstat()
    parts = checked_parts(name)
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(path)  # the target as text, not resolved
        names.link(parts, target)
        _require_listable(name, target)
        return LinkEntry(name, target)
    if not stat.S_ISREG(status.st_mode):
        raise _refused("it is neither file nor link", f"path: {name}")
    names.add(parts, "file")
    _require_listable(name)
    return FileEntry(name, *hashed(path), bool(status.st_mode & 0o111))


def _require_listable(*texts: str) -> None:
    for text in texts:
        if not can_list(text):
            raise _refused("a release file cannot list such a path", f"path: {text!a}")


def _refused(*facts: str) -> UsageError:
    return UsageError(
        "the build cannot be packed: no client would install it",
        facts=facts,
        hint="rename or remove what is named, then pack it again",
    )


def hashed(path: Path) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file. Raises ``OSError``."""
    digest, size = hashlib.sha256(), 0
    with open_foreign(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()
