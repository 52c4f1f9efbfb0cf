"""The partial file of an artifact, and what is known about it."""

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
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_LONGEST_NOTE = 1 << 16
_BLOCK = 4096
_VALIDATOR = re.compile(r"[ -~]{1,500}")
_ALTERED = "nothing was installed; if it happens again, somebody alters files on the way"


def verified(path: Path, artifact: Artifact) -> bool:
    """Whether a complete file is there and is the artifact; hashes all of it."""
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
    """Bytes that a file takes on the disk, no more than its size; none where there is no file."""
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
    """Raises ``TypeError`` or ``ValueError`` for what no run of ours wrote."""
    if not isinstance(note, dict):
        raise TypeError("no object")
    validator = str(note.get("validator", ""))
    gaps = [(operator.index(start), operator.index(end)) for start, end in note.get("gaps", ())]
    return _Note(
        str(note.get("url", "")), validator if _VALIDATOR.fullmatch(validator) else "", gaps
    )


class Part:
    """An open partial file ``<sha256>.part``.

    Beside it, ``<sha256>.part.json`` keeps the validator (ETag or Last-Modified) that the
    server gave, for If-Range, and the gaps where bytes came out of order. All are hints:
    the digests decide. ``mixed`` says that what is there came by more than one answer, or
    in an earlier run; ``prefix`` is what was hashed of it, and must be kept up to date by
    whoever writes. ``grown`` is called with the number of bytes that may be used: those are
    never thrown away again.
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
        """Where it lies."""
        return self._folder / f"{self._artifact.sha256}.part"

    @property
    def _note(self) -> Path:
        return self._folder / f"{self._artifact.sha256}.part.json"

    @property
    def size(self) -> int:
        """How far it is hashed."""
        return self.prefix.size

    @property
    def complete(self) -> bool:
        """Whether all bytes are there and hashed, as far as the size is known."""
        return self._artifact.size is not None and self.size == self._artifact.size

    def load(self) -> list[Gap]:
        """The gaps of what an earlier run left; more than there should be is thrown away.

        Where the size is not known, what is there has no end and no gaps are known.
        """
        with disk_errors("reading a partial download", self._folder):
            found = os.fstat(self._descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise NotWritable(
                    "a partial download is no regular file",
                    facts=(f"path: {self.path}",),
                    hint="remove it",
                )
            there = found.st_size
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
        """Hash what is there up to the first gap or wrong piece; what lies behind goes."""
        end = gaps[0][0] if gaps else None
        with contextlib.suppress(WrongPiece):
            while self.hash_on(end):
                pass
        self.mixed = bool(self.size)
        self._cut()

    def hash_on(self, end: int | None) -> bool:
        """Hash the next bytes of what is there, up to ``end``; False when there are none.

        Raises ``WrongPiece``.
        """
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
            if self.prefix.verified > before:
                self._grown(self.prefix.verified)

    def append(self, chunk: bytes) -> None:
        """Write behind what is hashed, and hash it. Raises ``WrongPiece``, the piece dropped."""
        self.write_at(chunk, self.size)
        try:
            self._hash(chunk)
        except WrongPiece:
            self._cut()
            raise

    def write_at(self, chunk: bytes, offset: int) -> None:
        """Write somewhere; any thread may."""
        with disk_errors("writing a partial download", self._folder):
            _write(self._descriptor, chunk, offset)

    def restart(self) -> None:
        """Throw away what is not verified."""
        self.prefix.rewind()
        self._cut()

    def _cut(self) -> None:
        with disk_errors("emptying a partial download", self._folder):
            os.ftruncate(self._descriptor, self.size)
            if not self.size:
                self._kept = {}
                self._note.unlink(missing_ok=True)
        self.mixed = self.mixed and bool(self.size)

    def _read_note(self) -> _Note:
        try:
            with self._note.open("rb") as file:
                return _parse_note(json.loads(file.read(_LONGEST_NOTE)))
        except (OSError, ValueError, TypeError, RecursionError):
            return _Note("", "", [])

    def validator(self, url: str) -> str | None:
        """What to send as If-Range to this URL; other servers' validators mean nothing to it."""
        note = self._read_note()
        return note.validator if note.validator and note.url == shown(url) else None

    def remember(self, url: str, validator: str | None, gaps: Sequence[Gap] = ()) -> None:
        """Keep a validator for the next run, or forget the one before; and the gaps."""
        self._kept = {"url": shown(url), "validator": validator} if validator else {}
        self.save(gaps)

    def save(self, gaps: Sequence[Gap]) -> None:
        """Keep the gaps for the next run, which sees these or those kept before.

        A note is written over the one before, whole blocks in one call: no kill leaves half of
        one, and after a loss of power the digests decide. To replace the file instead would
        make file systems write to the disk at once, two hundred times.
        """
        note: dict[str, object] = {**self._kept, **({"gaps": gaps} if gaps else {})}
        with disk_errors("writing a partial download", self._folder):
            if not note:
                self._note.unlink(missing_ok=True)
                return
            text = json.dumps(note).encode()
            text += b" " * (-len(text) % _BLOCK)
            descriptor = os.open(self._note, _FLAGS, 0o644)
            try:
                _write(descriptor, text, 0)
                os.ftruncate(descriptor, len(text))
            finally:
                os.close(descriptor)

    def matches(self) -> bool:
        """Whether what is there is the artifact."""
        return self.prefix.matches()

    def mismatch(self, url: str) -> DigestMismatch:
        """The error for complete bytes that are not the artifact's."""
        return DigestMismatch(
            "a download is not the file that was signed",
            facts=(
                f"url: {shown(url)}",
                f"expected: sha256 {self._artifact.sha256}",
                f"received: sha256 {self.prefix.sha256}, {self.size} bytes",
            ),
            hint=_ALTERED,
        )


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = write_at(descriptor, view, offset)
        view, offset = view[written:], offset + written


def wrong_piece(url: str, piece: WrongPiece) -> DigestMismatch:
    """The error for bytes that are not those of their piece."""
    return DigestMismatch(
        "a piece of a download is not the one that was signed",
        facts=(f"url: {shown(url)}", f"bytes: {piece.start} to {piece.end - 1}"),
        hint=_ALTERED,
    )


@contextlib.contextmanager
def opened_part(folder: Path, artifact: Artifact, arrival: Arrival) -> Iterator[Part]:
    """The partial file of an artifact, made if need be; kept when left, unless it is empty."""
    path = folder / f"{artifact.sha256}.part"
    with disk_errors("opening a partial download", folder):
        folder.mkdir(0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, _FLAGS, 0o644)
    part = Part(folder, artifact, descriptor, arrival.grow)
    try:
        arrival.opened(path)
        yield part
    finally:
        with disk_errors("closing a partial download", folder):
            empty = not (os.fstat(descriptor).st_size or part.complete)
            os.close(descriptor)
            if empty:
                with contextlib.suppress(PermissionError):  # Windows, where a reader has it open
                    path.unlink(missing_ok=True)
                path.with_name(f"{path.name}.json").unlink(missing_ok=True)


def finish(folder: Path, artifact: Artifact) -> Path:
    """Give a verified partial file its final name. It must be closed (Windows).

    Where locks exclude nobody, another process may have done so already. Where somebody
    reads it, Windows lets it have no other name: then it keeps the one that it has.
    """
    done, part = folder / artifact.sha256, folder / f"{artifact.sha256}.part"
    with disk_errors("renaming a download", folder):
        try:
            part.replace(done)
        except FileNotFoundError:
            if not verified(done, artifact):
                raise
        except PermissionError:
            if sys.platform != "win32":
                raise
            done = part
        (folder / f"{artifact.sha256}.part.json").unlink(missing_ok=True)
    return done
