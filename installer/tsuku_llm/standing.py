"""What a start wants to know of signed metadata, without loading what verifies it.

``serve`` asks what was revoked, what is still offered and how old the metadata is. The
answers lie in ``standing.json`` beside each repository's metadata. It is written from a
verified catalog and good only for exactly the copies that it was made from: the timestamp of
the embedded copy and the name of the updated one, which is the digest of its timestamp. Any
other pair makes it void, and the metadata is verified anew. What was revoked is also kept for
good (``revocations``).

It is no proof, and nothing is installed by it. Whoever can write it can write the server
beside it as well; everybody else can only lead to metadata being verified once more.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from tsuku_llm import embedded, revocations
from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import make_folder, read_small, write_note
from tsuku_llm.errors import ClockBehind, StaleMetadata, StoreError
from tsuku_llm.revocations import Revocation

CURRENT = "current"
"""The file that names the updated copy that counts."""

ADDED = "repository.json"
"""The file that a repository has while it is one of the user's."""

SKEW = timedelta(days=1)
"""How far a clock may be behind the date of a signature before it cannot be right."""

_FILE = "standing.json"
_REFRESHED = "refreshed.json"
_FORMAT = 2
_LIMIT = 8 << 20
_NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_CLOCK_HINT = "set this machine's clock; without it nobody can tell what has expired"


class Freshness(NamedTuple):
    """How old metadata is; times in UTC.

    ``signed`` is the newest date of a signature, None where the publisher does not say;
    ``expires`` is when the first role expires.
    """

    repository: str
    signed: datetime | None
    expires: datetime

    def clock_problem(self, now: datetime) -> str | None:
        """Why this machine's clock cannot be right: it is before the signatures."""
        if self.signed is None or now >= self.signed - SKEW:
            return None
        return (
            f"this machine's clock says {now:%Y-%m-%d}, and the metadata of {self.repository} "
            f"was signed on {self.signed:%Y-%m-%d}: the clock was set back, or never set"
        )

    def expired(self, now: datetime) -> bool:
        """Whether a newer release or a revocation may be missing from it."""
        return self.expires <= now

    def age(self, now: datetime) -> str:
        """How old it is, for people."""
        if self.signed is None:
            return f"of unknown age, good until {self.expires:%Y-%m-%d}"
        return f"signed on {self.signed:%Y-%m-%d} ({days(now - self.signed)})"

    def warning(self, now: datetime) -> str | None:
        """What to tell whoever goes on with this metadata; None where it is fresh."""
        if problem := self.clock_problem(now):
            return problem
        if not self.expired(now):
            return None
        return (
            f"the metadata of {self.repository} was {self.age(now)} and expired on "
            f"{self.expires:%Y-%m-%d}: a newer release or a revocation may be missing; "
            f"to fetch it: tsuku-llm repository refresh {self.repository}"
        )

    def require_clock(self, now: datetime) -> None:
        """Raise ``ClockBehind`` where the clock was set back."""
        if problem := self.clock_problem(now):
            raise ClockBehind(problem, hint=_CLOCK_HINT)

    def require(self, now: datetime) -> None:
        """Raise ``ClockBehind`` or ``StaleMetadata`` for metadata that is not fresh."""
        self.require_clock(now)
        if self.expired(now):
            raise StaleMetadata(
                f"the metadata of {self.repository} expired on {self.expires:%Y-%m-%d}",
                facts=(f"it was {self.age(now)}", "fresh metadata is required by the settings"),
                hint=f"fetch it: tsuku-llm repository refresh {self.repository}",
            )


class Standing(NamedTuple):
    """What a repository's metadata says of its releases.

    ``revoked`` has also what the metadata says no more, and was seen before. ``offered`` are
    the releases that a channel has.
    """

    freshness: Freshness
    revoked: tuple[Revocation, ...]
    offered: tuple[str, ...]


def days(span: timedelta) -> str:
    """A span of time in whole days, for people."""
    count = max(span.days, 0)
    return f"{count} day{'' if count == 1 else 's'} ago"


def folder_of(data: Path, repository: str) -> Path:
    """Where a repository's metadata lies."""
    return data / "metadata" / repository


def configured(data: Path) -> tuple[str, ...]:
    """The official repository and those that the user added and did not remove."""
    names = revocations.repository_names(data)
    added = (name for name in names if (folder_of(data, name) / ADDED).is_file())
    return (embedded.REPOSITORY, *(name for name in added if name != embedded.REPOSITORY))


def has_metadata(data: Path, repository: str) -> bool:
    """Whether there is metadata of a repository to be verified."""
    is_ours = repository == embedded.REPOSITORY
    return is_ours or (folder_of(data, repository) / CURRENT).is_file()


def read(data: Path, repository: str) -> Standing | None:
    """What was noted about exactly the copies of now.

    None where there is nothing, something else, or something about other copies.
    """
    path = folder_of(data, repository) / _FILE
    with suppress(StoreError, *_NOT_OURS):
        document = json.loads(read_small(path, _LIMIT) or b"null")
        if document["format"] == _FORMAT and document["of"] == _copies(data, repository):
            signed, expires = document["signed"], _time(document["expires"])
            revoked = revocations.parse(repository, document["revoked"])
            offered = tuple(str(tag) for tag in document["offered"])
            freshness = Freshness(repository, signed and _time(signed), expires)
            return Standing(freshness, revoked, offered)
    return None


def write(data: Path, standing: Standing) -> None:
    """Note it, for the copies of now, unless that was done; revocations for good.

    Raises ``StoreError``.
    """
    freshness = standing.freshness
    revocations.remember(data, freshness.repository, standing.revoked)
    if read(data, freshness.repository) == standing:
        return
    folder = folder_of(data, freshness.repository)
    document = {
        "format": _FORMAT,
        "of": _copies(data, freshness.repository),
        "signed": freshness.signed and _text(freshness.signed),
        "expires": _text(freshness.expires),
        "revoked": revocations.plain(standing.revoked),
        "offered": list(standing.offered),
    }
    with disk_errors("noting what the metadata says", folder):
        make_folder(folder)
        write_note(folder / _FILE, json.dumps(document).encode("ascii") + b"\n")


def refreshed(data: Path, repository: str) -> datetime | None:
    """When the repository last gave a valid answer, in UTC; None where that is not known.

    Good only for the copies of now, as ``standing.json`` is.
    """
    path = folder_of(data, repository) / _REFRESHED
    with suppress(StoreError, *_NOT_OURS):
        document = json.loads(read_small(path, _LIMIT) or b"null")
        if document["format"] == _FORMAT and document["of"] == _copies(data, repository):
            return _time(document["at"])
    return None


def note_refresh(data: Path, repository: str, now: datetime) -> None:
    """Note that the repository gave a valid answer. Raises ``StoreError``."""
    folder = folder_of(data, repository)
    document = {"format": _FORMAT, "of": _copies(data, repository), "at": _text(now)}
    with disk_errors("noting when the metadata was fetched", folder):
        make_folder(folder)
        write_note(folder / _REFRESHED, json.dumps(document).encode("ascii") + b"\n")


def _copies(data: Path, repository: str) -> dict[str, Any]:
    """What tells the copies of now from all others."""
    is_ours = repository == embedded.REPOSITORY
    own = embedded.read("metadata/timestamp.json") if is_ours else None
    updated = read_small(folder_of(data, repository) / CURRENT, 100)
    return {"embedded": own and own.decode(), "updated": updated and updated.decode()}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=timezone.utc)


def _text(time: datetime) -> str:
    return f"{time.replace(tzinfo=None).isoformat(timespec='seconds')}Z"
