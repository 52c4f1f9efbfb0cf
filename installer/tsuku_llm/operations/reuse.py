"""What an install takes from other versions instead of a download, and the disk space it needs.

``Space`` is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tsuku_llm.archive import make_links
from tsuku_llm.manifest import Artifact
from tsuku_llm.store.staging import Staging
from tsuku_llm.store.store import Store
from tsuku_llm.tree_entry import TreeEntry


def reuse_files(
    store: Store, staging: Staging, artifacts: Iterable[Artifact]
) -> tuple[Artifact, ...]:
    """Link files of other versions into a staged tree; return the archives that this replaces.

    An archive is replaced if the manifest lists its files with sizes and digests, and every one of
    them is installed. The linked files must still be verified.
    """
    return tuple(artifact for artifact in artifacts if store.supply(staging, artifact.files or ()))


def verify_reused(
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


def to_download(store: Store, artifacts: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """Return the archives that an install would download, as far as the receipts tell."""
    return tuple(each for each in artifacts if not store.can_supply(each.files or ()))


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes that the artifacts of an install take, as far as the manifest says.

    ``present`` has for each artifact the bytes that an earlier run left on the disk.
    """

    artifacts: Sequence[Artifact]
    present: Sequence[int]

    @property
    def packed(self) -> int:
        """The size of the archives, as far as it is published."""
        return sum(artifact.size or 0 for artifact in self.artifacts)

    @property
    def missing(self) -> int:
        """The part of the archives that must still be downloaded."""
        pairs = zip(self.artifacts, self.present, strict=True)
        return sum(max(0, (artifact.size or 0) - present) for artifact, present in pairs)

    @property
    def left(self) -> int | None:
        """The same, None if the manifest does not have every size."""
        sized = all(artifact.size is not None for artifact in self.artifacts)
        return self.missing if sized else None

    @property
    def unpacked(self) -> int:
        """The size of the files in the archives; without a list, the size of the archive."""
        return sum(
            (artifact.size or 0)
            if artifact.files is None
            else sum(file.size for file in artifact.files)
            for artifact in self.artifacts
        )

    @property
    def needed(self) -> int:
        """The bytes that must be free at least.

        A rename installs the unpacked files: it takes no space.
        """
        return self.missing + self.unpacked

    @property
    def facts(self) -> tuple[str, ...]:
        """The figures in words for people; what is unknown is called unknown."""
        sized = all(artifact.size is not None for artifact in self.artifacts)
        listed = all(artifact.files is not None for artifact in self.artifacts)
        missing, packed = _figure(self.missing, exact=sized), _figure(self.packed, exact=sized)
        return (
            f"download: {missing} (the archives: {packed})",
            f"unpacking: {_figure(self.unpacked, exact=listed)}",
            "installing: nothing more, as what was unpacked is renamed",
        )


def _figure(count: int, *, exact: bool) -> str:
    shown = f"{count / 1e6:.1f} MB"
    if exact:
        return shown
    return f"at least {shown}, the exact size is unknown" if count else "unknown"
