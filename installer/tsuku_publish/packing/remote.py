"""Builds that somebody else serves: downloaded once, measured, and named where they are."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urldefrag

from tsuku_llm.archive.unpack import unpack
from tsuku_llm.catalog.manifest import Artifact, Measured
from tsuku_llm.fetch import Network, fetch
from tsuku_llm.fetch.http.urls import shown
from tsuku_llm.ground.errors import UnsafeArchive, UsageError
from tsuku_llm.ground.foreign import open_foreign
from tsuku_llm.ground.tree_entry import FileEntry, LinkEntry, TreeEntry
from tsuku_publish.packing.pack import PackedArchive, format_of, require_fetchable
from tsuku_publish.packing.tree import contents, without_top

_DIGEST = re.compile(r"sha256=([0-9a-f]{64})")


def is_remote(build: str) -> bool:
    """Tell whether a build is named by its URL, and not by its path."""
    return build.startswith("https://")


@contextmanager
def downloaded(
    builds: Sequence[str], network: Network
) -> Iterator[tuple[Path, tuple[TreeEntry, ...], tuple[PackedArchive, ...]]]:
    """Yield the one tree of these archives, its entries, and the archives as users fetch them.

    Raises ``UsageError`` for a URL without its digest and for archives with the same file,
    ``UnsafeArchive``, and the errors of the network and the disk.
    """
    with tempfile.TemporaryDirectory(prefix="tsuku-publish-") as aside:
        tree = Path(aside, "tree")
        tree.mkdir()
        entries: list[TreeEntry] = []
        archives = []
        for number, build in enumerate(builds):
            named = _named(build)
            path = fetch(named, Path(aside, "archives"), network)
            unpacked = Path(aside, str(number))
            unpacked.mkdir()
            try:
                unpack(path, named, unpacked)
            except UnsafeArchive as error:
                error.hint = "name another archive"
                raise
            top, items = without_top(unpacked, contents(unpacked))
            if twice := {each.path for each in items} & {each.path for each in entries}:
                raise UsageError(
                    "two archives of a variant have the same file",
                    facts=(min(twice),),
                    hint="name only archives that belong together",
                )
            for item in items:
                (tree / item.path).parent.mkdir(parents=True, exist_ok=True)
                (top / item.path).rename(tree / item.path)
            entries += items
            served = _artifact(named, path, unpacked, top, items)
            archives.append(PackedArchive(None, served, written=False))
        yield tree, tuple(sorted(entries, key=lambda each: each.path)), tuple(archives)


def _named(build: str) -> Artifact:
    url, fragment = urldefrag(build)
    require_fetchable(url)
    digest = _DIGEST.fullmatch(fragment)
    kind = format_of(url)
    if digest is None or kind is None:
        raise UsageError(
            f"{shown(url)} is no archive with its digest",
            facts=("an archive ends with .tar.gz, .tgz or .zip",),
            hint="write its digest, as its publisher states it, behind the URL: "
            "URL#sha256=64 hexadecimal digits",
        )
    return Artifact(url=url, sha256=digest[1], size=None, format=kind)


def _artifact(
    named: Artifact, path: Path, unpacked: Path, top: Path, items: Sequence[TreeEntry]
) -> Artifact:
    with open_foreign(path) as file:
        measured = Measured.of(file)
    return Artifact(
        url=named.url,
        sha256=named.sha256,
        size=measured.size,
        format=named.format,
        root="" if top == unpacked else top.name,
        files=tuple(item for item in items if isinstance(item, FileEntry)),
        links=tuple(item for item in items if isinstance(item, LinkEntry)),
        pieces=measured.pieces,
    )
