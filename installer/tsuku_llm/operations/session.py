"""What every operation is given: the machine, the folders, the wishes, and somebody to tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm.host import Host

if TYPE_CHECKING:  # fetch imports the manifest's types, which ``serve`` does without
    from tsuku_llm.fetch import Progress

DEFAULT_CHANNEL = "stable"
INDEX_CHANNEL = "index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One run of the program.

    ``data`` and ``state`` are the folders of design's "state on disk"; ``now`` is in UTC;
    ``note`` tells people one line at once. ``channel`` is None where the user named none:
    then ``install`` may fall to the package index. ``repository`` is None for the official
    one, or for the one that the active version came from. ``prefer`` is a policy of the manifest
    or the user's own order of backends.
    """

    data: Path
    state: Path
    environ: Mapping[str, str]
    host: Host
    now: datetime
    note: Callable[[str], None]
    progress: Progress
    backend: str = "auto"
    prefer: str | tuple[str, ...] = "portable"
    channel: str | None = None
    repository: str | None = None
    repository_url: str | None = None
    mirrors: tuple[str, ...] = ()
