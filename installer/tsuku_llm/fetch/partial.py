"""The partial file of an artifact, and what is known about it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from tsuku_llm.disk import disk_errors
from tsuku_llm.errors import DigestMismatch, NotWritable
from tsuku_llm.fetch.addresses import shown
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
_LONGEST_NOTE = 4096
_VALIDATOR = re.compile(r"[ -~]{1,500}")


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


class Part:
    """An open partial file ``<sha256>.part``, hashed up to its end.

    Beside it, ``<sha256>.part.json`` keeps the validator (ETag or Last-Modified) that the
    server gave, for If-Range. Both are hints: the digest at the end decides. ``mixed`` says
    that what is there came by more than one answer, or in an earlier run.
    """

    def __init__(self, folder: Path, artifact: Artifact, descriptor: int) -> None:
        self._folder = folder
        self._artifact = artifact
        self._descriptor = descriptor
        self._hasher = hashlib.sha256()
        self.size = 0
        self.mixed = False

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._folder / f"{self._artifact.sha256}.part"

    @property
    def _note(self) -> Path:
        return self._folder / f"{self._artifact.sha256}.part.json"

    @property
    def complete(self) -> bool:
        """Whether all bytes are there, as far as the size is known."""
        return self._artifact.size is not None and self.size == self._artifact.size

    def load(self) -> None:
        """Hash what an earlier run left; more than there should be is thrown away."""
        with disk_errors("reading a partial download", self._folder):
            found = os.fstat(self._descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise NotWritable(
                    "a partial download is no regular file",
                    facts=(f"path: {self.path}",),
                    hint="remove it",
                )
            if self._artifact.size is not None and found.st_size > self._artifact.size:
                self.restart()
                return
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            while chunk := os.read(self._descriptor, CHUNK):
                self._hasher.update(chunk)
                self.size += len(chunk)
            self.mixed = bool(self.size)

    def write(self, chunk: bytes) -> None:
        """Append."""
        with disk_errors("writing a partial download", self._folder):
            view = memoryview(chunk)
            while view:
                view = view[os.write(self._descriptor, view) :]
        self._hasher.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        """Throw away what is there."""
        with disk_errors("emptying a partial download", self._folder):
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self._note.unlink(missing_ok=True)
        self._hasher = hashlib.sha256()
        self.size = 0
        self.mixed = False

    def validator(self, url: str) -> str | None:
        """What to send as If-Range to this URL; other servers' validators mean nothing to it."""
        try:
            note = json.loads(self._note.read_bytes()[:_LONGEST_NOTE])
            validator = str(note["validator"]) if note["url"] == shown(url) else ""
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return validator if _VALIDATOR.fullmatch(validator) else None

    def remember(self, url: str, validator: str | None) -> None:
        """Keep a validator for the next run; without one, forget the one before."""
        with disk_errors("writing a partial download", self._folder):
            if validator:
                note = {"url": shown(url), "validator": validator}
                self._note.write_text(json.dumps(note), encoding="utf-8")
            else:
                self._note.unlink(missing_ok=True)

    def matches(self) -> bool:
        """Whether what is there is the artifact."""
        return self._hasher.hexdigest() == self._artifact.sha256 and (
            self._artifact.size in (None, self.size)
        )

    def mismatch(self, url: str) -> DigestMismatch:
        """The error for complete bytes that are not the artifact's."""
        return DigestMismatch(
            "a download is not the file that was signed",
            facts=(
                f"url: {shown(url)}",
                f"expected: sha256 {self._artifact.sha256}",
                f"received: sha256 {self._hasher.hexdigest()}, {self.size} bytes",
            ),
            hint="nothing was installed; if it happens again, somebody alters files on the way",
        )


@contextlib.contextmanager
def opened_part(folder: Path, artifact: Artifact) -> Iterator[Part]:
    """The partial file of an artifact, made if need be; kept when left, unless it is empty."""
    path = folder / f"{artifact.sha256}.part"
    with disk_errors("opening a partial download", folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, _FLAGS, 0o644)
    part = Part(folder, artifact, descriptor)
    try:
        part.load()
        yield part
    finally:
        with disk_errors("closing a partial download", folder):
            os.close(descriptor)
            if not (part.size or part.complete):
                path.unlink(missing_ok=True)


def finish(folder: Path, artifact: Artifact) -> Path:
    """Give a verified partial file its final name. It must be closed (Windows).

    Where locks exclude nobody, another process may have done so already.
    """
    done = folder / artifact.sha256
    with disk_errors("renaming a download", folder):
        try:
            (folder / f"{artifact.sha256}.part").replace(done)
        except FileNotFoundError:
            if not verified(done, artifact):
                raise
        (folder / f"{artifact.sha256}.part.json").unlink(missing_ok=True)
    return done
