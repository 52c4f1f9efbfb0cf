"""A walk through a folder that reads names only, and ends on every tree: loops, depth, size."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

MOST_ENTRIES = 100_000
"""Files and folders that are looked at below one folder."""

_DEEPEST = 16
"""Folders within folders; Hugging Face's cache has four, and those of a repository."""


class Seen(NamedTuple):
    """A file: its path, and that below the folder of the walk, with "/" between its parts.

    ``key`` is the same for two names of one file. A ``broken`` link has none.
    """

    path: str
    below: str
    size: int
    key: tuple[int, int]
    broken: bool = False


def walk(
    folder: str, note: Callable[[str], None], *, most: int = MOST_ENTRIES, deepest: int = _DEEPEST
) -> Iterator[Seen]:
    """Yield the files below a folder in the order of their names, links followed, each folder once.

    ``note`` is told of what cannot be read, and of an end before everything was seen. Raises
    ``FileNotFoundError`` and ``NotADirectoryError`` for the folder itself.
    """
    # Depth first, so that a cut-off walk has seen whole folders.
    waiting = [(folder, "", 0)]
    visited: set[tuple[int, int]] = set()
    left = most
    while waiting:
        path, below, depth = waiting.pop()
        try:
            key = _key(os.stat(path))
            # Links can lead in a circle.
            entries = [] if key in visited else _listed(path, left + 1)
        except OSError as error:
            if depth == 0 and isinstance(error, (FileNotFoundError, NotADirectoryError)):
                raise
            note(f"{path} cannot be read: {error.strerror or error}")
            continue
        visited.add(key)
        left -= len(entries)
        if left < 0:
            note(
                f"{folder} has more than {most} files: not all were looked at; name a folder in it"
            )
            return
        inside: list[tuple[str, str, int]] = []
        for entry in entries:
            if _is_folder(entry):
                inside.append((entry.path, f"{below}{entry.name}/", depth + 1))
            elif (seen := _seen(entry, below)) is not None:
                yield seen
        if depth < deepest:
            waiting += reversed(inside)


def _listed(path: str, most: int) -> list[os.DirEntry[str]]:
    """Return the entries of a folder by their names, at most ``most`` of them."""
    with os.scandir(path) as listing:
        return sorted(islice(listing, most), key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    # A link that leads to itself.
    except OSError:
        return False


def _seen(entry: os.DirEntry[str], below: str) -> Seen | None:
    """Return a file, or a link to nothing; None for a pipe, a socket or a device."""
    try:
        # Of the file that a link names. Windows gives an entry's own status no number.
        status = os.stat(entry.path)
    except OSError:
        return Seen(entry.path, below + entry.name, 0, (0, 0), broken=True)
    if not stat.S_ISREG(status.st_mode):
        return None
    return Seen(entry.path, below + entry.name, status.st_size, _key(status))


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
