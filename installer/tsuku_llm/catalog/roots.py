"""The roots that this machine has verified before: root N keeps its content for ever.

They come from the package, from ``roots/`` in the repository's folder, and from the updated
copy. Each root verifies the next one. ``roots/`` stays when python-tuf's state and the updated
copy are lost. Without it, an attacker with enough of the replaced keys could then sign another
root N for this machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm import trust
from tsuku_llm.catalog.copies import FolderCopy, read_file
from tsuku_llm.catalog.copy_store import current_copy
from tsuku_llm.catalog.metadata_status import folder_of
from tsuku_llm.catalog.repositories import Repository
from tsuku_llm.ground.errors import MetadataError, StoreError, TrustError
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.trust import Copy

FOLDER = "roots"


@dataclass(frozen=True, slots=True)
class KnownRoots:
    """The verified roots of a repository, by version, without a gap.

    ``anchor`` is the version under which each copy must verify: the newest in the package, or
    the one that the user added. A copy may lack the known roots after it.
    """

    files: Mapping[int, bytes]
    anchor: int

    @property
    def start(self) -> bytes:
        """The root with which the verification of a copy starts."""
        return self.files[self.anchor]

    @property
    def newest(self) -> bytes:
        """The root with which an update starts."""
        return self.files[max(self.files)]

    def require(self, copy: Copy) -> None:
        """Refuse a copy with other bytes for a known root. Raises ``MetadataError``."""
        for version, known in self.files.items():
            found = copy.read(f"metadata/{version}.root.json")
            # Different bytes under a known version: signed with keys that were replaced, or
            # damaged.
            if found not in (None, known):
                raise other_root("its", version, known, found)


def other_root(whose: str, version: int, known: bytes, found: bytes) -> MetadataError:
    """Make the error for a root that has two contents under one version."""
    return MetadataError(
        f"{whose} root {version} is not the root {version} that this machine knows",
        facts=(
            f"known: sha256 {hashlib.sha256(known).hexdigest()}",
            f"found: sha256 {hashlib.sha256(found).hexdigest()}",
        ),
        hint="someone may use keys that were replaced: tell the repository's publisher",
    )


def known_roots(repository: Repository, data: Path) -> KnownRoots:
    """Walk the roots of the package, of ``roots/`` and of the updated copy, in this order.

    Raises ``MetadataError`` if the package's own chain is broken, and if the root that the user
    added was replaced. In the other two, a damaged or wrongly signed root ends the walk of that
    place.
    """
    newest = trust.check_root(repository.root)
    files = {newest.version: repository.root}
    folder = folder_of(data, repository.name)
    if repository.embedded:
        for root, file in trust.later_roots(repository.embedded, newest):
            newest, files[root.version] = root, file
    else:
        _require_as_added(repository, folder, newest.version)
    anchor = newest.version
    with suppress(TrustError, StoreError):
        for root, file in trust.later_roots(_KeptRoots(folder), newest):
            newest, files[root.version] = root, file
    with suppress(TrustError, StoreError):
        # The updated copy last: it may be the only place with the newest roots, but it can be lost.
        updated = current_copy(folder)
        for root, file in trust.later_roots(FolderCopy(updated), newest) if updated else ():
            files[root.version] = file
    return KnownRoots(files, anchor)


def _require_as_added(repository: Repository, folder: Path, version: int) -> None:
    """Refuse another pinned root than the kept one of its version. Raises ``MetadataError``."""
    kept = None
    with suppress(TrustError, StoreError):  # the next refresh replaces a damaged one
        found = _KeptRoots(folder).read(f"metadata/{version}.root.json")
        if found is not None and trust.check_root(found).version == version:
            kept = found
    if kept is not None and kept != repository.root:
        error = other_root("the pinned", version, kept, repository.root)
        again = f"{TSUKU} repository remove {repository.name}"
        error.hint = (
            f"if its publisher gave you this root, add the repository again, after: {again}"
        )
        raise error


def keep_roots(folder: Path, known: KnownRoots, copy: Copy) -> None:
    """Store the known roots, and the later ones of a copy that verify.

    They are kept even if the rest of the copy is refused (TUF 5.3.8). If one of the copy's
    roots is refused, none of them is kept. Raises ``OSError``, ``StoreError``.
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
    """The stored roots of a repository, without any other metadata."""

    folder: Path

    def read(self, name: str) -> bytes | None:
        """Read the root of a published path; None if it does not exist."""
        return read_file(self.folder / FOLDER / name.removeprefix("metadata/"))
