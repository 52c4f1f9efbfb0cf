"""Promoted releases: what people took from a delegated channel into one that they sign themselves.

``promoted.json`` is next to ``repository.toml``. It pins the digest that the channel had, so the
release file that people sign is the one that users of the channel have tried.
"""

from collections.abc import Iterable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from tsuku_llm.ground.files import replace_file
from tsuku_publish.errors import PublishError, reading
from tsuku_publish.release_files.documents import json_bytes
from tsuku_publish.release_files.sightings import Sighting

NAME = "promoted.json"
PROBATION = timedelta(hours=72)
LONGEST_REASON = 300


class Promotion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A release that people took from ``origin``, a delegated channel.

    ``because`` is the reason for not waiting; empty if the channel had it for long enough.
    """

    release: str
    origin: str
    sha256: str
    on: date
    because: str = ""

    @property
    def custom(self) -> dict[str, Any]:
        """What is signed with the release: where it comes from, and why it did not wait."""
        told = {"from": self.origin, "on": self.on.isoformat()}
        return told | ({"because": self.because} if self.because else {})


def load_promoted(path: Path, content: bytes | None) -> tuple[Promotion, ...]:
    """Return every promotion of a file's content; none without it. Raises ``PublishError``."""
    if content is None:
        return ()
    with reading(path):
        return tuple(msgspec.json.decode(content, type=list[Promotion]))


def save_promoted(data: Path, promotions: Iterable[Promotion]) -> None:
    """Write the promotions; of one release, the last one counts."""
    last = {each.release: each for each in promotions}
    replace_file(data / NAME, json_bytes(msgspec.to_builtins(list(last.values()))))


def promotion(
    release: str,
    origin: str,
    stated: Sighting,
    seen: Sighting,
    now: datetime,
    because: str,
) -> Promotion:
    """Return the promotion of a release that its channel has had for long enough.

    ``stated`` is what the channel's signer says, ``seen`` what this user saw. Raises
    ``PublishError`` with the time that is left, unless there is a reason not to wait.
    """
    if because and (not because.isprintable() or len(because) > LONGEST_REASON):
        raise PublishError(f"a reason is one line of 1 to {LONGEST_REASON} characters")
    age = now - max(stated.time, seen.time)
    if age < PROBATION and not because.strip():
        raise PublishError(
            f"{release} is too young: {origin} must have had it for {_hours(PROBATION)}, "
            f"left: {_hours(PROBATION - age)}",
            facts=(
                f"{origin} states: since {stated.time:%Y-%m-%d %H:%M} UTC",
                f"seen by you: since {seen.time:%Y-%m-%d %H:%M} UTC",
            ),
            hint="run check once a day: it records what you saw; "
            "or say why it cannot wait: --because REASON",
        )
    # A reason that was not needed is not signed: it would say that nobody waited.
    return Promotion(release, origin, seen.sha256, now.date(), because if age < PROBATION else "")


def _hours(length: timedelta) -> str:
    """Return a length in hours, rounded up: a promise that a minute later still holds."""
    hours = -(-length // timedelta(hours=1))
    return f"{hours} hour{'' if hours == 1 else 's'}"
