"""Since when a channel has had the digest of each release: what its signer states, and what we saw.

The signer of a delegated channel states ``since`` in each entry, from ``since.json`` in its data. A
thief of its key could state any time. So each promoter also keeps an own record, in a place that no
pull of the data can change, with the time of the own clock. The younger of the two counts.
"""

import hashlib
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import msgspec

from tsuku_llm import trust
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_publish.errors import content_of, reading
from tsuku_publish.release_files.documents import json_bytes

TIME = "%Y-%m-%dT%H:%M:%SZ"
SINCE = "since.json"
"""What the signer of a channel states, next to ``repository.toml``."""


class Sighting(msgspec.Struct, frozen=True):
    """The digest of a release file, and the time at which a channel had it first."""

    sha256: str
    time: Annotated[datetime, msgspec.Meta(tz=True)]


Sightings = Mapping[str, Mapping[str, Sighting]]
"""Channel → release → its sighting."""


def parse_time(text: str) -> datetime:
    """Read a time as it is signed. Raises ``ValueError``."""
    return datetime.strptime(text, TIME).replace(tzinfo=timezone.utc)


def load_sightings(path: Path) -> Sightings:
    """Read a record; empty if there is none. Raises ``PublishError``."""
    content = content_of(path)
    if content is None:
        return {}
    with reading(path):
        return msgspec.json.decode(content, type=dict[str, dict[str, Sighting]])


def save_sightings(path: Path, sightings: Sightings) -> None:
    """Write a record, with its folder."""
    make_folder(path.parent)
    replace_file(path, json_bytes(msgspec.to_builtins(sightings)))


def observe(
    repository: trust.TrustedRepository, first_root: bytes, now: datetime
) -> Mapping[str, Mapping[str, Sighting]]:
    """Record what the delegated channels of a verified repository have now; return the record.

    Each user has a file for each repository, by the root that it begins with.
    Raises ``PublishError`` for a record that is damaged.
    """
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = hashlib.sha256(first_root).hexdigest()[:16]
    path = Path(state) / "tsuku-publish" / "seen" / f"{name}.json"
    known = load_sightings(path)
    found = {}
    for role in (each for each in repository.roles if each not in trust.ROLES):
        targets = repository.targets.values()
        digests = {each.custom["release"]: each.sha256 for each in targets if each.role == role}
        found[role] = seen_now(known, role, digests, now)
    if found:
        save_sightings(path, {**known, **found})
    return found


def stated_by(target: trust.Target) -> Sighting:
    """Return since when its channel has had a release, as its signer states it.

    Without a statement only what the promoter saw counts. Raises ``PublishError``.
    """
    since = target.custom.get("since")
    with reading(f"since of {target.path}"):
        time = parse_time(since) if since else datetime.min.replace(tzinfo=timezone.utc)
    return Sighting(target.sha256, time)


def seen_now(
    known: Sightings, channel: str, digests: Mapping[str, str], now: datetime
) -> dict[str, Sighting]:
    """Return the sightings of a channel that has these digests now (release → SHA-256).

    A release that was gone, or had another digest, begins again.
    """
    before = known.get(channel, {})
    return {
        release: old
        if (old := before.get(release)) is not None and old.sha256 == sha256
        else Sighting(sha256, now)
        for release, sha256 in digests.items()
    }
