"""The disk space that an install takes, computed before anything is downloaded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tsuku_llm.manifest import Artifact


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
