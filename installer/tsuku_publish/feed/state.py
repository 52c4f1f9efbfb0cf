"""The settings of the feed, and what it remembers between runs."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import tomli

from tsuku_llm.ground.files import replace_file
from tsuku_llm.ground.foreign import read_foreign
from tsuku_publish.errors import LARGEST_FILE, PublishError, reading
from tsuku_publish.feed.report import Matter

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


class FeedState(msgspec.Struct, forbid_unknown_fields=True):
    """What the feed remembers, in ``feed.json`` of the data.

    ``etag`` names the last list of releases, ``taken`` the releases that the feed recorded,
    ``stopped`` why a release is not taken (again). People remove an entry to have it tried again.
    ``suspected`` is since when a release looks changed or deleted, which a second look must prove.
    ``looked`` is when each release on offer was last seen as it was recorded. ``held`` are releases
    that were recorded and lack what the last one taken has, each with since when that is so.
    ``news`` is when the channel got its newest build. ``matters`` are what people must do, and
    ``accepted`` what they have accepted. Since when the channel has a release is signed with it,
    and kept in ``since.json``.
    """

    etag: str = ""
    taken: set[str] = set()
    stopped: dict[str, str] = {}
    suspected: dict[str, datetime] = {}
    looked: dict[str, datetime] = {}
    held: dict[str, datetime] = {}
    news: datetime | None = None
    matters: tuple[Matter, ...] = ()
    accepted: set[str] = set()

    def accept(self, key: str) -> None:
        """Accept a matter as it is now. Raises ``PublishError`` if none has this key."""
        found = {each.key: each for each in self.matters}
        if key not in found:
            raise PublishError(
                f"nothing that is to be done is called {key}",
                facts=(f"to be done: {', '.join(found) or 'nothing'}",),
                hint="feed --show prints the list",
            )
        self.accepted |= {*found.pop(key).about}
        self.matters = tuple(found.values())


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
        return msgspec.json.decode(read_foreign(path, LARGEST_FILE), type=FeedState)


def save_state(data: Path, state: FeedState) -> None:
    """Write what the next run needs, in lines that people can review."""
    text = msgspec.json.encode(state, order="deterministic")
    replace_file(data / STATE, msgspec.json.format(text, indent=1) + b"\n")
