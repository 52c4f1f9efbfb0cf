"""Model files as they lie on disk: what each of them is, by its first bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tsuku_llm.ground.foreign import read_beginning
from tsuku_llm.launch.memory.model_header import NotGguf, Number, parse_keys
from tsuku_llm.model_caches.walking import Seen

Note = Callable[[str], None]

_BEGINNING = 64 << 10
"""Bytes of a file that are read: the keys before the vocabulary take a few thousand."""

_MAGIC = b"GGUF"

# What browsers, curl, aria2, Hugging Face, llama.cpp and LM Studio add to a file's name.
_UNFINISHED: tuple[str, ...] = (".incomplete", ".downloadinprogress", ".part", ".partial")
_UNFINISHED += (".crdownload", ".download", ".tmp", ".aria2", "-partial")

# Files beside a model, as upstream tells them by their names (common/download.cpp).
_COMPANIONS = ("imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_OTHER_TYPES = ("adapter", "imatrix", "control_vector", "controlvector")


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


def is_model_name(name: str) -> bool:
    """Tell whether a file is a GGUF file by its name."""
    return name.lower().endswith(".gguf")


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
