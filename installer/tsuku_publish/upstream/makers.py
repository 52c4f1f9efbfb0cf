"""Makers' libraries in packages of the index, as companions of upstream's builds.

``makers.toml`` has them in sets, by a name that a rule gives: one set for each version of a toolkit
that upstream has built with. A build is whole with all packages of its set.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import tomli

from tsuku_llm.ground.foreign import read_foreign
from tsuku_publish.errors import LARGEST_FILE, PublishError, reading
from tsuku_publish.upstream.facts import Asset

_Word = Annotated[str, msgspec.Meta(min_length=1)]
_Words = Annotated[tuple[_Word, ...], msgspec.Meta(min_length=1)]


class MakerPackage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One wheel; ``take`` are the libraries in its folder ``root`` that are installed."""

    project: _Word
    version: _Word
    file: _Word
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, msgspec.Meta(gt=0)]
    root: _Word
    take: _Words

    @property
    def asset(self) -> Asset:
        """The wheel at its package URL: the client's pip fetches it from the maker's own upload."""
        url = f"pkg:pypi/{self.project}@{self.version}?file_name={quote(self.file)}"
        return Asset(self.file, url, self.sha256, self.size)


class MakerSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Packages that belong together, for the tags from ``since`` on, until the next set.

    ``license`` and ``source`` are for those who read the data.
    """

    since: Annotated[str, msgspec.Meta(pattern="^b[0-9]{1,15}$")]
    license: _Word
    source: _Word
    packages: Annotated[tuple[MakerPackage, ...], msgspec.Meta(min_length=1)]

    @property
    def first(self) -> int:
        """The number of the first tag that it is for."""
        return int(self.since[1:])


Makers = Mapping[str, tuple[MakerSet, ...]]
"""The sets of each name, the newest first."""


def load_makers(data: Path) -> Makers:
    """Read ``makers.toml``, which may be absent. Raises ``PublishError``."""
    path = data / "makers.toml"
    if not path.exists():
        return {}
    with reading(path):
        raw: dict[str, Any] = tomli.loads(read_foreign(path, LARGEST_FILE).decode("utf-8"))
        sets = msgspec.convert(raw, dict[str, tuple[MakerSet, ...]])
        for name, each in sets.items():
            if len({one.first for one in each}) != len(each):
                raise PublishError(f"two sets of {name} are for the same tags")
            for one in each:
                _require_one_each(f"{name} since {one.since}", one)
        return {
            name: tuple(sorted(each, key=lambda one: -one.first)) for name, each in sets.items()
        }


def packages_for(sets: tuple[MakerSet, ...], tag: str) -> tuple[MakerPackage, ...]:
    """Return the packages of the set for a tag; none for a tag before the first set."""
    number = int(tag.removeprefix("b"))
    return next((each.packages for each in sets if each.first <= number), ())


def _require_one_each(name: str, packages: MakerSet) -> None:
    """Refuse two packages of one set that bring the same library. Raises ``PublishError``."""
    taken: dict[str, str] = {}
    for package in packages.packages:
        for library in package.take:
            if library in taken:
                both = f"{taken[library]} and {package.project}"
                raise PublishError(f"{name}: {library} is taken of {both}")
            taken[library] = package.project
