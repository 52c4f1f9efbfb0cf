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
        files = artifact.files or ()
        records = [FileRecord(f.path, f.size, f.sha256, f.executable) for f in files]
        if store.supply(staging, records):
            brought = (UnpackedFile(f.path, f.size, f.sha256, f.executable) for f in files)
            found[artifact.sha256] = (*brought, *make_links(artifact, staging.tree))
    return found
