"""What an install takes from other versions instead of a download, and the disk space it needs.

``space_of`` is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.archive.composing import needed_artifacts
from tsuku_llm.archive.placing import Aside
from tsuku_llm.archive.unpack import make_links
from tsuku_llm.catalog.manifest import Artifact, Variant
from tsuku_llm.ground.errors import GateFailed
from tsuku_llm.ground.tree_entry import TreeEntry
from tsuku_llm.store.reuse import confirm, withdraw
from tsuku_llm.store.staging import Staging
from tsuku_llm.store.store import Store


@dataclass(frozen=True, slots=True)
class Reused:
    """An archive whose files were linked into ``folder``; ``known`` has the list of its files.

    The release file lists them, or the receipt of a version that has the same archive.
    """

    artifact: Artifact
    known: Artifact
    folder: Path


def _known(store: Store, artifact: Artifact, kept: Artifact) -> Artifact:
    """Return an archive with its content, which a receipt may tell if no signed list does.

    The archive's digest is signed, and the receipt was written when the archive was verified.
    ``kept`` has what the tree will have of it.
    """
    if artifact.files is None and (found := store.contents_of(artifact.sha256)):
        return replace(artifact, files=found.files, links=found.links)
    return kept


def reuse_files(
    store: Store,
    staging: Staging,
    needed: Iterable[tuple[Artifact, Artifact]],
    *,
    receipts: bool,
) -> tuple[Reused, ...]:
    """Link files of other versions in place of downloads; return the archives that need none.

    An archive is replaced if its files are known with sizes and digests, and every one of them is
    installed and undamaged. Files of one that the release file does not list go where it would be
    unpacked. The linked files must still be verified. ``needed`` is from ``needed_artifacts``.
    Without ``receipts`` only signed lists of files count.
    """
    found: list[Reused] = []
    for artifact, of_tree in needed:
        known = _known(store, artifact, of_tree) if receipts else of_tree
        aside = artifact.files is None
        folder = staging.unpacked / artifact.sha256 if aside else staging.tree
        if store.supply(folder, known.files or ()):
            found.append(Reused(artifact, known, folder))
    return tuple(found)


def verify_reused(staging: Staging, linked: Iterable[Reused]) -> list[Aside]:
    """Hash the files linked for each archive; return the archives whose files are all right.

    For these archives this also makes the listed links. If one file differs, the archive is left
    out and its files are removed: it must be downloaded. Raises ``UnsafeArchive`` for links that
    unpacking would refuse.
    """
    found: list[Aside] = []
    for each in linked:
        files = each.known.files or ()
        if confirm(staging, each.folder, files):
            withdraw(each.folder, files)
        else:
            items: tuple[TreeEntry, ...] = (*files, *make_links(each.known, each.folder))
            found.append(Aside(each.artifact, each.folder, items))
    return found


def to_download(store: Store, variant: Variant, *, receipts: bool) -> tuple[Artifact, ...]:
    """Return the archives that an install would download; ``receipts`` is as in ``reuse_files``."""
    needed = tuple((each, each) for each in variant.artifacts)
    with suppress(GateFailed):  # the install says so
        needed = needed_artifacts(variant)
    return tuple(
        whole
        for whole, part in needed
        if not store.can_supply((_known(store, whole, part) if receipts else part).files or ())
    )


class Space(NamedTuple):
    """Bytes that the artifacts of an install take, as far as the manifest says.

    ``missing`` is what must still be downloaded; ``left`` is the same, None if the manifest does
    not have every size. ``needed`` bytes must be free at least. ``facts`` say it for people.
    """

    missing: int
    left: int | None
    needed: int
    facts: tuple[str, ...]


def space_of(artifacts: Sequence[Artifact], present: Sequence[int]) -> Space:
    """Count the bytes; ``present`` are for each artifact those that an earlier run left."""
    sized = all(each.size is not None for each in artifacts)
    listed = all(each.files is not None for each in artifacts)
    sizes = [each.size or 0 for each in artifacts]
    missing = sum(max(0, size - there) for size, there in zip(sizes, present, strict=True))
    # Without a list of the files, they are at least as large as the archive.
    unpacked = sum(
        size if each.files is None else sum(file.size for file in each.files)
        for size, each in zip(sizes, artifacts, strict=True)
    )
    download, packed = _figure(missing, exact=sized), _figure(sum(sizes), exact=sized)
    facts = (
        f"download: {download} (the archives: {packed})",
        f"unpacking: {_figure(unpacked, exact=listed)}",
        "installing: nothing more, as what was unpacked is renamed",
    )
    return Space(missing, missing if sized else None, missing + unpacked, facts)


def _figure(count: int, *, exact: bool) -> str:
    shown = f"{count / 1e6:.1f} MB"
    if exact:
        return shown
    return f"at least {shown}, the exact size is unknown" if count else "unknown"
