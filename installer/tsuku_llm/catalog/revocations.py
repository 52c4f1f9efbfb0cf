"""Revoked releases: the values, and the file that keeps them for ever.

A publisher signs a list of revoked releases. Once this machine has seen an entry, it stays in
``revoked.json`` in the repository's folder. It still counts if the publisher drops it, and if every
copy of the metadata is lost. Only a signed withdrawal ends it. For builds of other repositories it
counts as long as its own repository is one of this machine's: removing that one ends this.
Every start reads these files, so this module imports no large library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from tsuku_llm.catalog import embedded
from tsuku_llm.ground import records
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import CorruptStore, StoreError
from tsuku_llm.ground.files import make_folder, read_small, replace_file
from tsuku_llm.ground.own_name import TSUKU

FILE = "revoked.json"

ADDED = "repository.json"
"""The file that a repository has as long as it is one that the user added."""

LONGEST_REASON = 300
"""The longest reason of a publisher, in characters."""

_FORMAT = 1
_LIMIT = 8 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")


@records.documented("release", "repository", "reason", "date")
class Revocation(NamedTuple):
    """One release that a repository's publisher revoked.

    ``reason`` and ``date`` (UTC, "2026-11-22") are empty if the publisher does not say.
    ``builds`` has, for each variant, the sorted SHA-256 digests of its archives: the same archives
    are the same build in every repository. ``withdrawn`` is the day on which the publisher
    withdrew the revocation, empty if it is in force. ``foreign`` says that the release it was found
    for is of another repository.
    """

    repository: str
    release: str
    reason: str = ""
    date: str = ""
    builds: tuple[tuple[str, ...], ...] = ()
    withdrawn: str = ""
    foreign: bool = False

    @property
    def by(self) -> str:
        """Who revoked the release, in words."""
        return (
            f"repository {self.repository}, which is another one"
            if self.foreign
            else "its publisher"
        )

    @property
    def way_out(self) -> str:
        """What a hint adds for a revocation by another repository, which may not be trusted."""
        remove = f"{TSUKU} repository remove {self.repository}"
        return f"; if you do not trust that repository: {remove}" if self.foreign else ""

    @property
    def day(self) -> str:
        """The day of the entry; empty for one from a release file, which counts as the oldest."""
        return max(self.date, self.withdrawn)

    @property
    def facts(self) -> tuple[str, ...]:
        """The publisher, day and reason of the revocation, as facts for an error."""
        day = f" on {self.date}" if self.date else ""
        by = f"revoked{day} by the publisher of repository {self.repository}"
        return (by, f"reason: {self.reason or 'none is given'}")

    @property
    def summary(self) -> str:
        """The day and reason of the revocation, in one line for a table."""
        day = f" on {self.date}" if self.date else ""
        why = f": {self.reason}" if self.reason else ""
        return f"revoked by {self.by}{day}{why}"

    def of(
        self, repositories: Sequence[str], release: str, builds: Iterable[tuple[str, ...]]
    ) -> Revocation | None:
        """Return it if it is in force for a release of these repositories or for these builds.

        A release's name counts only within its repository. A build is the same in every
        repository. ``builds`` are sorted digests.
        """
        if self.withdrawn:
            return None
        is_own = self.repository in repositories
        if (is_own and self.release == release) or any(build in self.builds for build in builds):
            return self._replace(foreign=not is_own)
        return None


def parse(repository: str, raw: object) -> tuple[Revocation, ...]:
    """Read a list of revocations, signed or stored; unknown fields are ignored.

    Raises ``ValueError`` for anything else: an unreadable entry could be a revocation, so it is
    not skipped.
    """
    found = []
    for entry in records.many(records.mapping)(raw, "the list of revoked releases"):
        release = entry.get("release")
        if type(release) is not str or not _NAME.fullmatch(release):
            raise ValueError(f"{str(release)[:80]!a} is not the name of a release")
        try:
            each = Revocation(repository, release, **_READ(entry, release))
        except ValueError as error:
            raise ValueError(f"{release}: {error}") from error
        # A withdrawal from before the revocation ended an earlier one, not this one.
        found.append(each._replace(withdrawn="") if each.withdrawn < each.date else each)
    if len({each.release for each in found}) != len(found):
        raise ValueError("a release is in the list of revoked releases twice")
    return tuple(found)


def _builds(value: Any, name: str) -> tuple[tuple[str, ...], ...]:
    builds = records.many(records.many(records.digest))(value, name)
    if not all(builds):
        raise ValueError(f"{name} has a build without archives")
    return tuple(sorted(tuple(sorted(build)) for build in builds))


_DAY = records.matching(r"(?:[0-9]{4}-[0-9]{2}-[0-9]{2})?")
_READ = records.fields(
    {
        "reason": records.checked(str, lambda reason: len(reason) <= LONGEST_REASON),
        "date": _DAY,
        "builds": _builds,
        "withdrawn": _DAY,
    },
    since={"reason": "", "date": "", "builds": [], "withdrawn": ""},
)


def plain(revocations: Iterable[Revocation]) -> list[dict[str, Any]]:
    """Convert revocations to the list that ``parse`` reads."""
    return [
        {
            "release": each.release,
            "reason": each.reason,
            "date": each.date,
            "builds": [list(build) for build in each.builds],
            **({"withdrawn": each.withdrawn} if each.withdrawn else {}),
        }
        for each in revocations
    ]


def merged(*lists: Iterable[Revocation]) -> tuple[Revocation, ...]:
    """Merge lists of one repository; the entry with the latest day counts for each release.

    On the same day, the later list counts. An older list, or one without the release, changes
    nothing: neither older metadata nor a missing entry ends a revocation. Builds that were
    revoked under one name add up.
    """
    held: dict[str, Revocation] = {}
    for each in chain(*lists):
        known = held.get(each.release, each)
        latest = each if each.day >= known.day else known
        builds = tuple(sorted({*each.builds, *known.builds}))
        held[each.release] = latest._replace(builds=builds)
    return tuple(held[name] for name in sorted(held))


def read(data: Path, repository: str) -> tuple[Revocation, ...]:
    """Read the stored revocations of a repository. Raises ``StoreError``."""
    path = data / "metadata" / repository / FILE
    content = read_small(path, _LIMIT)
    if content is None:
        return ()
    try:
        return parse(repository, records.parse(content, records.mapping).get("revoked"))
    except ValueError as error:
        raise CorruptStore(
            f"the revocations of repository {repository} that were seen cannot be read",
            facts=(f"path: {path}", str(error)),
            hint=f"fetch them again: {TSUKU} repository refresh {repository}",
        ) from error


def read_all(data: Path) -> tuple[dict[str, tuple[Revocation, ...]], list[StoreError]]:
    """Read all stored revocations by repository; also return the errors of unreadable files.

    Those of removed repositories are included, but without their builds: they count for what was
    installed from there, by the release's name, and for no other repository.
    """
    held: dict[str, tuple[Revocation, ...]] = {}
    damaged: list[StoreError] = []
    for name in repository_names(data):
        try:
            held[name] = read(data, name)
            added = data / "metadata" / name / ADDED
            with disk_errors("reading the repositories", added.parent):
                removed = name != embedded.REPOSITORY and not added.is_file()
            if removed:
                held[name] = tuple(each._replace(builds=()) for each in held[name])
        except StoreError as error:
            damaged.append(error)
    return held, damaged


def forget_builds(data: Path, repository: str) -> None:
    """Drop the builds of a removed repository's revocations; the names of its releases stay.

    Another repository may be added under its name. Raises ``StoreError``.
    """
    kept = [each._replace(builds=()) for each in read(data, repository)]
    if kept:
        _write(data, repository, kept)


def repository_names(data: Path) -> list[str]:
    """List the repositories that have a folder here; removed ones may be among them."""
    try:
        return sorted(path.name for path in (data / "metadata").iterdir())
    except OSError:
        return []


def believed_folders(data: Path) -> list[Path]:
    """List the folders of metadata that a start believes; one without our files is foreign."""
    found = []
    for name in repository_names(data):
        folder = data / "metadata" / name
        with suppress(OSError):
            ours = name == embedded.REPOSITORY or any(
                (folder / file).exists() for file in (FILE, ADDED)
            )
            if ours and folder.is_dir():  # False for a link that leads nowhere
                found.append(folder)
    return found


def remember(data: Path, repository: str, revocations: Iterable[Revocation]) -> None:
    """Store new revocations together with the earlier ones, for ever. Raises ``StoreError``.

    Another process may write at the same moment; then the entries of one of the two get lost.
    They are in signed metadata, so the next verification stores them again.
    """
    try:
        # No lock: a reader sees the old file or the new one, and of two writers the last one wins.
        before = read(data, repository)
        after = merged(before, revocations)
        if after == before:
            return
    except CorruptStore:
        after = merged(revocations)
    _write(data, repository, after)


def _write(data: Path, repository: str, revoked: Iterable[Revocation]) -> None:
    folder = data / "metadata" / repository
    document = {"format": _FORMAT, "revoked": plain(revoked)}
    with disk_errors("saving the revocations", folder):
        make_folder(folder)
        replace_file(folder / FILE, records.encode(document))
