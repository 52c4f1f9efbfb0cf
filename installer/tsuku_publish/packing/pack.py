"""The packing of a build for a repository that the user publishes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tsuku_llm.archive.unpack import unpack
from tsuku_llm.catalog.manifest import Artifact, Measured, can_fetch
from tsuku_llm.fetch.http.urls import shown
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UnsafeArchive, UsageError
from tsuku_llm.ground.files import TEMPORARY_SUFFIX, make_folder, rename, seal_file, unique
from tsuku_llm.ground.foreign import open_foreign
from tsuku_llm.ground.records import documented
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry, TreeEntry
from tsuku_publish.packing.draft import Draft
from tsuku_publish.packing.parts import parted
from tsuku_publish.packing.tarball import write_tarball
from tsuku_publish.packing.tree import without_top

_THREADS = min(4, os.cpu_count() or 1)
_FORMATS: Mapping[str, Literal["tar.gz", "zip"]] = {
    ".tar.gz": "tar.gz",
    ".tgz": "tar.gz",
    ".zip": "zip",
}


@documented("file", "*artifact", "written")
@dataclass(frozen=True, slots=True)
class PackedArchive:
    """An archive as a release file names it.

    ``written`` is False if it was there already. ``file`` is None if another host serves it.
    """

    file: Path | None
    artifact: Artifact
    written: bool


@dataclass(frozen=True, slots=True)
class PackReport:
    """A variant of a release file, and the archives that it consists of now.

    ``not_packed`` names the variants that have no archives yet: the file cannot be signed.
    """

    release_file: Path
    platform: str
    variant: str
    archives: tuple[PackedArchive, ...]
    not_packed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The folder that archives are written to, and the https URL at which it is served."""

    folder: Path
    url: str


def pack(
    build: Path, release: Path, place: Place, *, variant: str, platform: str | None = None
) -> PackReport:
    """Pack a build into a few archives, and enter them for a variant of a release file.

    ``build`` is a folder, or an archive from upstream; a top folder that holds everything is left
    out. ``platform`` is needed if several platforms have such a variant.

    Raises ``UsageError`` for a build that cannot be packed and for a release file that clients
    would not understand, ``UnsafeArchive`` for an archive, and the errors of the disk. The release
    file is replaced in one step, at the end.
    """
    require_usable(place)
    draft = Draft.read(release)
    platform, entry = draft.variant(variant, platform)
    with opened(build, place.folder) as folder:
        tree, items = without_top(folder)
        if entry["server"] not in {item.path for item in items}:
            raise UsageError(
                f"the build has no {entry['server']}",
                facts=("the variant names it as its server",),
                hint="name the folder that holds it, or correct server in the release file",
            )
        archives = pack_tree(tree, items, place)
    entry["artifacts"] = [each.artifact.document() for each in archives]
    # Last: the release file never names an archive that is not complete.
    draft.write()
    return PackReport(release, platform, variant, archives, draft.not_packed)


def pack_tree(tree: Path, items: Sequence[TreeEntry], place: Place) -> tuple[PackedArchive, ...]:
    """Write the files of a tree into the archives of one variant, several at a time.

    An archive's name contains its digest; an archive that exists already is not written again.
    Raises ``UsageError`` for a file that differs from ``items``, and the errors of the disk.
    """
    with disk_errors("packing", place.folder), ThreadPoolExecutor(_THREADS, "pack") as pool:
        make_folder(place.folder)
        # Threads help, as zlib releases the lock of the interpreter. Each part has a separate file,
        # so they share nothing that changes.
        return (*pool.map(lambda part: _archive(tree, part, place), parted(items)),)


def _archive(tree: Path, part: Sequence[TreeEntry], place: Place) -> PackedArchive:
    # A unique name: other threads, or a second run of pack, write into the same folder.
    beside = place.folder / f".{unique()}{TEMPORARY_SUFFIX}"
    try:
        with beside.open("xb") as file:
            write_tarball(tree, part, file)
        measured = measured_file(beside)
        # The name is known only now, because it contains the digest.
        path = place.folder / f"{_stem(part)}-{measured.sha256[:12]}.tar.gz"
        there = path.is_file() and measured_file(path) == measured
        if not there:
            seal_file(beside, 0o644)
            # A web server may be serving this folder: it sees the complete archive or none.
            rename(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    url = f"{place.url.rstrip('/')}/{path.name}"
    return PackedArchive(path, listed(part, url, measured, "tar.gz"), written=not there)


def measured_file(path: Path) -> Measured:
    """Return the size and the digests of an archive. Raises ``OSError``."""
    with open_foreign(path) as file:
        return Measured.of(file)


def _stem(part: Sequence[TreeEntry]) -> str:
    """Return the name of the file that a part was made of; "files" if it was made of several."""
    files = [item for item in part if isinstance(item, FileEntry)]
    if len({file.sha256 for file in files}) > 1:
        return "files"
    # These files have the same bytes; the longest name says most (libggml.so.0.9).
    return max((file.path.rpartition("/")[2] for file in files), key=len)


def listed(
    items: Sequence[TreeEntry],
    url: str,
    measured: Measured,
    kind: Literal["tar.gz", "zip"],
    root: str = "",
) -> Artifact:
    """Return an archive as a release file has it, with what is in its folder ``root``."""
    return Artifact(
        url=url,
        sha256=measured.sha256,
        size=measured.size,
        format=kind,
        root=root,
        files=tuple(item for item in items if isinstance(item, FileEntry)),
        links=tuple(item for item in items if isinstance(item, LinkEntry)),
        pieces=measured.pieces,
    )


def require_fetchable(url: str) -> None:
    """Raise ``UsageError`` for an address that no client downloads from."""
    if not can_fetch(url):
        raise UsageError(
            "archives have to be at an https URL without a user and password",
            facts=(f"given: {shown(url)}",),
            hint="name the address of the folder: --url https://host.example/llm/archives/",
        )


def require_usable(place: Place) -> None:
    """Raise ``UsageError`` if no client downloads from there, or a file has the folder's name."""
    require_fetchable(place.url)
    if place.folder.exists() and not place.folder.is_dir():
        raise UsageError(
            f"{place.folder} is a file, and archives go into a folder",
            hint="name the folder that your web server serves: --into FOLDER",
        )


def format_of(name: str) -> Literal["tar.gz", "zip"] | None:
    """Return the format of an archive by its name; None for any other name."""
    return next((kind for suffix, kind in _FORMATS.items() if name.endswith(suffix)), None)


@contextmanager
def opened(
    build: Path, near: Path, otherwise: str = "the folder that holds the server"
) -> Iterator[Path]:
    """Yield the folder of a build; unpack an archive aside, on the file system of ``near``.

    ``otherwise`` is what else may be named in place of an archive that cannot be unpacked.
    """
    if build.is_dir():
        yield build
        return
    if not build.exists():
        raise UsageError(
            f"there is no file or folder {build}",
            hint="name the folder or the archive that holds the server and its libraries",
        )
    kind = format_of(build.name)
    if kind is None or not build.is_file():
        raise UsageError(
            f"{build} is not a build",
            facts=(f"a folder is one, and an archive that ends with {', '.join(_FORMATS)}",),
            hint="name the folder that holds the server and its libraries",
        )
    with disk_errors("unpacking", near):
        near.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=near) as folder:
            artifact = Artifact(
                url=build.absolute().as_uri(), sha256=measured_file(build).sha256, format=kind
            )
            try:
                unpack(build, artifact, Path(folder))
            except UnsafeArchive as error:
                error.hint = f"name another archive, or {otherwise}"
                raise
            yield Path(folder)
