"""What this machine verified before and must not forget, even if the rest was refused.

Root N keeps its content for ever. The roots come from the package, from ``roots/`` in the
repository's folder, and from the updated copy. Each root verifies the next one. ``roots/`` stays
when the updated copy is lost. Without it, an attacker with enough of the replaced keys could then
sign another root N for this machine.

``seen.json`` has the highest version of each role that a valid timestamp or snapshot named. It
proves nothing and only refuses: a lower version is not taken any more.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm import trust
from tsuku_llm.catalog.copies import FolderCopy, current_copy, read_file
from tsuku_llm.catalog.metadata_status import folder_of
from tsuku_llm.catalog.repositories import Repository
from tsuku_llm.ground import records
from tsuku_llm.ground.errors import MetadataError, StoreError, TrustError
from tsuku_llm.ground.files import make_folder, rename, replace_file, unique
from tsuku_llm.ground.folders import temporaries
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.trust import Copy

if TYPE_CHECKING:
    from tuf.api.metadata import Root  # type: ignore[attr-defined]  # its own re-export

_FOLDER = "roots"
_SEEN = "seen.json"
_FORMAT = 1
_ROOT = re.compile(r"[0-9]+\.root\.json")
_READ = records.fields(
    {"keys": records.named(records.many(records.text)), "versions": records.named(records.count)},
    format=_FORMAT,
)


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


def keep_roots(folder: Path, files: Mapping[int, bytes]) -> None:
    """Store verified roots (TUF 5.3.8). Raises ``OSError``, ``StoreError``."""
    kept = _KeptRoots(folder)
    make_folder(folder / _FOLDER)
    for version, file in files.items():
        if kept.read(f"metadata/{version}.root.json") != file:
            replace_file(folder / _FOLDER / f"{version}.root.json", file)


def make_safe(folder: Path, *, alone: bool) -> None:
    """Clear the way of the files of this module, and remove what a crash left.

    What this program cannot have made, such as a link or a fifo, gets another name. ``alone`` says
    that no other process is writing here. Raises ``OSError``.
    """
    roots = folder / _FOLDER
    if os.path.lexists(roots) and (roots.is_symlink() or not roots.is_dir()):
        _set_aside(roots)
    for path in (folder / _SEEN, *(roots.iterdir() if roots.exists() else ())):
        if path.name == _SEEN or _ROOT.fullmatch(path.name):
            try:
                read_file(path)
            except StoreError:
                _set_aside(path)
        elif alone and temporaries(_ROOT.pattern).fullmatch(path.name) and path.is_file():
            path.unlink()


def _set_aside(path: Path) -> None:
    rename(path, path.with_name(f"{path.name}.{unique()}.set-aside"))


def seen_versions(folder: Path, root: Root) -> Mapping[str, int]:
    """Return the versions that any refresh has seen, and that count under a root.

    None does if a key of the timestamp or snapshot was replaced since (TUF 5.3.11).
    """
    with suppress(StoreError, ValueError):
        found = records.parse(read_file(folder / _SEEN) or b"null", _READ)
        if all(set(keys) <= set(_keys(root)[role]) for role, keys in found["keys"].items()):
            versions: Mapping[str, int] = found["versions"]
            return versions
    return {}


def keep_seen(folder: Path, root: Root, versions: Mapping[str, int]) -> None:
    """Store versions that a valid file under this root names. Raises ``OSError``."""
    before = seen_versions(folder, root)
    merged = {
        role: max(before.get(role, 0), versions.get(role, 0)) for role in {**before, **versions}
    }
    if merged != before:
        document = {"format": _FORMAT, "keys": _keys(root), "versions": merged}
        replace_file(folder / _SEEN, records.encode(document))


def _keys(root: Root) -> dict[str, list[str]]:
    return {role: sorted(root.roles[role].keyids) for role in ("timestamp", "snapshot")}


@dataclass(frozen=True, slots=True)
class _KeptRoots:
    """The stored roots of a repository, without any other metadata."""

    folder: Path

    def read(self, name: str) -> bytes | None:
        """Read the root of a published path; None if it does not exist."""
        return read_file(self.folder / _FOLDER / name.removeprefix("metadata/"))
