"""One file or link of a build: in the signed manifest, in an archive, and in a receipt.

Pure, and without ``dataclasses``: every start reads a receipt.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class FileEntry(NamedTuple):
    """One regular file of a build.

    ``path`` is relative, with slashes. ``size`` is in bytes, ``sha256`` in hexadecimal.
    """

    path: str
    size: int
    sha256: str
    executable: bool = False

    def document(self) -> dict[str, Any]:
        """Build its entry for a release file, which leaves out what is the default."""
        entry = self._asdict()
        if not self.executable:
            del entry["executable"]
        return entry


class LinkEntry(NamedTuple):
    """One symbolic link of a build; ``target`` is its text, relative to the link's folder."""

    path: str
    target: str


TreeEntry = FileEntry | LinkEntry


def split_entries(
    entries: Iterable[TreeEntry],
) -> tuple[tuple[FileEntry, ...], tuple[LinkEntry, ...]]:
    """Return the files and the links of a tree, as a receipt has them."""
    found = tuple(entries)
    return (
        tuple(each for each in found if isinstance(each, FileEntry)),
        tuple(each for each in found if isinstance(each, LinkEntry)),
    )
