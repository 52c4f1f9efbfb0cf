"""Files as they lie on disk: a walk that finds them, and what a model's file is.

The walk reads names only, and ends on every tree: loops, depth, size. The first bytes of a file
tell what it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from tsuku_llm.ground.foreign import read_beginning
from tsuku_llm.launch.memory.model_header import NotGguf, Number, parse_keys

Note = Callable[[str], None]

MOST_ENTRIES = 100_000
"""Files and folders that are looked at below one folder."""

_DEEPEST = 16
"""Folders within folders; Hugging Face's cache has four, and those of a repository."""

_BEGINNING = 64 << 10
"""Bytes of a file that are read: the keys before the vocabulary take a few thousand."""

_MAGIC = b"GGUF"

# What browsers, curl, aria2, Hugging Face, llama.cpp and LM Studio add to a file's name.
_UNFINISHED: tuple[str, ...] = (".incomplete", ".downloadinprogress", ".part", ".partial")
_UNFINISHED += (".crdownload", ".download", ".tmp", ".aria2", "-partial")

# Files beside a model, as upstream tells them by their names (common/download.cpp).
_COMPANIONS = ("imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_OTHER_TYPES = ("adapter", "imatrix", "control_vector", "controlvector")


class Seen(NamedTuple):
    """A file: its path, and that below the folder of the walk, with "/" between its parts.

    ``key`` is the same for two names of one file. A ``broken`` link has none.
    """

    path: str
    below: str
    size: int
    key: tuple[int, int]
    broken: bool = False


def walk(folder: str, note: Note, *, deepest: int = _DEEPEST) -> Iterator[Seen]:
    """Yield the files below a folder in the order of their names, links followed, each folder once.

    ``note`` is told of what cannot be read, and of an end before everything was seen. Raises
    ``FileNotFoundError`` and ``NotADirectoryError`` for the folder itself.
    """
    # Depth first, so that a cut-off walk has seen whole folders.
    waiting = [(folder, "", 0)]
    visited: set[tuple[int, int]] = set()
    left = MOST_ENTRIES
    while waiting:
        path, below, depth = waiting.pop()
        try:
            key = _key(os.stat(path))
            # Links can lead in a circle.
            entries: list[os.DirEntry[str]] = []
            if key not in visited:
                with os.scandir(path) as listing:
                    entries = sorted(islice(listing, left + 1), key=lambda entry: entry.name)
        except OSError as error:
            if depth == 0 and isinstance(error, (FileNotFoundError, NotADirectoryError)):
                raise
            note(f"{path} cannot be read: {error.strerror or error}")
            continue
        visited.add(key)
        left -= len(entries)
        if left < 0:
            more = f"more than {MOST_ENTRIES} files: not all were looked at"
            note(f"{folder} has {more}; name a folder in it")
            return
        inside: list[tuple[str, str, int]] = []
        for entry in entries:
            if _is_folder(entry):
                inside.append((entry.path, f"{below}{entry.name}/", depth + 1))
            elif (seen := _seen(entry, below)) is not None:
                yield seen
        if depth < deepest:
            waiting += reversed(inside)


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


class ModelFile(NamedTuple):
    """A GGUF file: where it was seen, and the keys at the beginning of its header.

    ``repository`` is the one on Hugging Face that it is from; ``seen.below`` is its path there.
    It is None if that is not known. ``name`` is the model's, empty where the file's path
    gives it.
    """

    source: str
    seen: Seen
    values: Mapping[str, Number | str]
    repository: str | None = None
    name: str = ""

    @property
    def base(self) -> str:
        """The name of the file without its folders."""
        return self.seen.below.rpartition("/")[2]

    @property
    def is_projector(self) -> bool:
        """Whether a model sees or hears with this file, and it is no model itself."""
        return (
            self.values.get("general.architecture") == "clip"
            or self.values.get("general.type") == "mmproj"
            or "mmproj" in self.base.lower()
        )

    @property
    def is_companion(self) -> bool:
        """Whether this file is an adapter, or belongs to a model in another way."""
        return self.values.get("general.type") in _OTHER_TYPES or any(
            word in self.base for word in _COMPANIONS
        )


def read_model_file(
    source: str, seen: Seen, note: Note, *, repository: str | None = None, name: str = ""
) -> ModelFile | None:
    """Read the beginning of a file; None, with a note, for what is no model that can be used."""
    # Links may lead out of the folder that was walked; the server follows them, too.
    if seen.broken:
        note(f"{seen.path} is a link to no file that can be read")
        return None
    try:
        values, tensors = parse_keys(read_beginning(seen.path, _BEGINNING))
    except NotGguf as error:
        note(f"{seen.path} is not used: {error}")
        return None
    except OSError as error:
        note(f"{seen.path} cannot be read: {error.strerror or error}")
        return None
    if not tensors:
        # A part of a split model may have only keys. Anything else is a vocabulary, or cut off.
        if not values:
            note(f"{seen.path} is not complete: its header is cut off")
            return None
        if not values.get("split.count"):
            return None
    return ModelFile(source, seen, values, repository, name)


def note_unfinished(seen: Seen, note: Note) -> None:
    """Tell of a download of a model that has not ended, by its name and its first bytes."""
    name = seen.path.lower()
    if seen.broken or not name.endswith(_UNFINISHED):
        return
    # Hugging Face's files have only a digest as their name.
    if ".gguf" not in os.path.basename(name):
        try:
            if read_beginning(seen.path, len(_MAGIC)) != _MAGIC:
                return
        except OSError:
            return
    note(f"{seen.path} is an unfinished download: end it with the program that began it")
