"""The search for the signers' seeds where they must never be: files, archives, git's history.

Half a seed is enough for a finding, as bytes, in hexadecimal digits or in base64, at any offset. A
finding names the signer and the place, never the content.
"""

import base64
import binascii
import gzip
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tsuku_publish.errors import PublishError

_HALF = 16
_DEPTH = 4
"""The depth to which archives within archives are opened."""
_ELSEWHERE = {".git", "__pycache__"}

Content = tuple[str, bytes]
"""A place's name and its content."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A signer whose seed, or half of it, is in a place."""

    signer: str
    place: str


def search(contents: Iterable[Content], seeds: Mapping[str, bytes]) -> tuple[list[Finding], int]:
    """Look for every seed in every content, and in the members of archives among them.

    Returns the findings, and the number of contents that were searched.
    """
    forms = {name: _forms(seed) for name, seed in seeds.items()}
    found, number = [], 0
    for place, data in contents:
        for inner, opened in _opened(place, data, _DEPTH):
            number += 1
            found += [
                Finding(name, inner)
                for name, needles in forms.items()
                if any(needle in opened for needle in needles)
            ]
    return found, number


def files_below(root: Path) -> Iterator[Content]:
    """Yield a file, or every file of a folder except git's own and those of environments."""
    if not root.is_dir():
        yield root.name, _read(root)
        return
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if name not in _ELSEWHERE and not Path(folder, name, "pyvenv.cfg").exists()
        ]
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(root).as_posix(), _read(path)


def history(repository: Path) -> Iterator[Content]:
    """Yield every object in git: files of all commits, messages, objects that no branch reaches.

    Raises ``PublishError``.
    """
    command = ["git", "-C", str(repository), "cat-file", "--batch-all-objects", "--batch"]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as git:
            assert git.stdout is not None  # noqa: S101 - it was asked for
            while header := git.stdout.readline():
                name, kind, size = header.decode().split()
                yield f"git's {kind} {name[:12]}", git.stdout.read(int(size))
                git.stdout.read(1)  # the line feed after every object
    except OSError as error:
        raise PublishError(f"git cannot be run: {error.strerror}") from error
    if git.returncode:
        raise PublishError(f"git could not list the objects of {repository}")


def built(repository: Path) -> Iterator[Content]:
    """Yield the wheel and the sdist of this tree, built from a copy. Raises ``PublishError``."""
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        source, dist = Path(folder, "source"), Path(folder, "dist")
        for name, data in files_below(repository):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(data)
        # From a copy, so that the build leaves nothing in this tree.
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist)]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise PublishError(f"the package could not be built: {done.stderr.strip()[-300:]}")
        yield "the build's log", (done.stdout + done.stderr).encode()
        yield from files_below(dist)


def _forms(seed: bytes) -> set[bytes]:
    """Return the ways in which either half of a seed may be written."""
    return {form for half in (seed[:_HALF], seed[_HALF:]) for form in _written(half)}


def _written(part: bytes) -> Iterator[bytes]:
    yield part
    for text in (part.hex(), part.hex().upper()):
        yield text.encode()
        yield from _in_base64(text.encode())
    yield from _in_base64(part)


def _in_base64(part: bytes) -> Iterator[bytes]:
    """Yield the part in base64 for each of three offsets, in both alphabets.

    Letters that also hold bits of a neighbouring byte are left out.
    """
    for before in range(3):
        # The offset modulo 3 decides how the bytes are spread over the letters.
        encoded = base64.b64encode(bytes(before) + part)
        first = -(-before * 8 // 6)  # after the letters with bits of earlier bytes
        last = (before + len(part)) * 8 // 6  # before the letters with bits of later bytes
        yield encoded[first:last]
        yield encoded[first:last].translate(bytes.maketrans(b"+/", b"-_"))


def _opened(place: str, data: bytes, depth: int) -> Iterator[Content]:
    """Yield the content itself, and everything in it if it is an archive."""
    yield place, data
    if depth:
        for name, inner in _members(data):
            yield from _opened(f"{place}: {name}", inner, depth - 1)


def _members(data: bytes) -> list[Content]:
    """Return an archive's members; none if it is not an archive, or is damaged."""
    try:
        if data.startswith(b"\x1f\x8b"):
            return [("unpacked", gzip.decompress(data))]
        if data.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                return [(name, archive.read(name)) for name in archive.namelist()]
        if data[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                files = ((entry.name, archive.extractfile(entry)) for entry in archive)
                return [(name, file.read()) for name, file in files if file]
    except (OSError, EOFError, ValueError, RuntimeError, zlib.error, binascii.Error):
        return []
    except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError):
        return []
    return []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PublishError(f"{path} cannot be read: {error.strerror}") from error
