"""The description of an archive's member, the limits of an archive, and the readers' errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.ground.errors import UnsafeArchive
from tsuku_llm.ground.own_name import TSUKU

MEMBERS = 10_000
"""Limit on members if the manifest lists no files; builds with ROCm's kernels have thousands."""

RATIO = 20
"""Limit on unpacked to packed size if no files are listed; builds of llama.cpp reach 5."""

SLACK = 64 << 20
"""Bytes that every archive may unpack to, even if its packed size is tiny."""

LARGEST = 16 << 30


@dataclass(slots=True)
class Budget:
    """The limits of one archive, in bytes after decompression and in members, and what is used.

    The bytes include headers. It does not lock: only the thread that reads the archive's headers
    counts.
    """

    size: int
    members: int
    _spent: int = field(default=0, init=False)
    _seen: int = field(default=0, init=False)

    @classmethod
    def of(cls, artifact: Artifact, packed: int | None) -> Budget:
        """Compute the limits from the manifest; ``packed`` is the archive's size in bytes.

        Listed files limit an archive exactly, up to the container's overhead. Without them,
        the packed size limits it.
        """
        if artifact.files is not None:
            # Folders and header extensions count as members too: up to four for each listed
            # path, with up to 4096 bytes each.
            count = 4 * (len(artifact.files) + len(artifact.links)) + 16
            size = sum(file.size for file in artifact.files) + 4096 * count
            # Of a wheel the list chooses some members: the others are counted, and never unpacked.
            return cls(size, MEMBERS if artifact.format == "wheel" else count)
        if packed is None:
            packed = artifact.size or 0
        return cls(min(LARGEST, SLACK + RATIO * packed), MEMBERS)

    def spend(self, size: int) -> None:
        """Count bytes; raise ``UnsafeArchive`` if they exceed the budget."""
        self._spent += size
        if self._spent > self.size:
            limit = f"limit: {self.size} bytes"
            raise unsafe("it unpacks to more bytes than allowed", facts=(limit,))

    def member(self) -> None:
        """Count a member; raise ``UnsafeArchive`` if there are too many."""
        self._seen += 1
        self.check_members(self._seen)

    def check_members(self, count: int) -> None:
        """Refuse a number of members that a container announces before they are read."""
        if count > self.members:
            limit = f"limit: {self.members}"
            raise unsafe("it has more members than allowed", facts=(limit,))


CHUNK = 1 << 20
"""Bytes copied at a time."""


Chunk = bytes | memoryview
"""A part of a member's content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member as its container describes it: only the container is checked yet.

    ``size`` is the number of bytes that ``content`` yields. ``target`` is that of a link. The
    caller must read a member's content before it requests the next member. If the member is
    ``alone`` (packed by itself), the content can be read later, in another thread.
    """

    name: str
    kind: Literal["file", "folder", "link"]
    size: int = 0
    executable: bool = False
    target: str = ""
    content: Callable[[], Iterator[Chunk]] = lambda: iter(())
    alone: bool = False


_HINT = (
    "nothing was installed, and another download would bring the same bytes: tell the publisher, "
    f"and choose another variant or release (--backend, --release; see: {TSUKU} backends)"
)
"""The hint for all refused archives: the digest is right, so the publisher signed these bytes."""


def unsafe(what: str, name: str = "", *, facts: tuple[str, ...] = ()) -> UnsafeArchive:
    """Make the error for an archive that must not be installed; ``name`` is shown escaped."""
    member = (f"member: {name[:200]!a}",) if name else ()
    return UnsafeArchive(f"the archive is refused: {what}", facts=(*member, *facts), hint=_HINT)


def malformed(what: str) -> UnsafeArchive:
    """Make the error for an archive that ends early or cannot be decompressed."""
    return UnsafeArchive(f"the archive is malformed: {what}", hint=_HINT)
