"""The files of a download on the disk: the partial file, the note with its gaps, the complete file.

Its first bytes are hashed, and compared with the signed digests.

Nothing here knows how far a download is; ``transfer`` does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.fetch.artifacts.segments import Gap
from tsuku_llm.fetch.http.urls import shown
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import NotWritable
from tsuku_llm.ground.files import read_at, write_at
from tsuku_llm.ground.foreign import open_foreign, parse_json, read_foreign


class WrongPiece(Exception):
    """A piece whose bytes, from ``start`` to ``end``, are not the signed ones."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(f"{start} to {end}")
        self.start = start
        self.end = end


class PieceVerifier:
    """The first ``size`` bytes of an artifact, hashed in order.

    If the manifest has digests of pieces, each piece is compared as soon as it is complete,
    and the first ``verified`` bytes can be used. Without them ``verified`` stays 0: no byte
    can be used before the whole is compared.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self.size = self.verified = 0
        self._whole = hashlib.sha256()
        # The hash at `verified`: rewind() returns to it, as a hash cannot be undone.
        self._sealed = self._whole.copy()
        self._piece = hashlib.sha256()

    def rewind(self) -> None:
        """Go back to the verified bytes; forget the hash of all others."""
        self.size = self.verified
        self._whole = self._sealed.copy()
        self._piece = hashlib.sha256()

    def update(self, chunk: bytes) -> None:
        """Hash the next bytes. Raises ``WrongPiece`` after going back to the verified bytes."""
        pieces, size = self._artifact.pieces, self._artifact.size
        view = memoryview(chunk)
        while view:
            # Where the current piece ends; None without pieces or after the last one.
            end = None
            if pieces is not None and size is not None and self.size < size:
                end = min(size, self.verified + pieces.size)
            # A chunk can hold the end of one piece and the start of the next: split it there.
            part = view if end is None else view[: end - self.size]
            self._whole.update(part)
            self.size += len(part)
            view = view[len(part) :]
            if pieces is None or end is None:
                continue
            self._piece.update(part)
            if self.size < end:
                continue
            if self._piece.hexdigest() != pieces.sha256[self.verified // pieces.size]:
                start = self.verified
                self.rewind()
                raise WrongPiece(start, end)
            self.verified = end
            self._sealed = self._whole.copy()
            self._piece = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the first ``size`` bytes, as hexadecimal digits."""
        return self._whole.hexdigest()

    def matches(self) -> bool:
        """Return whether the hashed bytes are the artifact, by its size and whole digest."""
        return self.sha256 == self._artifact.sha256 and self._artifact.size in (None, self.size)


CHUNK = 1 << 20
_FLAGS = (
    os.O_RDWR
    | os.O_CREAT
    | getattr(os, "O_NOFOLLOW", 0)  # a link could lead to any file of the user
    | getattr(os, "O_NONBLOCK", 0)  # a pipe of that name must not block us; size() refuses it
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)  # pip runs in a child
)
_LONGEST_NOTE = 1 << 16
_BLOCK = 4096
"""Bytes to which a note is padded: a usual size of a file system's blocks."""

_VALIDATOR = re.compile(r"[ -~]{1,500}")


@contextlib.contextmanager
def opened_part(folder: Path, artifact: Artifact) -> Iterator[PartialFile]:
    """Open or create the partial file of an artifact; remove it at the end if it is empty."""
    path = folder / f"{artifact.sha256}.part"
    with disk_errors("opening a partial download", folder):
        folder.mkdir(0o755, parents=True, exist_ok=True)
        descriptor = _open(path)
    try:
        yield PartialFile(path, descriptor)
    finally:
        with disk_errors("closing a partial download", folder):
            # An artifact of 0 bytes is complete with an empty file.
            empty = artifact.size != 0 and not os.fstat(descriptor).st_size
            os.close(descriptor)
            # The caller's lock keeps other processes from this name, so we can remove it.
            if empty:
                with contextlib.suppress(PermissionError):  # Windows, where a reader has it open
                    path.unlink(missing_ok=True)
                _note_of(path).unlink(missing_ok=True)


def _open(path: Path) -> int:
    """Open or create a file to write in place; never one that the user has under another name."""
    descriptor = os.open(path, _FLAGS, 0o644)
    if os.fstat(descriptor).st_nlink > 1:
        # A hard link to a file of the user's: give up this name, and write to a new file. The
        # caller's lock keeps other processes from this name.
        os.close(descriptor)
        path.unlink()
        descriptor = os.open(path, _FLAGS, 0o644)
    return descriptor


def _note_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


class PartialFile:
    """An open partial file ``<sha256>.part``, and the note ``<sha256>.part.json`` next to it.

    The note keeps the server's validator (ETag or Last-Modified) for If-Range, and the gaps
    between bytes that came out of order. Both are hints: the digests decide.

    Threads: ``write_at`` is for any thread, at offsets that no other thread writes.
    ``remember`` and ``save`` need a lock of the caller if several threads use them. All else is
    for the downloading thread only.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._folder = path.parent
        self._descriptor = descriptor
        self._kept: dict[str, str] = {}

    def size(self) -> int:
        """Get the size of the file. Raises ``NotWritable`` if it is a pipe or a device."""
        with disk_errors("reading a partial download", self._folder):
            found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotWritable(
                "a partial download is not a regular file",
                facts=(f"path: {self.path}",),
                hint="remove it",
            )
        return found.st_size

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes; fewer or b"" at the end of the file."""
        with disk_errors("reading a partial download", self._folder):
            return read_at(self._descriptor, length, offset)

    def write_at(self, chunk: bytes, offset: int) -> None:
        """Write at an offset. Any thread may call this; no position of the file is shared."""
        with disk_errors("writing a partial download", self._folder):
            _write(self._descriptor, chunk, offset)

    def truncate(self, size: int) -> None:
        """Remove all bytes from ``size`` on. No other thread may write meanwhile."""
        with disk_errors("emptying a partial download", self._folder):
            os.ftruncate(self._descriptor, size)
            # The validator belongs to the bytes: without any, it has no meaning.
            if not size:
                self._kept = {}
                _note_of(self.path).unlink(missing_ok=True)

    def noted_gaps(self) -> list[Gap]:
        """Read the gaps that an earlier run noted; keep its validator for the next note."""
        note = self._read_note()
        if note.validator:
            self._kept = {"url": note.url, "validator": note.validator}
        return note.gaps

    def validator(self, url: str) -> str | None:
        """Return the validator to send as If-Range, if the note's is from this same URL."""
        note = self._read_note()
        return note.validator if note.validator and note.url == shown(url) else None

    def _read_note(self) -> _Note:
        """Read the note; one that is damaged, or not written by us, is as good as none."""
        try:
            note = parse_json(read_foreign(_note_of(self.path), _LONGEST_NOTE))
            url, validator = str(note.get("url", "")), str(note.get("validator", ""))
            noted = note.get("gaps", ())
            gaps = [(operator.index(start), operator.index(end)) for start, end in noted]
        except (OSError, ValueError, TypeError, AttributeError):
            return _Note("", "", [])
        return _Note(url, validator if _VALIDATOR.fullmatch(validator) else "", gaps)

    def remember(self, url: str, validator: str | None, gaps: Sequence[Gap] = ()) -> None:
        """Note a validator for the next run, or forget the old one, and note the gaps."""
        self._kept = {"url": shown(url), "validator": validator} if validator else {}
        self.save(gaps)

    def save(self, gaps: Sequence[Gap]) -> None:
        """Note the gaps for the next run, which reads either these or the previous ones.

        A note overwrites the previous one, in whole blocks and one call. So a killed process
        leaves no half note. After a loss of power, the digests decide. Replacing the file
        instead would make file systems write to the disk at once, two hundred times.
        """
        path = _note_of(self.path)
        note: dict[str, object] = {**self._kept, **({"gaps": gaps} if gaps else {})}
        with disk_errors("writing a partial download", self._folder):
            if not note:
                path.unlink(missing_ok=True)
                return
            text = json.dumps(note).encode()
            text += b" " * (-len(text) % _BLOCK)  # JSON allows blanks at the end
            descriptor = _open(path)
            try:
                _write(descriptor, text, 0)
                # After the write: a kill between the two leaves blocks of the longer old note
                # at the end. Then the note cannot be parsed, and counts as none.
                os.ftruncate(descriptor, len(text))
            finally:
                os.close(descriptor)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:  # one call may write less than all
        written = write_at(descriptor, view, offset)
        view, offset = view[written:], offset + written


class _Note(NamedTuple):
    url: str
    validator: str
    gaps: list[Gap]


def verified(path: Path, artifact: Artifact) -> bool:
    """Hash a complete file; return whether it exists and is the artifact."""
    hasher = hashlib.sha256()
    size = 0
    with disk_errors("reading a download", path.parent):
        try:
            file = open_foreign(path)
        except (FileNotFoundError, IsADirectoryError):
            return False
        with file:
            # Another program may have put a file of any size there.
            if artifact.size not in (None, os.fstat(file.fileno()).st_size):
                return False
            while chunk := file.read(CHUNK):
                hasher.update(chunk)
                size += len(chunk)
    return artifact.size in (None, size) and hasher.hexdigest() == artifact.sha256


def finish(folder: Path, artifact: Artifact) -> Path:
    """Rename a verified partial file to its final name. It must be closed (Windows).

    On file systems without working locks, another process may have renamed it already, and even
    have installed and removed it. While another thread reads it, Windows does not rename it: then
    it keeps its name.
    """
    done, part = folder / artifact.sha256, folder / f"{artifact.sha256}.part"
    with disk_errors("renaming a download", folder):
        try:
            part.replace(done)
        except FileNotFoundError:
            # The other process may have renamed its own file: hash before we trust it. Without one,
            # our reader has the verified bytes: it opened the file before.
            if done.exists() and not verified(done, artifact):
                raise
        except PermissionError:
            if sys.platform != "win32":
                raise
            done = part  # an unpacking thread has it open; the caller gets the real path
        _note_of(part).unlink(missing_ok=True)
    return done


def allocated(path: Path) -> int:
    """Count the bytes that a file uses on the disk, at most its size; 0 without a file.

    A partial file with gaps uses fewer bytes than its size.
    """
    try:
        status = path.lstat()
    except OSError:
        return 0
    if not stat.S_ISREG(status.st_mode):
        return 0
    blocks: int | None = getattr(status, "st_blocks", None)  # Windows has no such count
    return status.st_size if blocks is None else min(status.st_size, blocks * 512)
