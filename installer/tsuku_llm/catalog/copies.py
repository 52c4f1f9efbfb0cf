"""Copies of a repository: in the package, in a folder, or on a host; and those that are kept.

Readers of the kept copies take no lock. A copy never changes after it got its name, and ``current``
is replaced in one step, so a reader sees the old copy or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm import trust
from tsuku_llm.catalog.metadata_status import CURRENT
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import (
    BodyError,
    CorruptStore,
    HttpStatusError,
    MetadataError,
    StoreError,
)
from tsuku_llm.ground.files import (
    flush_folder,
    make_folder,
    read_small,
    rename,
    replace_file,
    unique,
    write_new,
)
from tsuku_llm.ground.folders import opened
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.trust import Copy, TrustedRepository

if TYPE_CHECKING:
    from tuf.api.metadata import MetaFile, Root  # type: ignore[attr-defined]  # its own re-exports


LARGEST_FILE = 5_000_000
"""The largest metadata or release file, in bytes; python-tuf's limit for targets metadata."""

_METADATA = r"(?:[0-9]+\.)?(?:root|timestamp|snapshot|targets)\.json"
_DELEGATED = r"[0-9]+\.[A-Za-z0-9_.~%-]{1,150}\.json"
OF_A_COPY = re.compile(
    rf"metadata/(?:{_METADATA}|{_DELEGATED})?|targets/(?:[^/]+/)*(?:[0-9a-f]{{64}}\.[^/]+)?"
)
"""The paths that a whole copy of a repository can contain."""

_LARGEST_ROOT = 512_000
_LARGEST_TIMESTAMP = 16_384
"""What is fetched at most of files that nothing names; python-tuf has the same limits."""

TIMESTAMP = "metadata/timestamp.json"
"""The one file of a published repository whose content changes."""


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """A copy in a folder, in the published layout."""

    folder: Path

    def read(self, name: str) -> bytes | None:
        """Read the file at a path relative to the repository; None if it does not exist."""
        return read_file(self.folder / name)


@dataclass(slots=True)
class ServedCopy:
    """A copy whose files are fetched when they are read, unless this machine has the same.

    ``get`` takes a file's name and its largest size in bytes. For a missing file it returns None,
    or raises ``HttpStatusError``.
    ``files`` has what was read. ``known`` are copies on this machine, verified or not.
    ``root`` is the newest verified root, and ``named`` what verified metadata says of other files.
    """

    get: Callable[[str, int], bytes | None]
    files: dict[str, bytes | None]
    known: Sequence[Copy]
    root: Root
    named: dict[str, MetaFile] = field(default_factory=dict)
    delegated: int = 0

    def read(self, name: str) -> bytes | None:
        """Read the file at a path relative to the repository; None if it does not exist.

        Raises ``DownloadError``.
        """
        if name in self.files:
            return self.files[name]
        about, role = self.named.get(name), name.removesuffix(".json").rpartition(".")[2]
        data = self._known(name, about, role) if about is not None else None
        if not data:
            if about is None:
                limit = _LARGEST_TIMESTAMP if name == TIMESTAMP else _LARGEST_ROOT
            elif role in trust.ROLES:
                limit = min(about.length or LARGEST_FILE, LARGEST_FILE)
            else:
                # One limit for all delegated files together, so that many small ones cannot add up.
                limit = LARGEST_FILE - self.delegated
            try:
                data = self.get(name, limit)
            except HttpStatusError as error:
                # A host has no file after its newest root (TUF 5.3.3).
                if not (name.endswith(".root.json") and error.is_absence):
                    raise
                data = None
            # A larger file must not be parsed, even if ``get`` returns one.
            if data is not None and len(data) > limit:
                raise BodyError(f"{name} has more than {limit:,} bytes")
            if about is not None and role not in trust.ROLES:
                self.delegated += len(data or b"")
        self.files[name] = data
        return data

    def _known(self, name: str, about: MetaFile, role: str) -> bytes | None:
        """Read a file from a known copy, if it is the one that verified metadata names."""
        from tuf.api.exceptions import LengthOrHashMismatchError

        for copy in self.known:
            with suppress(StoreError, MetadataError, LengthOrHashMismatchError):
                data = copy.read(name)
                if data is None:
                    continue
                about.verify_length_and_hashes(data)
                # Without a digest, the file may be damaged, or signed with keys that were replaced.
                # Of a delegated role, only its delegator knows the keys: it is fetched.
                if about.hashes or (
                    role in trust.ROLES
                    and trust.check_role(self.root, data, role).state.version == about.version
                ):
                    return data
        return None


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


_NAME = re.compile(r"[0-9a-f]{16}")


def current_copy(folder: Path) -> Path | None:
    """Return the folder of the current copy; None if no copy was ever kept.

    Raises ``StoreError``.
    """
    data = read_file(folder / CURRENT)
    if data is None:
        return None
    name = data.decode("ascii", "replace")
    copy = folder / "copies" / name
    with disk_errors("reading the copy of the metadata", folder):
        # The name comes from a file that may be damaged: it must not lead out of ``copies``.
        linked = any(each.is_symlink() for each in (copy, copy.parent))
    if linked or not _NAME.fullmatch(name):
        raise CorruptStore(
            f"{folder / 'current'} names no copy",
            hint=f"run: {TSUKU} repository refresh {folder.name}",
        )
    return copy


def commit(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write a whole new copy, then let ``current`` name it; return its folder.

    After a crash, the old or the new copy is the current one. The previous copy stays, because
    another process may be reading it. Raises ``OSError``, ``StoreError``.
    """
    digests = (hashlib.sha256(data).digest() for _, data in sorted(files.items()))
    name = hashlib.sha256(b"".join(digests)).hexdigest()[:16]
    copies = folder / "copies"
    make_folder(copies)
    # No other process uses this name. A crash may leave the folder: the name is one of a copy, so a
    # later ``commit`` removes it.
    staging = copies / unique()
    for file, data in files.items():
        make_folder((staging / file).parent)
        write_new(staging / file, data)
    # The files are flushed already (``write_new``); flush their names before the rename below.
    for parent, _, _ in os.walk(staging):
        flush_folder(Path(parent))
    # A copy of this name has other content, so it is damaged: ``refresh`` would not replace the
    # same. Other processes that refresh wait for the lock of our caller.
    _remove_copies(folder, lambda found: found == name)
    if os.path.lexists(copies / name):  # a link, or foreign files are in it: keep it aside
        rename(copies / name, copies / f"{name}.{unique()}.set-aside")
    rename(staging, copies / name)
    # The copy's name is durable before ``current`` names it.
    flush_folder(copies)
    before = None
    with contextlib.suppress(StoreError):  # a damaged name: there is no earlier copy to keep
        earlier = current_copy(folder)
        before = earlier.name if earlier else None
    replace_file(folder / CURRENT, name.encode())
    with contextlib.suppress(OSError):
        # All older copies, and what crashes left. ``before`` stays for processes that read it now.
        _remove_copies(folder, lambda found: found not in (name, before))
    return copies / name


def _remove_copies(repository: Path, chosen: Callable[[str], bool]) -> None:
    """Remove the chosen copies of this program; foreign files, also inside them, stay."""
    with opened(repository, "copies") as copies:
        for name in copies.names() if copies else ():
            if copies and _NAME.fullmatch(name) and chosen(name) and copies.is_folder(name):
                with copies.inner(name) as copy:
                    copy.remove_matching(OF_A_COPY)
                with contextlib.suppress(OSError):  # something foreign is in it
                    copies.rmdir(name)
