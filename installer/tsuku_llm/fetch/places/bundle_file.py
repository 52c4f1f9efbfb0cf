"""The one file of a bundle: a short shell script, and behind it a zip file of stored members.

The members are a mirror in its own layout (``mirror_folder``), the wheels of this program, and
``bundle.json``, which describes both. The script compares the size and the digest of what follows
it, and then runs the member ``start.py``. That finds accidents; it proves nothing, because whoever
changes the file can change the digest, too. Readers of a member verify it themselves, as if it came
from a mirror.

``tsuku_operator.bundle.bundle_writer`` makes such a file.
"""

from __future__ import annotations

import hashlib
import io
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tsuku_llm.archive.formats.member import Budget
from tsuku_llm.archive.formats.zips import STORED, Entry, read_directory
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import BadBundle, UnsafeArchive, UsageError
from tsuku_llm.ground.foreign import UNREADABLE, open_foreign
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import digest, documented, many, parse, record

ARTIFACTS = "sha256"
"""The folder of the archives, named by their digests: in a bundle as in the folder of a mirror."""

DESCRIPTION = "bundle.json"
START = "start.py"
SBOM = "sbom.cdx.json"
WHEELS = "wheels"
PROGRAMS = "programs"

_CHUNK = 1 << 20
_LARGEST_DESCRIPTION = 16 << 20
_NAME = re.compile(
    r"(?!.*(?:^|/)\.{1,2}(?:/|$))[A-Za-z0-9%_][A-Za-z0-9%_.+!~-]*(?:/[A-Za-z0-9%_.+!~-]+)*"
)
_LONGEST_HEAD = 1 << 14
_HEAD = re.compile(
    rb"#!/bin/sh\n.*?^size=([0-9]+) *\n.*?^sha256=(\S+)\n.*?^' ([0-9]+) +\"\$sha256\"",
    re.MULTILINE | re.DOTALL,
)
"""What the script says: the size of the file, and the digest of what begins at an offset."""


class BundledBuild(NamedTuple):
    """A build that a bundle holds: ``artifacts`` are the digests of its archives."""

    release: str
    channel: str
    platform: str
    variant: str
    artifacts: tuple[str, ...]


@documented("platform", "python", "glibc")
class BundledProgram(NamedTuple):
    """The program in a bundle for one Python, such as 3.11; ``glibc`` is the oldest that works.

    ``requirements`` is the member that names the wheels with their digests.
    """

    platform: str
    python: str
    requirements: str
    wheels: tuple[str, ...]
    glibc: str | None = None


@documented("made_by", "repository", "fingerprint", "expires", "builds", "programs")
class BundleDescription(NamedTuple):
    """The content of ``bundle.json``; nothing of it is trusted.

    ``made_by`` is the version of the program that made the bundle. ``fingerprint`` is the SHA-256
    of the root of the repository, ``places`` are its own addresses. ``expires`` is a time in UTC.
    """

    made_by: str
    repository: str
    fingerprint: str
    places: tuple[str, ...]
    expires: str
    builds: tuple[BundledBuild, ...]
    programs: tuple[BundledProgram, ...] = ()

    @property
    def artifacts(self) -> frozenset[str]:
        """The digests of all archives."""
        return frozenset(sha256 for build in self.builds for sha256 in build.artifacts)


_read_description = record(
    BundleDescription,
    {
        "fingerprint": digest,
        "builds": many(record(BundledBuild, {"artifacts": many(digest)})),
        "programs": many(record(BundledProgram)),
    },
    format=1,
)


class BundleFile:
    """An open bundle, whose structure was checked; its members are not verified."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        """Read the directory. Raises ``BadBundle``, ``OSError``."""
        self.path = path
        self._file = file
        file.seek(0)
        said = _HEAD.match(file.read(_LONGEST_HEAD))
        size = file.seek(0, io.SEEK_END)
        if said is None:
            raise self.refused("it does not begin as a bundle")
        if int(said[1][:20]) != size:
            raise self.refused(f"it has {size} bytes, and should have {int(said[1][:20])}")
        self._sha256, self._begins = said[2].decode("ascii", "replace"), int(said[3][:5])
        try:
            # Nothing of a bundle is unpacked, so only the number of members is limited.
            budget = Budget(size=1 << 50, members=100_000)
            entries = read_directory(file, budget, begins=self._begins)
        except UnsafeArchive as error:
            raise self.refused(error.message, *error.facts) from error
        self._entries: dict[str, Entry] = {}
        for entry in entries:
            is_file = stat.S_IFMT(entry.mode) == stat.S_IFREG
            usual = is_file and entry.method == STORED and _NAME.fullmatch(entry.name)
            if not usual or entry.name in self._entries:
                raise self.refused(f"it has a member that no bundle has: {entry.name[:100]!a}")
            self._entries[entry.name] = entry

    @property
    def sizes(self) -> dict[str, int]:
        """The members with their sizes in bytes."""
        return {name: entry.size for name, entry in self._entries.items()}

    def description(self) -> BundleDescription:
        """Read ``bundle.json``. Raises ``BadBundle``."""
        data = self.read(DESCRIPTION, _LARGEST_DESCRIPTION)
        if data is None:
            raise self.refused(f"it has no {DESCRIPTION}")
        try:
            return parse(data, _read_description)
        except ValueError as error:
            raise self.refused(f"{DESCRIPTION} cannot be understood", str(error)) from error

    def read(self, name: str, limit: int) -> bytes | None:
        """Return a member's content; None without one. Raises ``BadBundle`` above ``limit``."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        if entry.size > limit:
            raise self.refused(f"{name} has more than {limit:,} bytes")
        return b"".join(self.chunks(name) or ())

    def chunks(self, name: str) -> Iterator[bytes] | None:
        """Return the content of a member in chunks; None without one."""
        entry = self._entries.get(name)
        return None if entry is None else self._chunks(entry)

    def _chunks(self, entry: Entry) -> Iterator[bytes]:
        position, end = entry.data, entry.data + entry.size
        while position < end:
            with disk_errors("reading the bundle", self.path):
                self._file.seek(position)
                chunk = self._file.read(min(_CHUNK, end - position))
            if not chunk:
                raise self.refused("it ends early")
            position += len(chunk)
            yield chunk

    def sha256(self) -> str:
        """Hash the whole file, and return its SHA-256.

        Raises ``BadBundle`` if what follows the script is not what the script says.
        """
        with disk_errors("reading the bundle", self.path):
            self._file.seek(0)
            head = self._file.read(self._begins)
            whole, rest = hashlib.sha256(head), hashlib.sha256()
            while chunk := self._file.read(_CHUNK):
                whole.update(chunk)
                rest.update(chunk)
        if rest.hexdigest() != self._sha256:
            raise self.refused("its content is not what it says: it is damaged, or was changed")
        return whole.hexdigest()

    def refused(self, reason: str, *facts: str) -> BadBundle:
        """Make the error for a bundle that cannot be used."""
        return BadBundle(
            f"{self.path} is no bundle that can be used",
            facts=(reason, *facts),
            hint="copy it again, and compare its SHA-256 with what its maker says; "
            f"to make one: {TSUKU} bundle create FILE",
        )


@contextmanager
def opened_bundle(path: Path) -> Iterator[BundleFile]:
    """Open a bundle for the block. Raises ``UsageError`` without the file, ``BadBundle``."""
    try:
        opened_file = open_foreign(path)
    except OSError as error:
        raise UsageError(
            f"the bundle {path} cannot be opened",
            facts=(error.strerror or str(error),),
            hint=UNREADABLE
            if isinstance(error, PermissionError)
            else f"name the file that {TSUKU} bundle create made",
        ) from error
    with opened_file as file:
        with disk_errors("reading the bundle", path):
            bundle = BundleFile(path, file)
        # Not the errors of what the caller does with it: another disk may be full.
        yield bundle
