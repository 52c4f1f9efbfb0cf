"""Makers' libraries in packages of the index, as companions of upstream's builds.

``makers.toml`` has them, in sets that a rule names. A build is whole with all packages of its set.
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
    """Packages that belong together; ``license`` and ``source`` are for those who read the data."""

    license: _Word
    source: _Word
    packages: Annotated[tuple[MakerPackage, ...], msgspec.Meta(min_length=1)]


def load_makers(data: Path) -> Mapping[str, MakerSet]:
    """Read ``makers.toml``, which may be absent. Raises ``PublishError``."""
    path = data / "makers.toml"
    if not path.exists():
        return {}
    with reading(path):
        raw: dict[str, Any] = tomli.loads(read_foreign(path, LARGEST_FILE).decode("utf-8"))
        sets = msgspec.convert(raw, dict[str, MakerSet])
        _require_one_each(sets)
        return sets


def _require_one_each(sets: Mapping[str, MakerSet]) -> None:
    """Refuse two packages of one set that bring the same library. Raises ``PublishError``."""
    for name, each in sets.items():
        taken: dict[str, str] = {}
        for package in each.packages:
            for library in package.take:
                if library in taken:
                    both = f"{taken[library]} and {package.project}"
                    raise PublishError(f"{name}: {library} is taken of {both}")
                taken[library] = package.project
