"""Bytes that an update downloads, by how its archives are packed.

    python -m ci.bench.updates OLD NEW [NEWER ...]

Each argument is a build: a folder, a ``.tar.gz``, or a wheel of a package index, in which the
copies of one library become links, as upstream packs them. Without arguments, G13's build is used.
Bytes and requests are computed from the archives, for a user with the older build:

- whole: one tarball
- by file: as ``tsuku-publish pack`` does it
- ranges: members of one zip file, whose places the manifest would list
- ranges of pieces: the same, but only whole pieces with a signed digest are read
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from support.builds import pack_tar

from ci.bench import payload
from ci.bench.lab import BUILD
from tsuku_llm.archive.unpack import unpack
from tsuku_llm.catalog.manifest import PIECE, Artifact
from tsuku_llm.ground.tree_entry import FileEntry, TreeEntry
from tsuku_publish.packing.pack import Place, pack_tree
from tsuku_publish.packing.tarball import LEVEL, write_tarball
from tsuku_publish.packing.tree import contents


@dataclass(frozen=True)
class Cost:
    """The bytes and requests that a server must answer."""

    size: int
    requests: int


@dataclass(frozen=True)
class Build:
    """A tree and its items."""

    name: str
    tree: Path
    items: tuple[TreeEntry, ...]

    @property
    def files(self) -> list[FileEntry]:
        """The items without the links."""
        return [item for item in self.items if isinstance(item, FileEntry)]


def main(words: Sequence[str]) -> None:
    """Print a table: a row for each build that follows another."""
    with tempfile.TemporaryDirectory("-updates") as folder:
        builds = [*_builds([Path(word) for word in words], Path(folder))]
        print("| update | changed | whole | by file | ranges | ranges of pieces |")
        print("|---|---|---|---|---|---|")
        for number, (old, new) in enumerate(pairwise(builds)):
            print(_row(old, new, Path(folder, f"packed-{number}")))


def _row(old: Build, new: Build, folder: Path) -> str:
    known = {file.sha256 for file in old.files}
    changed = [file for file in new.files if file.sha256 not in known]
    part = sum(file.size for file in changed) / sum(file.size for file in new.files)
    folder.mkdir()
    costs = (
        _whole(new, folder / "whole.tar.gz"),
        _by_file(new, known, folder / "by-file"),
        *_ranges(new, known, folder / "whole.zip"),
    )
    told = [f"{cost.size / 1e6:.2f} MB, {cost.requests}" for cost in costs]
    about = f"{len(changed)} of {len(new.files)} files, {100 * part:.1f} % of the bytes"
    return f"| {' | '.join((f'{old.name} to {new.name}', about, *told))} |"


def _whole(build: Build, path: Path) -> Cost:
    with path.open("wb") as file:
        write_tarball(build.tree, build.items, file)
    return Cost(path.stat().st_size, 1)


def _by_file(build: Build, known: set[str], folder: Path) -> Cost:
    archives = [
        each.artifact for each in pack_tree(build.tree, build.items, Place(folder, "https://x"))
    ]
    fetched = [
        archive
        for archive in archives
        if any(file.sha256 not in known for file in archive.files or ())
    ]
    return Cost(sum(archive.size or 0 for archive in fetched), len(fetched))


def _ranges(build: Build, known: set[str], path: Path) -> tuple[Cost, Cost]:
    """Return the cost of the changed members alone, and of every piece that they touch."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as packed:
        for file in build.files:
            packed.writestr(file.path, (build.tree / file.path).read_bytes())
        starts = [member.header_offset for member in packed.infolist()]
        end = packed.start_dir
    changed = [
        member
        for file, *member in zip(build.files, starts, [*starts[1:], end], strict=True)
        if file.sha256 not in known
    ]
    size = path.stat().st_size
    pieces = [
        (start // PIECE * PIECE, min(size, -(-end // PIECE) * PIECE)) for start, end in changed
    ]
    return _cost(changed), _cost(pieces)


def _cost(ranges: Sequence[Sequence[int]]) -> Cost:
    """Add up ranges that are in order; ranges that touch are one request."""
    size = requests = last = 0
    for start, end in ranges:
        size += max(0, end - max(start, last))
        requests += not requests or start > last
        last = max(end, last)
    return Cost(size, requests)


# --- the builds --------------------------------------------------------------------------


def _builds(paths: Sequence[Path], folder: Path) -> Iterator[Build]:
    if not paths:
        tree = payload.write_build(folder / "build", BUILD)
        yield _build("G13's build", tree)
        yield _build("its next", payload.next_build(tree, folder / "next"))
    for number, path in enumerate(paths):
        yield _build(_short(path), _tree(path, folder / str(number)))


def _build(name: str, tree: Path) -> Build:
    return Build(name, tree, contents(tree))


def _short(path: Path) -> str:
    """Return a wheel's version, or the name of a folder or archive."""
    return path.name.split("-")[1] if path.suffix == ".whl" else path.name


def _tree(path: Path, folder: Path) -> Path:
    if path.is_dir():
        return path
    if path.suffix == ".whl":
        _unpack(path, "wheel", folder / "wheel")
        (server,) = folder.glob("wheel/**/llama-server")
        path = pack_tar(server.parent, folder / "build.tar.gz", root="build").path
    _unpack(path, "tar.gz", folder / "tree")
    (top,) = (folder / "tree").iterdir()
    return top


def _unpack(path: Path, kind: Literal["wheel", "tar.gz"], into: Path) -> None:
    # A digest of zeros will do: unpacking does not check it.
    artifact = Artifact(url=path.absolute().as_uri(), sha256="0" * 64, format=kind)
    unpack(path, artifact, into)


if __name__ == "__main__":
    main(sys.argv[1:])
