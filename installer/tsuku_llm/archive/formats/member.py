"""The description of an archive's member, and the errors that all readers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tsuku_llm.ground.errors import UnsafeArchive
from tsuku_llm.ground.own_name import TSUKU

CHUNK = 1 << 20
"""Bytes copied at a time."""


Chunk = bytes | memoryview
"""A part of a member's content."""


def _nothing() -> Iterator[Chunk]:
    return iter(())


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
    content: Callable[[], Iterator[Chunk]] = _nothing
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
