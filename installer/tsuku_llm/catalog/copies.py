"""Copies of a repository: in the package, in a folder, or in the state of python-tuf's updater."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tsuku_llm import trust
from tsuku_llm.catalog import embedded
from tsuku_llm.ground.files import read_small
from tsuku_llm.trust import Copy, TrustedRepository

LARGEST_FILE = 5_000_000
"""The largest metadata or release file, in bytes; python-tuf's limit for targets metadata."""

TIMESTAMP = "metadata/timestamp.json"
"""The one file of a published repository whose content changes."""


@dataclass(frozen=True, slots=True)
class EmbeddedCopy:
    """The copy in the package."""

    def read(self, name: str) -> bytes | None:
        """Read the file at a path relative to the repository; None if it does not exist."""
        return embedded.read(name)


EMBEDDED = EmbeddedCopy()


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """A copy in a folder, in the published layout."""

    folder: Path

    def read(self, name: str) -> bytes | None:
        """Read the file at a path relative to the repository; None if it does not exist."""
        return read_file(self.folder / name)


@dataclass(frozen=True, slots=True)
class UpdaterCopy:
    """The state of python-tuf's updater, read by published paths (metadata only)."""

    folder: Path

    def read(self, name: str) -> bytes | None:
        """Read the metadata file of a published path; None if it does not exist."""
        return read_file(self.path(name))

    def path(self, name: str) -> Path:
        """Return where the updater keeps the metadata file of a published path."""
        file = name.removeprefix("metadata/")
        version, _, rest = file.partition(".")
        if rest == "root.json":
            return self.folder / "root_history" / file
        # The updater keeps only one version of each role other than root, without the number.
        return self.folder / (rest if version.isdecimal() else file)


@dataclass(frozen=True, slots=True)
class DelegatedOnDemand:
    """An updater's copy that downloads delegated metadata when it is read.

    python-tuf's updater downloads the metadata of a delegated role only to look up one target.
    ``download`` takes a file's name and its largest size in bytes.
    """

    copy: UpdaterCopy
    download: Callable[[str, int], bytes]
    fetched: dict[str, bytes] = field(default_factory=dict)

    def read(self, name: str) -> bytes | None:
        """Read the metadata file of a published path; None if it does not exist."""
        folder, _, file = name.partition("/")
        version, _, rest = file.partition(".")
        is_versioned = folder == "metadata" and version.isdecimal()
        if not is_versioned or rest.removesuffix(".json") in trust.ROLES:
            return self.copy.read(name)
        if name not in self.fetched:
            # One limit for all delegated files together, so that many small ones cannot add up.
            left = LARGEST_FILE - sum(map(len, self.fetched.values()))
            self.fetched[name] = self.download(name, left)
        return self.fetched[name]


@dataclass(frozen=True, slots=True)
class WithRootsOf:
    """A copy with the roots of another copy added."""

    copy: Copy
    other: Copy

    def read(self, name: str) -> bytes | None:
        """Read the file at a path; a root that is missing here comes from the other copy."""
        data = self.copy.read(name)
        # Only roots: each is verified by the one before, so it does not matter which copy has it.
        if data is None and name.endswith(".root.json"):
            return self.other.read(name)
        return data


@dataclass(frozen=True, slots=True)
class RootFiles:
    """A copy with nothing but roots, by their versions."""

    files: Mapping[int, bytes]

    def read(self, name: str) -> bytes | None:
        """Read the file at a path relative to the repository; None if it does not exist."""
        version, _, rest = name.removeprefix("metadata/").partition(".")
        known = rest == "root.json" and version.isdecimal()
        return self.files.get(int(version)) if known else None


def read_file(path: Path) -> bytes | None:
    """Read a small file of the metadata folder; None if it does not exist.

    Raises ``StoreError`` unless it is a regular file that root or this user owns.
    """
    return read_small(path, LARGEST_FILE)


def names_of(trusted: TrustedRepository, first_root: int) -> tuple[str, ...]:
    """List the metadata files of a verified copy, the timestamp last; no release files.

    The roots begin with version ``first_root``, so that the copy verifies without any other.
    """
    roles = trusted.roles
    names = [f"metadata/{n}.root.json" for n in range(first_root, roles["root"].version + 1)]
    others = [role for role in roles if role not in ("root", "timestamp", *trusted.unread)]
    names += [trust.file_name(role, roles[role].version) for role in others]
    return (*names, TIMESTAMP)
