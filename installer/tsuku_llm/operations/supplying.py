"""The archives that need no download, because installed versions have their files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tsuku_llm.archive import make_links
from tsuku_llm.manifest import Artifact
from tsuku_llm.store.staging import Staging
from tsuku_llm.store.store import Store
from tsuku_llm.tree_entry import TreeEntry


def supplied(store: Store, staging: Staging, artifacts: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """Link files of other versions into a staged tree; return the archives that this replaces.

    An archive is replaced if the manifest lists its files with sizes and digests, and every one of
    them is installed. The linked files must still be confirmed.
    """
    return tuple(artifact for artifact in artifacts if store.supply(staging, artifact.files or ()))


def confirmed(
    store: Store, staging: Staging, artifacts: Sequence[Artifact]
) -> dict[str, tuple[TreeEntry, ...]]:
    """Hash the files linked for each archive; return the right contents by the archive's digest.

    For these archives this also makes the listed links. If one file differs, the archive is left
    out and its files are removed: it must be downloaded. Raises ``UnsafeArchive`` for links that
    unpacking would refuse.
    """
    wrong = set(
        store.confirm(staging, [file for artifact in artifacts for file in artifact.files or ()])
    )
    found: dict[str, tuple[TreeEntry, ...]] = {}
    for artifact in artifacts:
        files = artifact.files or ()
        if wrong.isdisjoint(file.path for file in files):
            found[artifact.sha256] = (*files, *make_links(artifact, staging.tree))
        else:
            store.withdraw(staging, files)
    return found


def unsupplied(store: Store, artifacts: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """Return the archives that an install would download, as far as the receipts tell."""
    return tuple(each for each in artifacts if not store.can_supply(each.files or ()))
