"""The partial file of an artifact, and the note with its gaps and validator."""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsuku_llm.disk import disk_errors
from tsuku_llm.errors import DigestMismatch, NotWritable
from tsuku_llm.fetch.addresses import shown
from tsuku_llm.fetch.arrival import Arrival
from tsuku_llm.fetch.places import read_at, write_at
from tsuku_llm.fetch.prefix import Prefix, WrongPiece
from tsuku_llm.fetch.segments import Gap, gaps_of
from tsuku_llm.manifest import Artifact

CHUNK = 1 << 20
_FLAGS = (
    os.O_RDWR
    | os.O_CREAT
    | getattr(os, "O_NOFOLLOW", 0)  # a link could lead to any file of the user
    | getattr(os, "O_NONBLOCK", 0)  # a pipe of that name must not block us; load() refuses it
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)  # pip runs in a child
)
_LONGEST_NOTE = 1 << 16
_BLOCK = 4096
"""Bytes to which a note is padded: a usual size of a file system's blocks."""

_VALIDATOR = re.compile(r"[ -~]{1,500}")
_ALTERED = "nothing was installed; if it happens again, something on the network alters the files"


def verified(path: Path, artifact: Artifact) -> bool:
    """Hash a complete file; return whether it exists and is the artifact."""
    hasher = hashlib.sha256()
    size = 0
    with disk_errors("reading a download", path.parent):
        try:
            file = path.open("rb")
        except (FileNotFoundError, IsADirectoryError):
            return False
        with file:
            while chunk := file.read(CHUNK):
                hasher.update(chunk)
                size += len(chunk)
    return artifact.size in (None, size) and hasher.hexdigest() == artifact.sha256


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


@dataclass(frozen=True, slots=True)
class _Note:
    url: str
    validator: str
    gaps: list[Gap]


def _parse_note(note: Any) -> _Note:
    """Check a note's JSON value; raise ``TypeError`` or ``ValueError`` if we did not write it."""
    if not isinstance(note, dict):
        raise TypeError("no object")
    validator = str(note.get("validator", ""))
    gaps = [(operator.index(start), operator.index(end)) for start, end in note.get("gaps", ())]
    return _Note(
        str(note.get("url", "")), validator if _VALIDATOR.fullmatch(validator) else "", gaps
    )


class Part:
    """An open partial file ``<sha256>.part``.

    The note ``<sha256>.part.json`` keeps the server's validator (ETag or Last-Modified) for
    If-Range, and the gaps between bytes that came out of order. Both are hints: the digests
    decide. ``mixed``: the bytes came in more than one answer, or in an earlier run.
    ``prefix`` holds the hash of the first bytes; the code that writes must keep it up to
    date. ``grown`` is called with the number of verified bytes; those are never removed.

    Threads: ``write_at`` is for any thread, at offsets that no other thread writes. ``save``
    and ``remember`` need a lock of the caller. All else is for the downloading thread only.
    """

    def __init__(
        self, folder: Path, artifact: Artifact, descriptor: int, grown: Callable[[int], None]
    ) -> None:
        self._folder = folder
        self._artifact = artifact
        self._descriptor = descriptor
        self._kept: dict[str, str] = {}
        self._grown = grown
        self.prefix = Prefix(artifact)
        self.mixed = False

    @property
    def path(self) -> Path:
        """The path of the partial file."""
        return self._folder / f"{self._artifact.sha256}.part"

    @property
    def _note(self) -> Path:
        return self._folder / f"{self._artifact.sha256}.part.json"

    @property
    def size(self) -> int:
        """The number of bytes, from the start, that are hashed."""
        return self.prefix.size

    @property
    def complete(self) -> bool:
        """Whether all bytes are there and hashed; False if the size is not known."""
        return self._artifact.size is not None and self.size == self._artifact.size

    def load(self) -> list[Gap]:
        """Read what an earlier run left, and return its gaps; empty a file that is too long.

        If the artifact's size is not known, no gaps are known either.
        """
        with disk_errors("reading a partial download", self._folder):
            found = os.fstat(self._descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise NotWritable(
                    "a partial download is not a regular file",
                    facts=(f"path: {self.path}",),
                    hint="remove it",
                )
            there = found.st_size
            # Then nothing tells where the file ends, and one connection resumes after it.
            if self._artifact.size is None:
                return []
            if there > self._artifact.size:
                self.restart()
                there = 0
            note = self._read_note()
            if note.validator:
                self._kept = {"url": note.url, "validator": note.validator}
            self.mixed = bool(there)
            return gaps_of(self._artifact.size, there, note.gaps)

    def settle(self, gaps: list[Gap]) -> None:
        """Hash the bytes before the first gap or wrong piece; remove those after it."""
        end = gaps[0][0] if gaps else None
        # A wrong piece is no server's fault: an earlier run left it.
        with contextlib.suppress(WrongPiece):
            while self.hash_on(end):
                pass
        self.mixed = bool(self.size)
        self._cut()

    def hash_on(self, end: int | None) -> bool:
        """Hash the next bytes of the file, up to ``end``; return False if nothing is left.

        Raises ``WrongPiece``.
        """
        # Other threads may write to the file meanwhile, but only after ``end``.
        length = CHUNK if end is None else min(CHUNK, end - self.size)
        with disk_errors("reading a partial download", self._folder):
            chunk = read_at(self._descriptor, length, self.size)
        self._hash(chunk)
        return bool(chunk)

    def _hash(self, chunk: bytes) -> None:
        before = self.prefix.verified
        try:
            self.prefix.update(chunk)
        finally:
            # Also after a wrong piece: right ones before it in the same chunk are usable.
            if self.prefix.verified > before:
                self._grown(self.prefix.verified)

    def append(self, chunk: bytes) -> None:
        """Write after the hashed bytes, and hash. Raises ``WrongPiece`` and drops that piece."""
        # Write first: once hashed, the bytes may be read by the thread that unpacks.
        self.write_at(chunk, self.size)
        try:
            self._hash(chunk)
        except WrongPiece:
            self._cut()
            raise

    def write_at(self, chunk: bytes, offset: int) -> None:
        """Write at an offset. Any thread may call this; no position of the file is shared."""
        with disk_errors("writing a partial download", self._folder):
            _write(self._descriptor, chunk, offset)

    def restart(self) -> None:
        """Remove the bytes that are not verified. No other thread may write meanwhile."""
        self.prefix.rewind()
        self._cut()  # after rewind(), which sets the size to cut to

    def _cut(self) -> None:
        with disk_errors("emptying a partial download", self._folder):
            os.ftruncate(self._descriptor, self.size)
            # The validator belongs to the bytes: without any, it has no meaning.
            if not self.size:
                self._kept = {}
                self._note.unlink(missing_ok=True)
        self.mixed = self.mixed and bool(self.size)

    def _read_note(self) -> _Note:
        try:
            with self._note.open("rb") as file:
                return _parse_note(json.loads(file.read(_LONGEST_NOTE)))
        # A damaged note is as good as none. RecursionError: deeply nested JSON.
        except (OSError, ValueError, TypeError, RecursionError):
            return _Note("", "", [])

    def validator(self, url: str) -> str | None:
        """Return the validator to send as If-Range, if the note's is from this same URL."""
        note = self._read_note()
        return note.validator if note.validator and note.url == shown(url) else None

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
        note: dict[str, object] = {**self._kept, **({"gaps": gaps} if gaps else {})}
        with disk_errors("writing a partial download", self._folder):
            if not note:
                self._note.unlink(missing_ok=True)
                return
            text = json.dumps(note).encode()
            text += b" " * (-len(text) % _BLOCK)  # JSON allows blanks at the end
            descriptor = _open(self._note)
            try:
                _write(descriptor, text, 0)
                # After the write: a kill between the two leaves blocks of the longer old note
                # at the end. Then the note cannot be parsed, and counts as none.
                os.ftruncate(descriptor, len(text))
            finally:
                os.close(descriptor)

    def matches(self) -> bool:
        """Return whether the hashed bytes are the artifact."""
        return self.prefix.matches()

    def mismatch(self, url: str) -> DigestMismatch:
        """Make the error for a complete file that is not the artifact."""
        return DigestMismatch(
            "a download is not the file that was signed",
            facts=(
                f"url: {shown(url)}",
                f"expected: sha256 {self._artifact.sha256}",
                f"received: sha256 {self.prefix.sha256}, {self.size} bytes",
            ),
            hint=_ALTERED,
        )


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


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:  # one call may write less than all
        written = write_at(descriptor, view, offset)
        view, offset = view[written:], offset + written


def wrong_piece(url: str, piece: WrongPiece) -> DigestMismatch:
    """Make the error for a piece whose bytes are wrong."""
    return DigestMismatch(
        "a piece of a download is not the one that was signed",
        facts=(f"url: {shown(url)}", f"bytes: {piece.start} to {piece.end - 1}"),
        hint=_ALTERED,
    )


@contextlib.contextmanager
def opened_part(folder: Path, artifact: Artifact, arrival: Arrival) -> Iterator[Part]:
    """Open or create the partial file of an artifact; remove it at the end if it is empty."""
    path = folder / f"{artifact.sha256}.part"
    with disk_errors("opening a partial download", folder):
        folder.mkdir(0o755, parents=True, exist_ok=True)
        descriptor = _open(path)
    part = Part(folder, artifact, descriptor, arrival.grow)
    try:
        arrival.opened(path)
        yield part
    finally:
        with disk_errors("closing a partial download", folder):
            # An artifact of 0 bytes is complete with an empty file.
            empty = not (os.fstat(descriptor).st_size or part.complete)
            os.close(descriptor)
            # The caller's lock keeps other processes from this name, so we can remove it.
            if empty:
                with contextlib.suppress(PermissionError):  # Windows, where a reader has it open
                    path.unlink(missing_ok=True)
                path.with_name(f"{path.name}.json").unlink(missing_ok=True)


def finish(folder: Path, artifact: Artifact) -> Path:
    """Rename a verified partial file to its final name. It must be closed (Windows).

    On file systems without working locks, another process may have renamed it already. While
    another thread reads it, Windows does not rename it: then it keeps its name.
    """
    done, part = folder / artifact.sha256, folder / f"{artifact.sha256}.part"
    with disk_errors("renaming a download", folder):
        try:
            part.replace(done)
        except FileNotFoundError:
            # The other process may have renamed its own file: hash before we trust it.
            if not verified(done, artifact):
                raise
        except PermissionError:
            if sys.platform != "win32":
                raise
            done = part  # an unpacking thread has it open; the caller gets the real path
        (folder / f"{artifact.sha256}.part.json").unlink(missing_ok=True)
    return done
