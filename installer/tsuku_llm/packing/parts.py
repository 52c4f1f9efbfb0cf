"""Which files of a build go into one archive, so that an update fetches what changed. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from tsuku_llm.archive import Unpacked, UnpackedFile, UnpackedLink
from tsuku_llm.manifest import ARCHIVES

LARGE = 1 << 20
"""Bytes from which a file has an archive of its own: a smaller one is there, at 100 Mbit/s,
before another request would be answered."""


def parted(contents: Sequence[Unpacked], limit: int = ARCHIVES) -> tuple[tuple[Unpacked, ...], ...]:
    """Each large file by itself, the largest first, and all that is small together.

    What has the same bytes stays together, with the links that lead to it, so that every
    archive can be installed, or be left out, by itself. There are ``limit`` parts at most:
    the smallest of the large files are then counted as small. Nothing of it depends on the
    order of ``contents``.
    """
    units: dict[str, list[Unpacked]] = {}
    digests = {item.path: item.sha256 for item in contents if isinstance(item, UnpackedFile)}
    targets = {item.path: item.target for item in contents if isinstance(item, UnpackedLink)}
    for item in sorted(contents, key=lambda item: item.path):
        units.setdefault(digests[_file_of(item.path, targets)], []).append(item)
    large = sorted((unit for unit in units.values() if _size(unit) >= LARGE), key=_rank)
    alone = large[: limit - 1]
    rest = [item for unit in units.values() if unit not in alone for item in unit]
    return tuple(tuple(part) for part in (*alone, rest) if part)


def _file_of(path: str, targets: Mapping[str, str]) -> str:
    """The file that a link leads to, over other links; no circle is left when this is asked."""
    while path in targets:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), targets[path]))
    return path


def _size(unit: Sequence[Unpacked]) -> int:
    """Bytes of one of its files: all of them are the same."""
    return next(item.size for item in unit if isinstance(item, UnpackedFile))


def _rank(unit: Sequence[Unpacked]) -> tuple[int, str]:
    return -_size(unit), unit[0].path
