"""The files of tsuku's earlier addon of the same name.

It was one program, first in ``addons/tsuku-llm``, then in ``tools/tsuku-llm``, then in a folder
per version in ``tools/tsuku-llm``. ``tools/tsuku-llm-<version>`` are tsuku's own tools: this
module never touches them.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import remove_tree

_PROGRAMS = ("tsuku-llm", "tsuku-llm.exe")
_BESIDE = (".download.lock", "tsuku-llm.tmp", "tsuku-llm.exe.tmp")


@dataclass(frozen=True, slots=True)
class LegacyAddon:
    """A path of the earlier addon, with a description for people."""

    path: Path
    what: str


def find_legacy(home: Path) -> tuple[LegacyAddon, ...]:
    """Find the earlier addon's files below ``home`` (tsuku's folder). Raises StoreError."""
    with disk_errors("looking for tsuku's earlier addon", home):
        return tuple(_found(home))


def remove_legacy(home: Path) -> tuple[LegacyAddon, ...]:
    """Remove exactly what ``find_legacy`` finds; return it. Raises StoreError."""
    found = find_legacy(home)
    with disk_errors("removing tsuku's earlier addon", home):
        for addon in found:
            if _is_folder(addon.path):
                remove_tree(addon.path)
            else:
                addon.path.unlink()
    return found


def _found(home: Path) -> Iterator[LegacyAddon]:
    first, second = home / "addons" / "tsuku-llm", home / "tools" / "tsuku-llm"
    if _is_folder(first):
        yield LegacyAddon(first, "tsuku's first addon")
    if not _is_folder(second):
        return
    for path in sorted(second.iterdir()):
        if path.name in (*_PROGRAMS, *_BESIDE) and _is_file(path):
            yield LegacyAddon(path, "tsuku's addon without a version")
        elif _is_folder(path) and any(_is_file(path / program) for program in _PROGRAMS):
            yield LegacyAddon(path, f"tsuku's addon {path.name}")


def _is_folder(path: Path) -> bool:
    """Tell whether the path itself is a folder; the target of a link is not ours."""
    return path.is_dir() and not path.is_symlink()


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
