"""What need not be fetched, because installed versions have it already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from tsuku_llm.archive import Unpacked, UnpackedFile, make_links
from tsuku_llm.manifest import Artifact
from tsuku_llm.store import FileRecord, Staging, Store


def supplied(store: Store, staging: Staging, artifacts: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """Link what other versions have into a staged tree; the archives that it stands in for.

    An archive is left out if the manifest lists its files, with sizes and digests, and every
    one of them is installed. What was linked is to be confirmed.
    """
    return tuple(artifact for artifact in artifacts if store.supply(staging, _records(artifact)))


def confirmed(
    store: Store, staging: Staging, artifacts: Sequence[Artifact]
) -> dict[str, tuple[Unpacked, ...]]:
    """Hash what was linked in the place of archives; what it is, by the archive's digest.

    The links of an archive are then made as they are listed. One of which a file is not what
    it should be is missing, and its files are gone again: it has to be fetched. Raises
    ``UnsafeArchive`` for links that unpacking it would refuse.
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
    """Those that an install would fetch, as far as the receipts of other versions tell."""
    return tuple(each for each in artifacts if not store.can_supply(_records(each)))


def _records(artifact: Artifact) -> list[FileRecord]:
    """Its listed files; none where the manifest lists none."""
    files = artifact.files or ()
    return [FileRecord(f.path, f.size, f.sha256, f.executable) for f in files]
