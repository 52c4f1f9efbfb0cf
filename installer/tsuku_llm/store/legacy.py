"""What tsuku's earlier addon of the same name left behind.

It was one program, in ``addons/tsuku-llm`` at first, then in ``tools/tsuku-llm``, then in
a folder per version there. tsuku's own tools (``tools/tsuku-llm-<version>``) are not ours
to touch.
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
    """A path that the earlier addon left, and what it is, for people."""

    path: Path
    what: str


def find_legacy(home: Path) -> tuple[LegacyAddon, ...]:
    """What the earlier addon left below ``home`` (tsuku's own folder). Raises StoreError."""
    with disk_errors("looking for tsuku's earlier addon", home):
        return tuple(_found(home))


def remove_legacy(home: Path) -> tuple[LegacyAddon, ...]:
    """Remove what ``find_legacy`` finds, and nothing beside it. Raises StoreError."""
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
    """Whether it is a folder itself: what a link names is somebody else's."""
    return path.is_dir() and not path.is_symlink()


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
