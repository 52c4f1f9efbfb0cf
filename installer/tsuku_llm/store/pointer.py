"""The active pointer: the version in use, and the previous one.

It is a file, because on Windows not every user may create links. It is replaced, never edited.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import read_small, replace_file
from tsuku_llm.errors import CorruptStore
from tsuku_llm.store.receipt import is_version_id, parse_object

FILE = "active.json"
FORMAT = 1
_LIMIT = 4096


class Pointer(NamedTuple):
    """The ids of the version in use and of the one to roll back to; None if not set."""

    active: str | None = None
    previous: str | None = None

    def moved_to(self, version: str) -> Pointer:
        """Return the pointer with ``version`` active and the former active one as previous."""
        # Activating the active version again must not make it the version to roll back to.
        return self if version == self.active else Pointer(version, self.active)

    def without(self, version: str) -> Pointer:
        """Return the pointer after ``version`` was removed."""
        return Pointer(
            None if self.active == version else self.active,
            None if self.previous == version else self.previous,
        )


def read_pointer(data: Path) -> Pointer:
    """Read the pointer of a store; an empty one if the file does not exist.

    Raises CorruptStore if the file is not a pointer, UnsafeLocation if another user owns it.
    """
    path = data / FILE
    content = read_small(path, _LIMIT)
    if content is None:
        return Pointer()
    document = parse_object(content, FILE)
    names = (document.get("active"), document.get("previous"))
    if document.get("format") != FORMAT or not all(map(_is_name, names)):
        raise CorruptStore(
            f"{FILE} is not readable",
            facts=(f"path: {path}",),
            hint="tsuku-llm install, or tsuku-llm use VERSION, replaces it",
        )
    return Pointer(*names)


def pointer_or_none(data: Path) -> Pointer:
    """Read the pointer; return an empty one if it is corrupt."""
    try:
        return read_pointer(data)
    except CorruptStore:
        return Pointer()


def write_pointer(data: Path, pointer: Pointer) -> None:
    """Replace the pointer durably, as one rename. Raises StoreError."""
    document = {"format": FORMAT, "active": pointer.active, "previous": pointer.previous}
    with disk_errors("replacing the active pointer", data):
        replace_file(data / FILE, json.dumps(document).encode("ascii") + b"\n")


def _is_name(value: object) -> bool:
    return value is None or (type(value) is str and is_version_id(value))
