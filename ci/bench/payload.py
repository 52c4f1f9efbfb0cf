"""Builds of real sizes, packed as real builds are.

The content is machine code from this machine's largest shared libraries, mixed with enough random
bytes that it compresses to a half, as CUDA builds do: their kernels are already compressed.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
import random
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.builds import NO_DEVICE_STEPS, stand_in

from tsuku_llm.catalog.manifest import PIECE, Measured
from tsuku_publish.packing.pack import Place, pack_tree
from tsuku_publish.packing.tree import contents

BLOCK = 1 << 20
RANDOM_SHARE = 0.25
SHARES = (0.40, 0.25, 0.15, 0.10)
"""Sizes of the largest files: CUDA's libraries are most of a build. The rest are small files."""

SMALL_FILES = 28
_LARGE = ("lib00.so", "lib01.so", "lib02.so")
"""The files that do not change from one build to the next."""

_LIBRARIES = 8
# A fixed time, so that the same tree gives the same archive.
_EPOCH = (2026, 10, 5, 0, 0, 0)


@dataclass(frozen=True)
class Packed:
    """An archive: its signed facts, and what it unpacks to (SHA-256 by path)."""

    path: Path
    sha256: str
    size: int
    format: str
    root: str
    pieces: tuple[str, ...]
    contents: Mapping[str, str]

    def artifact(self, url: str, *, pieces: bool = True) -> dict[str, object]:
        """Return the entry of ``artifacts`` in a release, for an archive at ``url``."""
        entry: dict[str, object] = {
            "url": url, "sha256": self.sha256, "size": self.size, "format": self.format,
            "root": self.root,
        }  # fmt: skip
        if pieces:
            entry["pieces"] = {"size": PIECE, "sha256": list(self.pieces)}
        return entry


def write_build(folder: Path, size: int) -> Path:
    """Write a build of about ``size`` bytes around a stand-in for the server."""
    build = stand_in(folder, devices=NO_DEVICE_STEPS)
    small = round(size * (1 - sum(SHARES)) / SMALL_FILES)
    # The four large libraries, then equal small files with the rest of the bytes.
    sizes = [round(size * share) for share in SHARES] + [small] * SMALL_FILES
    for number, bytes_ in enumerate(sizes):
        write_blocks(build.tree / f"lib{number:02}.so", bytes_, seed=number)
    return build.tree


def write_blocks(path: Path, size: int, *, seed: int) -> None:
    """Write one file of ``size`` bytes; another seed gives other bytes."""
    with path.open("wb") as file:
        for block in _blocks(seed):
            left = size - file.tell()
            file.write(block[:left])
            if left <= BLOCK:
                return


def write_random(path: Path, size: int) -> None:
    """Write ``size`` bytes that do not compress."""
    chance = random.Random(size)  # noqa: S311
    with path.open("wb") as file:
        while left := size - file.tell():
            file.write(chance.randbytes(min(BLOCK, left)))


def _blocks(seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)  # noqa: S311
    code = _machine_code()
    while True:
        if chance.random() < RANDOM_SHARE:
            yield chance.randbytes(BLOCK)
            continue
        library = chance.choice(code)
        start = chance.randrange(max(1, len(library) - BLOCK))
        # Random bytes at its start make every block unique: no two files share content.
        yield (chance.randbytes(16) + library[start : start + BLOCK - 16]).ljust(BLOCK)


@functools.cache
def _machine_code() -> list[mmap.mmap]:
    folders = [Path("/usr/lib"), Path(sys.base_prefix) / "lib"]
    found = {path.resolve() for folder in folders for path in folder.glob("**/lib*.so*")}
    largest = sorted(
        (path for path in found if path.is_file()), key=lambda path: (-path.stat().st_size, path)
    )
    maps = []
    for path in [*largest[:_LIBRARIES], Path(sys.executable).resolve()]:
        with path.open("rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return maps


def pack(tree: Path, archive: Path, *, level: int = 1) -> Packed:
    """Pack a tree by the archive's suffix: a tarball with a top folder, or a flat zip file."""
    if archive.suffix == ".zip":
        _pack_zip(tree, archive)
        return _packed(tree, archive, "zip", "")
    with tarfile.open(archive, "w:gz", compresslevel=level, format=tarfile.GNU_FORMAT) as tar:
        tar.add(tree, "build")
    return _packed(tree, archive, "tar.gz", "build")


def _pack_zip(tree: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for path in sorted(tree.iterdir()):
            entry = zipfile.ZipInfo(path.name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | path.stat().st_mode & 0o777) << 16
            with path.open("rb") as source, packed.open(entry, "w", force_zip64=True) as target:
                while block := source.read(BLOCK):
                    target.write(block)


def entries(tree: Path, place: Place) -> tuple[dict[str, object], ...]:
    """Pack a tree as ``tsuku-publish pack`` does, into the server's folder; return the entries."""
    archives = pack_tree(tree, contents(tree), place)
    return tuple(each.artifact.document() for each in archives)


def next_build(tree: Path, folder: Path) -> Path:
    """Write the next build: a fifth of the bytes differ, all but the three largest files."""
    folder.mkdir()
    for number, path in enumerate(sorted(tree.iterdir())):
        if path.name in _LARGE or path.suffix != ".so":
            (folder / path.name).hardlink_to(path)
        else:
            write_blocks(folder / path.name, path.stat().st_size, seed=1000 + number)
    return folder


def plain(path: Path, size: int) -> Packed:
    """Write a file that is only downloaded, never unpacked."""
    if not path.exists():
        write_blocks(path, size, seed=size)
    return _signed(path, "tar.gz", "", {})


def _packed(tree: Path, archive: Path, format_: str, root: str) -> Packed:
    return _signed(archive, format_, root, digests(tree))


def _signed(archive: Path, format_: str, root: str, contents: Mapping[str, str]) -> Packed:
    with archive.open("rb") as file:
        found = Measured.of(file)
    return Packed(archive, found.sha256, found.size, format_, root, found.pieces.sha256, contents)


def digests(tree: Path) -> dict[str, str]:
    """Return the SHA-256 of every file by its path in the tree."""
    found = {}
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(BLOCK):
                digest.update(block)
        found[path.relative_to(tree).as_posix()] = digest.hexdigest()
    return found
