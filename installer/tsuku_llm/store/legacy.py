"""The files of tsuku's earlier addon of the same name.

It was one program, first in ``addons/tsuku-llm``, then in ``tools/tsuku-llm``, then in a folder
per version in ``tools/tsuku-llm``. ``tools/tsuku-llm-<version>`` are tsuku's own tools: this
module never touches them. Only the addon's own files are removed: files that a user put beside
them stay, and nothing behind a link is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import CorruptStore, UnsafeLocation
from tsuku_llm.ground.folders import Folder, opened

_PROGRAMS = ("tsuku-llm", "tsuku-llm.exe")
_BESIDE = (".download.lock", "tsuku-llm.tmp", "tsuku-llm.exe.tmp")
_VERSION = re.compile(r"v?[0-9]+(?:\.[0-9]+)+[0-9A-Za-z.+-]*")


@dataclass(frozen=True, slots=True)
class LegacyAddon:
    """A path of the earlier addon, with a description for people."""

    path: Path
    what: str


def find_legacy(home: Path) -> tuple[LegacyAddon, ...]:
    """Find the earlier addon's files below ``home`` (tsuku's folder). Raises StoreError."""
    with disk_errors("looking for tsuku's earlier addon", home):
        return tuple(_visit(home, remove=False))


def remove_legacy(home: Path) -> tuple[LegacyAddon, ...]:
    """Remove the addon's files that ``find_legacy`` finds; return them. Raises StoreError."""
    with disk_errors("removing tsuku's earlier addon", home):
        return tuple(_visit(home, remove=True))


def _visit(home: Path, *, remove: bool) -> Iterator[LegacyAddon]:
    # A link on the way is the user's: what lies behind it is not the addon's to remove.
    with suppress(CorruptStore, UnsafeLocation), opened(home, "addons", "tsuku-llm") as first:
        if first is not None:
            versions = [name for name in first.names() if _is_version(first, name)]
            if versions or _files(first):
                if remove:
                    _remove(first, versions)
                    with suppress(OSError):  # foreign files are in it
                        first.path.rmdir()
                yield LegacyAddon(first.path, "tsuku's first addon")
    with suppress(CorruptStore, UnsafeLocation), opened(home, "tools", "tsuku-llm") as second:
        if second is not None:
            versions = [name for name in second.names() if _is_version(second, name)]
            files = _files(second)
            if remove:
                _remove(second, versions)
            for name in files:
                yield LegacyAddon(second.path / name, "tsuku's addon without a version")
            for name in versions:
                yield LegacyAddon(second.path / name, f"tsuku's addon {name}")


def _files(folder: Folder) -> list[str]:
    """List the addon's files in a folder: of its names, regular, and this user's or root's."""
    return [name for name in (*_PROGRAMS, *_BESIDE) if folder.is_file(name)]


def _is_version(folder: Folder, name: str) -> bool:
    if not _VERSION.fullmatch(name) or not folder.is_folder(name):
        return False
    with folder.inner(name) as version:
        return any(map(version.is_file, _PROGRAMS))


def _remove(folder: Folder, versions: list[str]) -> None:
    for name in versions:
        with folder.inner(name) as version:
            for file in _files(version):
                version.unlink(file)
        with suppress(OSError):  # foreign files are in it
            folder.rmdir(name)
    for file in _files(folder):
        folder.unlink(file)
