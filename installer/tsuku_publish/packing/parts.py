"""The split of a build into archives, so that an update downloads only what changed. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from tsuku_llm.catalog.manifest import ARCHIVES
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry, TreeEntry

LARGE = 1 << 20
"""The size in bytes from which a file gets an archive to itself. At 100 Mbit/s a smaller file
arrives before the server would have answered another request."""


def parted(
    contents: Sequence[TreeEntry], limit: int = ARCHIVES
) -> tuple[tuple[TreeEntry, ...], ...]:
    """Put each large file into one archive, largest first, and all small files into the last.

    Files with the same bytes stay together, and so do the links that lead to them. So each archive
    can be installed, or left out, without the others. There are at most ``limit`` archives: if
    there are more large files, the smallest of them count as small. The order of ``contents`` does
    not matter.
    """
    # A unit holds the files with the same digest, and the links to them.
    units: dict[str, list[TreeEntry]] = {}
    digests = {item.path: item.sha256 for item in contents if isinstance(item, FileEntry)}
    targets = {item.path: item.target for item in contents if isinstance(item, LinkEntry)}
    for item in sorted(contents, key=lambda item: item.path):
        units.setdefault(digests[_file_of(item.path, targets)], []).append(item)
    large = [unit for unit in units.values() if _size(unit) >= LARGE]
    large.sort(key=lambda unit: (-_size(unit), unit[0].path))
    # One of the ``limit`` archives is for all that is small.
    alone = large[: limit - 1]
    rest = [item for unit in units.values() if unit not in alone for item in unit]
    return tuple(tuple(part) for part in (*alone, rest) if part)


def _file_of(path: str, targets: Mapping[str, str]) -> str:
    """Follow a link, through other links, to its file.

    The caller has refused circles of links before (``contents``).
    """
    while path in targets:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), targets[path]))
    return path


def _size(unit: Sequence[TreeEntry]) -> int:
    """Return the size in bytes of one file of the unit; all its files have the same bytes."""
    return next(item.size for item in unit if isinstance(item, FileEntry))
