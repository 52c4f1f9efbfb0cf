"""What the container readers say about a member, and the errors they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tsuku_llm.errors import UnsafeArchive

CHUNK = 1 << 20
"""Bytes copied at a time."""


Chunk = bytes | memoryview
"""Some of a member's content."""


def _nothing() -> Iterator[Chunk]:
    return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member as its container describes it: nothing is checked yet but the container.

    ``size`` is in bytes and what ``content`` gives in all; ``target`` is a link's. A
    member's content must be taken before the next member is asked for, unless it lies
    ``alone`` in its container: then it may be taken later, in another thread.
    """

    name: str
    kind: Literal["file", "folder", "link"]
    size: int = 0
    executable: bool = False
    target: str = ""
    content: Callable[[], Iterator[Chunk]] = _nothing
    alone: bool = False


_HINT = (
    "nothing was installed, and another download brings the same bytes: tell the publisher, "
    "and take another variant or release (--backend, --release; see: tsuku-llm backends)"
)
"""The digest is the signed one, so these are the bytes that the publisher signed."""


def unsafe(what: str, name: str = "", *, facts: tuple[str, ...] = ()) -> UnsafeArchive:
    """Make the error for an archive that must not be installed; ``name`` is shown escaped."""
    member = (f"member: {name[:200]!a}",) if name else ()
    return UnsafeArchive(f"the archive is refused: {what}", facts=(*member, *facts), hint=_HINT)


def malformed(what: str) -> UnsafeArchive:
    """Make the error for an archive that ends early or cannot be decompressed."""
    return UnsafeArchive(f"the archive is malformed: {what}", hint=_HINT)
