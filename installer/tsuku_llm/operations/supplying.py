"""What need not be fetched, because installed versions have it already."""

from __future__ import annotations

from collections.abc import Iterable

from tsuku_llm.archive import UnpackedFile
from tsuku_llm.manifest import Artifact
from tsuku_llm.store import FileRecord, Staging, Store


def supplied(
    store: Store, staging: Staging, artifacts: Iterable[Artifact]
) -> dict[str, tuple[UnpackedFile, ...]]:
    """Link what other versions have into a staged tree; what it is, by the archive's digest.

    An archive is left out if the manifest lists its files, with sizes and digests, every one
    of them is installed, and it brings no links of its own: then it would bring nothing.
    """
    found = {}
    for artifact in artifacts:
        if artifact.files and not artifact.links:
            files = [FileRecord(f.path, f.size, f.sha256, f.executable) for f in artifact.files]
            if store.supply(staging, files):
                found[artifact.sha256] = tuple(
                    UnpackedFile(f.path, f.size, f.sha256, f.executable) for f in files
                )
    return found
