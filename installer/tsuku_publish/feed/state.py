"""The settings of the feed, and what it remembers between runs."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import tomli

from tsuku_llm.ground.files import replace_file
from tsuku_llm.ground.foreign import read_foreign
from tsuku_publish.errors import LARGEST_FILE, reading

STATE = "feed.json"
_Count = Annotated[int, msgspec.Meta(ge=1)]


class FeedSettings(msgspec.Struct, frozen=True):
    """``[feed]`` of ``rules.toml``.

    A run takes at most ``take`` new builds for ``channel``, which keeps the newest ``keep``. A
    release that may still change is waited for ``patience_hours``. A build is proposed for
    ``stable`` after ``soak_hours`` in the channel. ``unattested`` says whether a release is taken
    of which no archive has an attestation.
    """

    channel: str = "nightly"
    stable: str = "stable"
    take: _Count = 1
    keep: _Count = 8
    patience_hours: _Count = 12
    soak_hours: _Count = 72
    unattested: bool = False

    @property
    def patience(self) -> timedelta:
        """How long a release that may still change is waited for."""
        return timedelta(hours=self.patience_hours)

    @property
    def soak(self) -> timedelta:
        """How long a build is in the channel before it is proposed for the stable one."""
        return timedelta(hours=self.soak_hours)


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    etag: str = ""
    taken: list[str] = []
    stopped: dict[str, str] = {}
    suspected: dict[str, datetime] = {}


@dataclass
class FeedState:
    """What the feed remembers, in ``feed.json`` of the data.

    ``etag`` names the last list of releases, ``taken`` the releases that the feed recorded,
    ``stopped`` why a release is not taken (again). People remove an entry to have it tried again.
    ``suspected`` is since when a release looks changed or deleted, which a second look must prove.
    Since when the channel has a release is signed with it, and kept in ``since.json``.
    """

    etag: str = ""
    taken: set[str] = field(default_factory=set)
    stopped: dict[str, str] = field(default_factory=dict)
    suspected: dict[str, datetime] = field(default_factory=dict)


def load_settings(data: Path) -> FeedSettings:
    """Read ``rules.toml``. Raises ``PublishError``."""
    path = data / "rules.toml"
    with reading(path):
        raw = tomli.loads(read_foreign(path, LARGEST_FILE).decode("utf-8"))
        return msgspec.convert(raw.get("feed", {}), FeedSettings)


def load_state(data: Path) -> FeedState:
    """Read what earlier runs left; the first run finds nothing. Raises ``PublishError``."""
    path = data / STATE
    if not path.exists():
        return FeedState()
    with reading(path):
        stored = msgspec.json.decode(read_foreign(path, LARGEST_FILE), type=_Stored)
        return FeedState(stored.etag, {*stored.taken}, stored.stopped, stored.suspected)


def save_state(data: Path, state: FeedState) -> None:
    """Write what the next run needs, in lines that people can review."""
    stored = _Stored(
        state.etag,
        sorted(state.taken),
        dict(sorted(state.stopped.items())),
        dict(sorted(state.suspected.items())),
    )
    content = msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n"
    replace_file(data / STATE, content)
