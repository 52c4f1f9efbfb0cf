"""What need not be fetched, because installed versions have it already."""

from __future__ import annotations

from collections.abc import Iterable

from tsuku_llm.archive import Unpacked, UnpackedFile, make_links
from tsuku_llm.manifest import Artifact
from tsuku_llm.store import FileRecord, Staging, Store


def supplied(
    store: Store, staging: Staging, artifacts: Iterable[Artifact]
) -> dict[str, tuple[Unpacked, ...]]:
    """Link what other versions have into a staged tree; what it is, by the archive's digest.

    An archive is left out if the manifest lists its files, with sizes and digests, and every
    one of them is installed: its links are then made as they are listed. Raises
    ``UnsafeArchive`` for links that unpacking it would refuse.
    """
    found: dict[str, tuple[Unpacked, ...]] = {}
    for artifact in artifacts:
        records = _records(artifact)
        if store.supply(staging, records):
            brought = (UnpackedFile(*record) for record in records)
            found[artifact.sha256] = (*brought, *make_links(artifact, staging.tree))
    return found


def unsupplied(store: Store, artifacts: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """Those that an install would fetch, as far as the receipts of other versions tell."""
    return tuple(each for each in artifacts if not store.can_supply(_records(each)))


def _records(artifact: Artifact) -> list[FileRecord]:
    """Its listed files; none where the manifest lists none."""
    files = artifact.files or ()
    return [FileRecord(f.path, f.size, f.sha256, f.executable) for f in files]
