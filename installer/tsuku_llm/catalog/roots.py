"""The roots that this machine has verified before: what was root N once stays root N.

They come from the package, from ``roots/`` beside a repository's copies, and from the updated
copy. Each later one is verified by the one before it. ``roots/`` outlives both python-tuf's
state and the updated copy: without it, whoever holds enough of the keys that were replaced
could sign another root N for a machine that lost those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm import trust
from tsuku_llm.catalog.copies import FolderCopy, read_file
from tsuku_llm.catalog.generations import current_copy
from tsuku_llm.catalog.repositories import Repository
from tsuku_llm.durable import make_folder, replace_file
from tsuku_llm.errors import MetadataError, StoreError, TrustError
from tsuku_llm.standing import folder_of
from tsuku_llm.trust import Copy

FOLDER = "roots"


@dataclass(frozen=True, slots=True)
class KnownRoots:
    """The verified roots of a repository, by version, without a gap.

    ``anchor`` is the version under which each copy has to verify: the newest in the package,
    or the one that the user added. Roots after it are known, and a copy may lack them.
    """

    files: Mapping[int, bytes]
    anchor: int

    @property
    def start(self) -> bytes:
        """The root at which the verification of a copy starts."""
        return self.files[self.anchor]

    @property
    def newest(self) -> bytes:
        """The root at which an update starts."""
        return self.files[max(self.files)]

    def require(self, copy: Copy) -> None:
        """Refuse a copy that has other bytes for a known root. Raises ``MetadataError``."""
        for version, known in self.files.items():
            found = copy.read(f"metadata/{version}.root.json")
            if found not in (None, known):
                raise other_root("its", version, known, found)


def other_root(whose: str, version: int, known: bytes, found: bytes) -> MetadataError:
    """Say that one version of the root has two contents."""
    return MetadataError(
        f"{whose} root {version} is not the root {version} that this machine knows",
        facts=(
            f"known: sha256 {hashlib.sha256(known).hexdigest()}",
            f"found: sha256 {hashlib.sha256(found).hexdigest()}",
        ),
        hint="somebody may be using keys that were replaced: tell the repository's publisher",
    )


def known_roots(repository: Repository, data: Path) -> KnownRoots:
    """Walk the roots of the package, of ``roots/`` and of the updated copy, in this order.

    Raises ``MetadataError`` where the package's own chain is broken. Elsewhere the first root
    that is damaged, or not signed as it must be, ends the walk.
    """
    newest = trust.check_root(repository.root)
    files = {newest.version: repository.root}
    if repository.embedded:
        for root, file in trust.later_roots(repository.embedded, newest):
            newest, files[root.version] = root, file
    anchor = newest.version
    folder = folder_of(data, repository.name)
    with suppress(TrustError, StoreError):
        for root, file in trust.later_roots(_KeptRoots(folder), newest):
            newest, files[root.version] = root, file
    with suppress(TrustError, StoreError):
        updated = current_copy(folder)
        for root, file in trust.later_roots(FolderCopy(updated), newest) if updated else ():
            files[root.version] = file
    return KnownRoots(files, anchor)


def keep_roots(folder: Path, known: KnownRoots, copy: Copy) -> None:
    """Remember the known roots, and those of a copy that follow and verify.

    Also where the rest of the copy is refused (TUF 5.3.8). Of a copy whose roots are refused
    none is kept. Raises ``OSError``, ``StoreError``.
    """
    files = dict(known.files)
    with suppress(TrustError, StoreError):
        newest = trust.check_root(known.newest)
        files |= {root.version: file for root, file in trust.later_roots(copy, newest)}
    kept = _KeptRoots(folder)
    make_folder(folder / FOLDER)
    for version, file in files.items():
        if kept.read(f"metadata/{version}.root.json") != file:
            replace_file(folder / FOLDER / f"{version}.root.json", file)


@dataclass(frozen=True, slots=True)
class _KeptRoots:
    """The roots that are kept beside a repository's copies; nothing else."""

    folder: Path

    def read(self, name: str) -> bytes | None:
        """The root of that published path, None if it is not there."""
        return read_file(self.folder / FOLDER / name.removeprefix("metadata/"))
