"""What is installed: versions, each with receipt, fingerprint and tree, and the active pointer.

The pointer names the version in use, and the previous one. It is a file, because on Windows not
every user may create links. It is replaced, never edited.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground import records
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import CorruptStore
from tsuku_llm.ground.files import read_record, read_small, replace_file
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.store.records.integrity import TREE
from tsuku_llm.store.records.receipt import (
    RECEIPT,
    RECEIPT_LIMIT,
    Receipt,
    is_version_id,
    reinstall_by_id,
)

FILE = "active.json"
FORMAT = 1
_LIMIT = 4096


@records.documented("id", "*receipt", "tree")
class Installed(NamedTuple):
    """An installed build: its folder in the store, its receipt, and the ``tree`` of its files."""

    id: str
    path: Path
    receipt: Receipt

    @property
    def tree(self) -> Path:
        """The folder of the build."""
        return self.path / TREE


def read_version(path: Path) -> Installed | None:
    """Read the version in a folder; None if the folder has no receipt.

    Raises CorruptStore if the receipt cannot be read or belongs to another version.
    """
    content = read_small(path / RECEIPT, RECEIPT_LIMIT)
    if content is None:
        return None
    again = f"{reinstall_by_id(path.name)} installs it again"
    try:
        receipt = Receipt.from_json(content)
    except CorruptStore as error:
        error.message = f"the receipt of {path.name} is not readable"
        error.facts = (f"path: {path / RECEIPT}", *error.facts)
        error.hint = again
        raise
    with disk_errors("reading an installed version", path):
        is_link = path.is_symlink()
    # A folder that was copied, renamed or linked here has a receipt that does not match its name.
    if receipt.id != path.name or is_link:
        raise CorruptStore(
            f"{path.name} is not the version that its name says",
            facts=(f"path: {path}", f"its receipt is of {receipt.id}"),
            hint=again,
        )
    return Installed(path.name, path, receipt)


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


_ID = records.optional(records.checked(str, is_version_id))
_READ = records.record(Pointer, {"active": _ID, "previous": _ID}, format=FORMAT)


def read_pointer(data: Path) -> Pointer:
    """Read the pointer of a store; an empty one if the file does not exist.

    Raises CorruptStore if the file is not a pointer, UnsafeLocation if another user owns it.
    """
    way_out = f"{TSUKU} install, or {TSUKU} use VERSION, replaces it"
    return read_record(data / FILE, _LIMIT, _READ, way_out) or Pointer()


def pointer_or_none(data: Path) -> Pointer:
    """Read the pointer; return an empty one if it is corrupt."""
    try:
        return read_pointer(data)
    except CorruptStore:
        return Pointer()


def write_pointer(data: Path, pointer: Pointer) -> None:
    """Replace the pointer durably, as one rename. Raises StoreError."""
    document = {"format": FORMAT, **pointer._asdict()}
    with disk_errors("replacing the active pointer", data):
        replace_file(data / FILE, records.encode(document))
