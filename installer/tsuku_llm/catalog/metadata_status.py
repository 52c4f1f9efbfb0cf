"""A cache of verified metadata for starts: revocations, releases on offer, and age.

``serve`` reads it instead of loading the code that verifies. The cache is ``standing.json`` in
each repository's folder. It is written from a verified catalog. It is valid only for exactly the
copies that it was made from: the timestamp of the embedded copy and the name of the updated one,
which is the digest of its timestamp. For any other pair it is ignored, and the metadata is
verified again. Revocations are also kept for ever (``revocations``).

The cache proves nothing, and no install relies on it. A user who can write it can also replace
the server. Other users can only cause one more verification.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from tsuku_llm.catalog import embedded, revocations
from tsuku_llm.catalog.revocations import ADDED, Revocation
from tsuku_llm.ground import records
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import ClockBehind, StaleMetadata, StoreError
from tsuku_llm.ground.files import make_folder, read_small, write_note
from tsuku_llm.ground.own_name import TSUKU

CURRENT = "current"
"""The file that names the current updated copy."""

SKEW = timedelta(days=1)
"""The most that a clock may be behind the date of a signature; beyond that it is wrong."""

_FILE = "standing.json"  # the name from before this module was renamed: stores have it
_REFRESHED = "refreshed.json"
_FORMAT = 2
_LIMIT = 8 << 20
_CLOCK_HINT = "set this machine's clock: without it, expiry cannot be checked"


class Freshness(NamedTuple):
    """The age of metadata; times in UTC.

    ``signed`` is the newest date of a signature, None if the publisher does not say. ``expires``
    is when the first role expires.
    """

    repository: str
    signed: datetime | None
    expires: datetime

    def clock_problem(self, now: datetime) -> str | None:
        """Explain why this machine's clock must be wrong; None if it is not before ``signed``.

        A clock may be behind by ``SKEW``.
        """
        if self.signed is None or now >= self.signed - SKEW:
            return None
        return (
            f"this machine's clock says {now:%Y-%m-%d}, and the metadata of {self.repository} "
            f"was signed on {self.signed:%Y-%m-%d}: the clock was set back, or never set"
        )

    def expired(self, now: datetime) -> bool:
        """Tell whether it has expired: a newer release or a revocation may be missing."""
        return self.expires <= now

    def age(self, now: datetime) -> str:
        """Describe the age, for people."""
        if self.signed is None:
            return f"of unknown age, valid until {self.expires:%Y-%m-%d}"
        # No age by a clock that was set back: the date of a signature may be tomorrow's by it.
        age = f" ({days(now - self.signed)})" if not self.clock_problem(now) else ""
        return f"signed on {self.signed:%Y-%m-%d}{age}"

    def warning(self, now: datetime) -> str | None:
        """Return the warning for a user of this metadata; None if it is fresh."""
        if problem := self.clock_problem(now):
            return problem
        if not self.expired(now):
            return None
        return (
            f"the metadata of {self.repository} was {self.age(now)} and expired on "
            f"{self.expires:%Y-%m-%d}: a newer release or a revocation may be missing; "
            f"to fetch it: {TSUKU} repository refresh {self.repository}"
        )

    def require_clock(self, now: datetime) -> None:
        """Raise ``ClockBehind`` if the clock was set back."""
        if problem := self.clock_problem(now):
            raise ClockBehind(problem, hint=_CLOCK_HINT)

    def require(self, now: datetime) -> None:
        """Raise ``ClockBehind`` or ``StaleMetadata`` unless the metadata is fresh."""
        self.require_clock(now)
        if self.expired(now):
            raise StaleMetadata(
                f"the metadata of {self.repository} expired on {self.expires:%Y-%m-%d}",
                facts=(f"it was {self.age(now)}", "fresh metadata is required by the settings"),
                hint=f"fetch it: {TSUKU} repository refresh {self.repository}",
            )


class MetadataStatus(NamedTuple):
    """The content of a repository's metadata that a start needs.

    ``revoked`` also has revocations that were seen before and are no longer in the metadata.
    ``offered`` are the releases that are in a channel.
    """

    freshness: Freshness
    revoked: tuple[Revocation, ...]
    offered: tuple[str, ...]


def days(span: timedelta) -> str:
    """Describe a span of time in whole days, for people."""
    count = max(span.days, 0)
    return f"{count} day{'' if count == 1 else 's'} ago"


def folder_of(data: Path, repository: str) -> Path:
    """Return the folder of a repository's metadata."""
    return data / "metadata" / repository


def configured(data: Path) -> tuple[str, ...]:
    """List the official repository and those that the user added and did not remove.

    Raises ``StoreError``.
    """
    names = [name for name in revocations.repository_names(data) if name != embedded.REPOSITORY]
    with disk_errors("listing the repositories", data):
        added = [name for name in names if (folder_of(data, name) / ADDED).is_file()]
    return (embedded.REPOSITORY, *added)


def has_metadata(data: Path, repository: str) -> bool:
    """Tell whether this machine has metadata of a repository to verify. Raises ``StoreError``."""
    if repository == embedded.REPOSITORY:
        return True
    with disk_errors("reading the metadata", data):
        return (folder_of(data, repository) / CURRENT).is_file()


def read(data: Path, repository: str) -> MetadataStatus | None:
    """Read the cache if it was written for exactly the present copies.

    None if it is missing, unreadable, or about other copies.
    """
    path = folder_of(data, repository) / _FILE
    with suppress(StoreError, ValueError):
        found = records.parse(read_small(path, _LIMIT) or b"null", _READ)
        if found["of"] == _copies(data, repository):
            freshness = Freshness(repository, found["signed"], found["expires"])
            revoked = revocations.parse(repository, found["revoked"])
            return MetadataStatus(freshness, revoked, found["offered"])
    return None


def write(data: Path, status: MetadataStatus) -> None:
    """Write the cache for the present copies, unless it is the same; keep the revocations.

    Raises ``StoreError``.
    """
    freshness = status.freshness
    # The revocations first: if the cache then cannot be written, none of them is lost.
    revocations.remember(data, freshness.repository, status.revoked)
    if read(data, freshness.repository) == status:
        return
    folder = folder_of(data, freshness.repository)
    document = {
        "format": _FORMAT,
        "of": _copies(data, freshness.repository),
        "signed": freshness.signed and _text(freshness.signed),
        "expires": _text(freshness.expires),
        "revoked": revocations.plain(status.revoked),
        "offered": list(status.offered),
    }
    with disk_errors("saving the status of the metadata", folder):
        make_folder(folder)
        # Several starts may write at the same time. The file is not replaced but overwritten: if it
        # gets damaged, ``read`` refuses it, and the next start verifies the metadata again.
        write_note(folder / _FILE, records.encode(document))


def refreshed(data: Path, repository: str) -> datetime | None:
    """Return when the repository last gave a valid answer, in UTC; None if not known.

    Like ``standing.json``, it is valid only for the present copies.
    """
    path = folder_of(data, repository) / _REFRESHED
    with suppress(StoreError, ValueError):
        found = records.parse(read_small(path, _LIMIT) or b"null", _READ_REFRESHED)
        if found["of"] == _copies(data, repository):
            at: datetime = found["at"]
            return at
    return None


def note_refresh(data: Path, repository: str, now: datetime) -> None:
    """Note that the repository gave a valid answer. Raises ``StoreError``."""
    folder = folder_of(data, repository)
    document = {"format": _FORMAT, "of": _copies(data, repository), "at": _text(now)}
    with disk_errors("saving when the metadata was fetched", folder):
        make_folder(folder)
        write_note(folder / _REFRESHED, records.encode(document))


def _copies(data: Path, repository: str) -> dict[str, Any]:
    """Identify the present copies, embedded and updated, among all others."""
    is_ours = repository == embedded.REPOSITORY
    own = embedded.read("metadata/timestamp.json") if is_ours else None
    updated = read_small(folder_of(data, repository) / CURRENT, 100)
    return {"embedded": own and own.decode(), "updated": updated and updated.decode()}


def _time(value: Any, name: str) -> datetime:
    written = records.text(value, name).removesuffix("Z")
    return datetime.fromisoformat(written).replace(tzinfo=timezone.utc)


def _text(time: datetime) -> str:
    return f"{time.replace(tzinfo=None).isoformat(timespec='seconds')}Z"


_READ = records.fields(
    {
        "of": records.mapping,
        "signed": records.optional(_time),
        "expires": _time,
        "revoked": records.anything,
        "offered": records.many(records.text),
    },
    format=_FORMAT,
)
_READ_REFRESHED = records.fields({"of": records.mapping, "at": _time}, format=_FORMAT)
