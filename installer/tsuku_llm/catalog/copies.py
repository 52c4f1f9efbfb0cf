"""Copies of a repository: in the package, in a folder, or as python-tuf's updater keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tsuku_llm import embedded, trust
from tsuku_llm.durable import read_small
from tsuku_llm.trust import Copy

LARGEST_FILE = 5_000_000
"""Bytes of one metadata or release file; python-tuf's own limit for targets metadata."""


@dataclass(frozen=True, slots=True)
class EmbeddedCopy:
    """The copy in the package."""

    def read(self, name: str) -> bytes | None:
        """The file of that path relative to the repository, None if it is not there."""
        return embedded.read(name)


EMBEDDED = EmbeddedCopy()


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """A copy in a folder, in the published layout."""

    folder: Path

    def read(self, name: str) -> bytes | None:
        """The file of that path relative to the repository, None if it is not there."""
        return read_file(self.folder / name)


@dataclass(frozen=True, slots=True)
class UpdaterCopy:
    """What python-tuf's updater keeps, seen in the published layout (metadata only)."""

    folder: Path

    def read(self, name: str) -> bytes | None:
        """The metadata file of that published path, None if it is not there."""
        return read_file(self.path(name))

    def path(self, name: str) -> Path:
        """Where the updater keeps the metadata file of that published path."""
        file = name.removeprefix("metadata/")
        version, _, rest = file.partition(".")
        if rest == "root.json":
            return self.folder / "root_history" / file
        return self.folder / (rest if version.isdecimal() else file)


@dataclass(frozen=True, slots=True)
class DelegatedOnDemand:
    """An updater's copy, with the delegated metadata that is fetched when it is read.

    python-tuf's updater fetches the metadata of a delegated role only to look up one
    target. ``download`` is given a file's name and the most bytes that it may have.
    """

    copy: UpdaterCopy
    download: Callable[[str, int], bytes]
    fetched: dict[str, bytes] = field(default_factory=dict)

    def read(self, name: str) -> bytes | None:
        """The metadata file of that published path, None if it is not there."""
        folder, _, file = name.partition("/")
        version, _, rest = file.partition(".")
        is_versioned = folder == "metadata" and version.isdecimal()
        if not is_versioned or rest.removesuffix(".json") in trust.ROLES:
            return self.copy.read(name)
        if name not in self.fetched:
            left = LARGEST_FILE - sum(map(len, self.fetched.values()))
            self.fetched[name] = self.download(name, left)
        return self.fetched[name]


@dataclass(frozen=True, slots=True)
class WithRootsOf:
    """A copy that also knows the roots of another one."""

    copy: Copy
    other: Copy

    def read(self, name: str) -> bytes | None:
        """The file of that path; a root that this copy lacks comes from the other one."""
        data = self.copy.read(name)
        if data is None and name.endswith(".root.json"):
            return self.other.read(name)
        return data


def read_file(path: Path) -> bytes | None:
    """A small file of the metadata folder, None if it is not there.

    Raises ``StoreError`` for anything but a regular file of root's or this user's.
    """
    return read_small(path, LARGEST_FILE)
