"""The folder of a mirror: what its names are, how they appear, and which may be removed.

Every name but two contains a digest or a version, and its content never changes. ``mirror.json``
says that this program made the folder. ``metadata/timestamp.json`` is replaced last, so a client
that reads the folder meanwhile sees a whole state: the one before or the one after.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tsuku_llm.catalog.copies import LARGEST_FILE, OF_A_COPY, TIMESTAMP
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.fetch.places.bundle_file import ARTIFACTS
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.files import (
    FILE_MODE,
    flush_folder,
    make_folder,
    read_record,
    read_small,
    rename,
    replace_file,
    seal_file,
)
from tsuku_llm.ground.folders import Folder, opened, temporaries
from tsuku_llm.ground.records import digest, encode, many, record

MARKER = "mirror.json"
PARTIALS = "partials"
_LOCKS = (f".{MARKER}.lock", f".{MARKER}.pid")
"""The lock that is here while a process works on the folder, and the note of who that is."""

_DIGEST = r"[0-9a-f]{64}"
_LAST = rf"{TIMESTAMP}|{re.escape(MARKER)}"
_OURS = re.compile(rf"{OF_A_COPY.pattern}|{_LAST}|{ARTIFACTS}/{_DIGEST}")
"""The files that a mirror consists of, by their paths."""

_TEMPORARY = temporaries(r"[^/]+")
_PARTIAL = re.compile(rf"{PARTIALS}/{_DIGEST}(?:\.part(?:\.json)?)?")
_SCRATCH = re.compile(rf"{PARTIALS}/{_DIGEST}\.index")
"""A folder in which pip ran, left by a killed process."""

_FOLDER = re.compile(rf"metadata|targets(?:/[^/]+)*|{ARTIFACTS}|{PARTIALS}")


class MirrorRecord(NamedTuple):
    """The content of ``mirror.json``.

    ``root`` is the SHA-256 of the repository's root of trust. ``artifacts`` are the digests of the
    archives. ``metadata`` are the paths of the files that clients read, and ``before`` those of the
    publication before, which a client may still be reading.
    """

    root: str
    artifacts: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Swept:
    """What is in the folder of a mirror and belongs to nothing: paths relative to the folder.

    ``unused`` are the program's own files, with ``size`` bytes in all; a prune has removed them.
    ``foreign`` is the rest.
    """

    unused: tuple[str, ...] = ()
    size: int = 0
    foreign: tuple[str, ...] = ()


def mirror_marker(root: str, artifacts: Collection[str], metadata: Collection[str]) -> bytes:
    """Return the content of ``mirror.json`` for a new mirror of a repository with this root."""
    return _encoded(MirrorRecord(root, tuple(sorted(artifacts)), tuple(sorted(metadata))))


def _encoded(content: MirrorRecord) -> bytes:
    return encode({"format": 1, "program": "tsuku-llm", **content._asdict()})


class MirrorFolder:
    """A folder that this program fills; one process at a time, which locks ``MARKER``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def partials(self) -> Path:
        """The folder of downloads that are not complete."""
        return self.path / PARTIALS

    def artifact(self, sha256: str) -> Path:
        """Return the path of an archive."""
        return self.path / ARTIFACTS / sha256

    def record(self) -> MirrorRecord | None:
        """Read ``mirror.json``; None if the folder has none. Raises ``CorruptStore``."""
        way_out = "if a newer tsuku-llm made this mirror, use that one; else move the folder away "
        way_out += "and make the mirror again"
        return read_record(self.path / MARKER, LARGEST_FILE, _READ, way_out)

    @contextmanager
    def made(self, root: str) -> Iterator[None]:
        """Make the folder for the block; a new one that nothing came into goes after it.

        Raises the errors of ``require_own``.
        """
        self.require_own(root)
        is_new = not self.path.exists()
        make_folder(self.path)
        try:
            yield
        finally:
            if is_new:
                with suppress(OSError):  # something is in it
                    self.path.rmdir()

    def adopt(self, root: str) -> MirrorRecord:
        """Mark an empty or new folder as a mirror of the repository with this root.

        A mirror of the same repository is taken as it is. Raises the errors of ``require_own``.
        """
        if found := self.require_own(root):
            return found
        make_folder(self.path)
        made = MirrorRecord(root)
        self._write(made)
        return made

    def require_own(self, root: str) -> MirrorRecord | None:
        """Return the record of a mirror of this repository; None for an empty or new folder.

        Raises ``UsageError`` for any other folder, and ``StoreError``.
        """
        found = self.record()
        if found is not None:
            if found.root == root:
                return found
            raise UsageError(
                f"{self.path} is the mirror of another repository",
                facts=(f"its root: sha256 {found.root}", f"the one named: sha256 {root}"),
                hint="use a folder for each repository",
            )
        with opened(self.path) as folder:
            # A crash of this very step may have left the file that was to become the marker.
            names = folder.names() if folder else []
        passing = temporaries(re.escape(MARKER))
        if others := [each for each in names if not passing.fullmatch(each) and each not in _LOCKS]:
            raise UsageError(
                f"{self.path} is not empty, and is no mirror that tsuku-llm made",
                facts=(f"it has: {', '.join(others[:5])}",),
                hint="name a folder that is empty or does not exist yet",
            )
        return None

    def has(self, artifact: Artifact) -> bool:
        """Tell whether an archive is there; its name and size count, its content is not read."""
        looking = disk_errors("looking for an archive", self.path)
        with looking, opened(self.path, ARTIFACTS) as there:
            if there is None or not there.is_file(artifact.sha256):
                return False
            return artifact.size in (None, there.status(artifact.sha256).st_size)

    def keep(self, artifact: Artifact, verified: Path) -> None:
        """Give a verified file of ``partials`` its final name."""
        make_folder(self.path / ARTIFACTS)
        with disk_errors("keeping an archive", self.path):
            # Flush the content before the name: a loss of power must leave no empty archive.
            seal_file(verified, FILE_MODE)
            rename(verified, self.artifact(artifact.sha256))
            flush_folder(self.path / ARTIFACTS)

    def publish(
        self, files: Mapping[str, bytes], artifacts: Collection[str], known: MirrorRecord
    ) -> bool:
        """Let clients see new metadata; the archives that it needs are there already.

        ``known`` is what ``mirror.json`` says now. Returns whether anything has changed.
        """
        with disk_errors("publishing the metadata", self.path):
            # A killed run may have left temporary files. The lock keeps other writers out.
            for parts in {PurePosixPath(name).parent.parts for name in (MARKER, *files)}:
                with opened(self.path, *parts) as folder:
                    if folder is not None:
                        folder.drop_temporaries(r"[^/]+", older_than=math.inf)
            changes = [self._put(name, data) for name, data in files.items() if name != TIMESTAMP]
            # All that it leads to is there, and flushed. This is the commit.
            changes.append(self._put(TIMESTAMP, files[TIMESTAMP]))
            # After a crash here, the next run comes to the same record.
            names = tuple(sorted(files))
            before = known.before if names == known.metadata else known.metadata
            now = MirrorRecord(known.root, tuple(sorted(artifacts)), names, before)
            if now != known:
                self._write(now)
        return any(changes) or now != known

    def _put(self, name: str, data: bytes) -> bool:
        path = self.path / name
        make_folder(path.parent)
        if read_small(path, LARGEST_FILE) == data:
            return False
        replace_file(path, data)
        return True

    def _write(self, content: MirrorRecord) -> None:
        with disk_errors("marking the folder as a mirror", self.path):
            replace_file(self.path / MARKER, _encoded(content))

    def sweep(self, known: MirrorRecord, *, remove: bool) -> Swept:
        """Find what a mirror does not need, and ``remove`` what of it is this program's own."""
        archives = {f"{ARTIFACTS}/{sha256}" for sha256 in known.artifacts}
        keep = {MARKER, TIMESTAMP, *known.metadata, *known.before, *archives}
        unused: dict[str, int] = {}
        foreign: list[str] = []
        with disk_errors("looking through the mirror", self.path), opened(self.path) as folder:
            if folder is not None:
                _sweep(folder, "", keep, unused, foreign, remove=remove)
        return Swept(tuple(sorted(unused)), sum(unused.values()), tuple(sorted(foreign)))


def _sweep(
    folder: Folder,
    below: str,
    keep: Collection[str],
    unused: dict[str, int],
    foreign: list[str],
    *,
    remove: bool,
) -> None:
    """Add the sizes of the unused files, and the names of foreign ones."""
    for name in folder.names():
        path = below + name
        if folder.is_folder(name):
            if _SCRATCH.fullmatch(path):
                unused[f"{path}/"] = 0
                if remove:
                    folder.remove_tree(name)
            elif _FOLDER.fullmatch(path):
                with folder.inner(name) as inner:
                    _sweep(inner, f"{path}/", keep, unused, foreign, remove=remove)
                if remove:
                    with suppress(OSError):  # something is in it
                        folder.rmdir(name)
            else:
                foreign.append(f"{path}/")
        elif path in keep or path in _LOCKS:
            continue
        elif folder.is_file(name) and (
            _OURS.fullmatch(path) or _PARTIAL.fullmatch(path) or _TEMPORARY.fullmatch(name)
        ):
            unused[path] = folder.status(name).st_size
            if remove:
                folder.unlink(name)
        else:
            foreign.append(path)


_READ = record(MirrorRecord, {"root": digest, "artifacts": many(digest)}, format=1)
