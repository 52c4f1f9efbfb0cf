"""The search for private keys where they must never be: files, archives, git's history.

Of the signers at hand, half a secret is enough for a finding, as bytes, in hexadecimal digits or in
base64, at any offset. Of everybody's keys, the usual forms of a private key are found. A finding
names the signer or the form, and the place, never the content.
"""

import base64
import binascii
import gzip
import io
import os
import re
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.ground.foreign import read_foreign
from tsuku_llm.ground.processes import children
from tsuku_publish.errors import PublishError

_HALF = 16
_LARGEST = 1 << 30
"""Bytes of a file that is searched; the largest of this repository has 30 MB."""
_DEPTH = 4
"""The depth to which archives within archives are opened."""
_ELSEWHERE = {".git", "__pycache__"}

_PEM = re.compile(
    rb"-----BEGIN ((?:[A-Z0-9]{1,12} ){0,2}PRIVATE KEY)-----"
    # No line of dashes within, so each byte is read once, whatever a file has.
    rb"((?:[^-]|-(?!----)){64,20000})-----END \1-----"
)
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{16,}")
_SEED = re.compile(rb"""["']seed\\?["']\s*[:=]\s*\\?["'][0-9A-Fa-f]{64}\b""")
_PIN = re.compile(rb"[?&]pin-value=[^\s\"'<>&]{6}")
_OUTSIDE = re.compile(rb"[\s\"'<>]")
"""What ends a URI."""
_LONGEST_URI = 1000
_LEAST_KEY = 48
"""Characters of base64 that even the shortest private key has: others are an example in a text."""

Content = tuple[str, bytes]
"""A place's name and its content."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A signer whose secret, or half of it, is in a place; or a form of anybody's private key."""

    signer: str
    place: str


def search(contents: Iterable[Content], secrets: Mapping[str, bytes]) -> tuple[list[Finding], int]:
    """Look for every secret of 32 bytes in every content, and in the members of its archives.

    Returns the findings, and the number of contents that were searched.
    """
    forms = {name: _forms(secret) for name, secret in secrets.items()}
    found: list[Finding] = []
    number = 0
    for place, data in contents:
        for inner, opened in _opened(place, data, _DEPTH):
            number += 1
            names = [
                name
                for name, needles in forms.items()
                if any(needle in opened for needle in needles)
            ]
            # Whose it is says more than its form.
            found += [Finding(name, inner) for name in names or _private_forms(opened)]
    return found, number


def _private_forms(data: bytes) -> Iterator[str]:
    """Name each form of a private key, or of a PIN, that a content has."""
    blocks = (b"".join(_BASE64.findall(found[2])) for found in _PEM.finditer(data))
    if any(len(block) >= _LEAST_KEY for block in blocks):
        yield "a private key in PEM"
    if _SEED.search(data):
        yield "a seed of a signer"
    ends = (found.start() for found in _PIN.finditer(data))
    starts = (data[max(0, end - _LONGEST_URI) : end] for end in ends)
    if any(b"pkcs11:" in _OUTSIDE.split(start)[-1] for start in starts):
        yield "a PIN in a pkcs11: URI"


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
        with children.start(command, cwd=children.CALLERS_FOLDER, stdout=subprocess.PIPE) as git:
            assert git.stdout is not None
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
        code = "import runpy; runpy.run_module('build', run_name='__main__', alter_sys=True)"
        command = children.python(code, "--no-isolation", "--outdir", str(dist))
        done = children.run([*command, str(source)], capture_output=True, text=True)
        if done.returncode:
            raise PublishError(
                f"the package could not be built: {done.stderr.strip()[-300:]}",
                hint="it needs the packages build and setuptools: pip install build setuptools",
            )
        yield "the build's log", (done.stdout + done.stderr).encode()
        yield from files_below(dist)


def _forms(secret: bytes) -> set[bytes]:
    """Return the ways in which either half of a secret may be written."""
    halves = (secret[:_HALF], secret[_HALF:])
    plain = [
        form for half in halves for form in (half, half.hex().encode(), half.hex().upper().encode())
    ]
    return {*plain, *(form for each in plain for form in _in_base64(each))}


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
        return read_foreign(path, _LARGEST)
    except OSError as error:
        raise PublishError(f"{path} cannot be read: {error.strerror}") from error
