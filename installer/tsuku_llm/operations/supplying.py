"""The archives that need no download, because installed versions have their files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from tsuku_llm.archive import Unpacked, UnpackedFile, make_links
from tsuku_llm.manifest import Artifact
from tsuku_llm.store.receipt import FileRecord
from tsuku_llm.store.staging import Staging
from tsuku_llm.store.store import Store


def supplied(store: Store, staging: Staging, artifacts: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """Link files of other versions into a staged tree; return the archives that this replaces.

    An archive is replaced if the manifest lists its files with sizes and digests, and every one of
    them is installed. The linked files must still be confirmed.
    """
    return tuple(artifact for artifact in artifacts if store.supply(staging, _records(artifact)))


def confirmed(
    store: Store, staging: Staging, artifacts: Sequence[Artifact]
) -> dict[str, tuple[Unpacked, ...]]:
    """Hash the files linked for each archive; return the right contents by the archive's digest.

    For these archives this also makes the listed links. If one file differs, the archive is left
    out and its files are removed: it must be downloaded. Raises ``UnsafeArchive`` for links that
    unpacking would refuse.
    """
    wrong = set(store.confirm(staging, [*chain.from_iterable(map(_records, artifacts))]))
    found: dict[str, tuple[Unpacked, ...]] = {}
    for artifact in artifacts:
        records = _records(artifact)
        if wrong.isdisjoint(record.path for record in records):
            brought = (UnpackedFile(*record) for record in records)
            found[artifact.sha256] = (*brought, *make_links(artifact, staging.tree))
        else:
            store.withdraw(staging, records)
    return found


def unsupplied(store: Store, artifacts: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """Return the archives that an install would download, as far as the receipts tell."""
    return tuple(each for each in artifacts if not store.can_supply(_records(each)))


def _records(artifact: Artifact) -> list[FileRecord]:
    """Return the listed files of an archive; empty if the manifest lists none."""
    files = artifact.files or ()
    return [FileRecord(f.path, f.size, f.sha256, f.executable) for f in files]
