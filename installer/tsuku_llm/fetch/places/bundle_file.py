"""The one file of a bundle: a short shell script, and behind it a zip file of stored members.

The members are a mirror in its own layout (``mirror_folder``), the wheels of this program, and
``bundle.json``, which describes both. The script compares the size and the digest of what follows
it, and then runs the member ``start.py``. That finds accidents; it proves nothing, because whoever
changes the file can change the digest, too. Readers of a member verify it themselves, as if it came
from a mirror.

The same members always give the same bytes: members have no dates, and their order is that of the
writer.
"""

from __future__ import annotations

import hashlib
import io
import re
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tsuku_llm.archive.formats.budget import Budget, Spending
from tsuku_llm.archive.formats.zip_directory import STORED, Entry, read_directory
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import BadBundle, UnsafeArchive, UsageError
from tsuku_llm.ground.files import TEMPORARY_SUFFIX, flush_folder, rename, seal_file, unique
from tsuku_llm.ground.folders import opened
from tsuku_llm.ground.foreign import open_foreign
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import digest, documented, encode, many, optional, parse, record, text

ARTIFACTS = "sha256"
"""The folder of the archives, named by their digests: in a bundle as in the folder of a mirror."""

DESCRIPTION = "bundle.json"
START = "start.py"
SBOM = "sbom.cdx.json"
WHEELS = "wheels"
PROGRAMS = "programs"

_CHUNK = 1 << 20
_LARGEST_DESCRIPTION = 16 << 20
_BUDGET = Budget(size=1 << 50, members=100_000)
"""Nothing of a bundle is unpacked, so only the number of members is limited."""

_NAME = re.compile(
    r"(?!.*(?:^|/)\.{1,2}(?:/|$))[A-Za-z0-9%_][A-Za-z0-9%_.+!~-]*(?:/[A-Za-z0-9%_.+!~-]+)*"
)
_FIELD = re.compile(rb"^(size|sha256)=(\S+) *$", re.MULTILINE)

_HEAD = """\
#!/bin/sh
# A bundle of tsuku-llm: the program, signed metadata and builds, for machines without a network.
# To install from it: sh FILE   To see the options: sh FILE --help   What is in it: unzip -l FILE
size={size:<20}
sha256={sha256}
# No program, library or module of the current folder: other users may be able to write there.
absolute() {{
    given='' kept='' IFS=$2 && set -f
    eval "given=\\${{$1-}}"
    for each in $given; do
        case $each in /*) kept=$kept:$each ;; esac
    done
    unset IFS "$1" && set +f
    [ -z "$kept" ] || export "$1=${{kept#:}}"
}}
absolute PATH :
absolute LD_LIBRARY_PATH ':;'
absolute LD_PRELOAD ': '
absolute LD_AUDIT :
python=${{PYTHON:-python3}}
if [ "$(wc -c <"$0" | tr -d ' ')" != "$size" ]; then
    echo "error[bad-bundle]: $0 is not whole: it should have $size bytes" >&2
    echo "  hint: copy it again, and compare its SHA-256 with what its maker says" >&2
    exit 5
fi
if ! "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "error[wrong-bundle]: the program needs Python 3.10 or newer, and $python is not" >&2
    echo "  hint: install python3, or name another one: PYTHON=/path/to/python3 sh $0" >&2
    exit 3
fi
exec "$python" -I -c '
import hashlib, sys, zipfile
_, head, wanted, *sys.argv = sys.argv
with open(sys.argv[0], "rb") as file:
    file.seek(int(head))
    found = hashlib.sha256()
    for chunk in iter(lambda: file.read(1 << 20), b""):
        found.update(chunk)
    if found.hexdigest() != wanted:
        print("error[bad-bundle]: %s is damaged" % sys.argv[0], file=sys.stderr)
        print("  hint: copy it again, and compare its SHA-256 with its maker", file=sys.stderr)
        sys.exit(5)
    code = zipfile.ZipFile(file).read("start.py")
exec(compile(code, "start.py", "exec"), {{"__name__": "__main__"}})
' {head:<5} "$sha256" "$0" "$@"
"""
"""The script: everything before the zip file. Its length never depends on the two values."""


def _head(size: int, sha256: str) -> bytes:
    length = len(_HEAD.format(size=0, sha256="0" * 64, head=0))
    return _HEAD.format(size=size, sha256=sha256, head=length).encode("ascii")


_LENGTH = len(_head(0, "0" * 64))


class BundledBuild(NamedTuple):
    """A build that a bundle holds: ``artifacts`` are the digests of its archives."""

    release: str
    channel: str
    platform: str
    variant: str
    artifacts: tuple[str, ...]


@documented("platform", "python", "glibc")
class BundledProgram(NamedTuple):
    """The program in a bundle for one Python, such as 3.11; ``glibc`` is the oldest that works.

    ``requirements`` is the member that names the wheels with their digests.
    """

    platform: str
    python: str
    requirements: str
    wheels: tuple[str, ...]
    glibc: str | None = None


@documented("made_by", "repository", "fingerprint", "expires", "builds", "programs")
class BundleDescription(NamedTuple):
    """The content of ``bundle.json``; nothing of it is trusted.

    ``made_by`` is the version of the program that made the bundle. ``fingerprint`` is the SHA-256
    of the root of the repository, ``places`` are its own addresses. ``expires`` is a time in UTC.
    """

    made_by: str
    repository: str
    fingerprint: str
    places: tuple[str, ...]
    expires: str
    builds: tuple[BundledBuild, ...]
    programs: tuple[BundledProgram, ...] = ()

    @property
    def artifacts(self) -> frozenset[str]:
        """The digests of all archives."""
        return frozenset(sha256 for build in self.builds for sha256 in build.artifacts)


_BUILD = {"release": text, "channel": text, "platform": text, "variant": text}
_PROGRAM = {"platform": text, "python": text, "requirements": text}

_read_description = record(
    BundleDescription,
    {
        "made_by": text,
        "repository": text,
        "fingerprint": digest,
        "places": many(text),
        "expires": text,
        "builds": many(record(BundledBuild, _BUILD | {"artifacts": many(digest)})),
        "programs": many(
            record(BundledProgram, _PROGRAM | {"wheels": many(text), "glibc": optional(text)})
        ),
    },
    format=1,
)


class BundleFile:
    """An open bundle, whose structure was checked; its members are not verified."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        """Read the directory. Raises ``BadBundle``, ``OSError``."""
        self.path = path
        self._file = file
        file.seek(0)
        said = dict(_FIELD.findall(file.read(_LENGTH)))
        size = file.seek(0, io.SEEK_END)
        if said.keys() != {b"size", b"sha256"} or not said[b"size"].isdigit():
            raise self.refused("it does not begin as a bundle")
        if int(said[b"size"]) != size:
            raise self.refused(f"it has {size} bytes, and should have {int(said[b'size'])}")
        self._sha256 = said[b"sha256"].decode("ascii", "replace")
        try:
            entries = read_directory(file, Spending(_BUDGET), begins=_LENGTH)
        except UnsafeArchive as error:
            raise self.refused(error.message, *error.facts) from error
        self._entries: dict[str, Entry] = {}
        for entry in entries:
            is_file = stat.S_IFMT(entry.mode) == stat.S_IFREG
            usual = is_file and entry.method == STORED and _NAME.fullmatch(entry.name)
            if not usual or entry.name in self._entries:
                raise self.refused(f"it has a member that no bundle has: {entry.name[:100]!a}")
            self._entries[entry.name] = entry

    @property
    def sizes(self) -> dict[str, int]:
        """The members with their sizes in bytes."""
        return {name: entry.size for name, entry in self._entries.items()}

    def description(self) -> BundleDescription:
        """Read ``bundle.json``. Raises ``BadBundle``."""
        data = self.read(DESCRIPTION, _LARGEST_DESCRIPTION)
        if data is None:
            raise self.refused(f"it has no {DESCRIPTION}")
        try:
            return parse(data, _read_description)
        except ValueError as error:
            raise self.refused(f"{DESCRIPTION} cannot be understood", str(error)) from error

    def read(self, name: str, limit: int) -> bytes | None:
        """Return a member's content; None without one. Raises ``BadBundle`` above ``limit``."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        if entry.size > limit:
            raise self.refused(f"{name} has more than {limit:,} bytes")
        return b"".join(self.chunks(name) or ())

    def chunks(self, name: str) -> Iterator[bytes] | None:
        """Return the content of a member in chunks; None without one."""
        entry = self._entries.get(name)
        return None if entry is None else self._chunks(entry)

    def _chunks(self, entry: Entry) -> Iterator[bytes]:
        position, end = entry.data, entry.data + entry.size
        while position < end:
            with disk_errors("reading the bundle", self.path):
                self._file.seek(position)
                chunk = self._file.read(min(_CHUNK, end - position))
            if not chunk:
                raise self.refused("it ends early")
            position += len(chunk)
            yield chunk

    def sha256(self) -> str:
        """Hash the whole file, and return its SHA-256.

        Raises ``BadBundle`` if what follows the script is not what the script says.
        """
        with disk_errors("reading the bundle", self.path):
            self._file.seek(0)
            head = self._file.read(_LENGTH)
            whole, rest = hashlib.sha256(head), hashlib.sha256()
            while chunk := self._file.read(_CHUNK):
                whole.update(chunk)
                rest.update(chunk)
        if rest.hexdigest() != self._sha256:
            raise self.refused("its content is not what it says: it is damaged, or was changed")
        return whole.hexdigest()

    def refused(self, reason: str, *facts: str) -> BadBundle:
        """Make the error for a bundle that cannot be used."""
        return BadBundle(
            f"{self.path} is no bundle that can be used",
            facts=(reason, *facts),
            hint="copy it again, and compare its SHA-256 with what its maker says; "
            f"to make one: {TSUKU} bundle create FILE",
        )


@contextmanager
def opened_bundle(path: Path) -> Iterator[BundleFile]:
    """Open a bundle for the block. Raises ``UsageError`` without the file, ``BadBundle``."""
    try:
        opened_file = open_foreign(path)
    except OSError as error:
        raise _not_opened(path, error.strerror or str(error)) from error
    with opened_file as file:
        with disk_errors("reading the bundle", path):
            bundle = BundleFile(path, file)
        # Not the errors of what the caller does with it: another disk may be full.
        yield bundle


def _not_opened(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"the bundle {path} cannot be opened",
        facts=(reason,),
        hint=f"name the file that {TSUKU} bundle create made",
    )


class BundleWriter:
    """A bundle that is being written; the name appears when it is complete."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        file.write(_head(0, "0" * 64))
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)

    def add(self, name: str, data: bytes) -> None:
        """Write a member."""
        self.add_chunks(name, len(data), iter((data,)))

    def add_chunks(self, name: str, size: int, chunks: Iterator[bytes]) -> None:
        """Write a member of ``size`` bytes, chunk by chunk."""
        info = zipfile.ZipInfo(name)  # its date is 1980
        info.create_system = 3  # Unix, on every system: the mode below is one of Unix
        info.external_attr = (stat.S_IFREG | 0o644) << 16
        info.file_size = size
        with self._zip.open(info, "w") as member:
            for chunk in chunks:
                member.write(chunk)

    def close(self) -> None:
        """End the zip file, if an error has not left time for that; the disk may be full."""
        with suppress(OSError, ValueError):
            self._zip.close()

    def finish(self) -> str:
        """Write the end and the script; return the SHA-256 of the whole file."""
        self._zip.close()
        size = self._file.tell()
        self._file.seek(_LENGTH)
        rest = hashlib.sha256()
        while chunk := self._file.read(_CHUNK):
            rest.update(chunk)
        head = _head(size, rest.hexdigest())
        self._file.seek(0)
        self._file.write(head)
        self._file.seek(0)
        whole = hashlib.sha256()
        while chunk := self._file.read(_CHUNK):
            whole.update(chunk)
        return whole.hexdigest()


@contextmanager
def written_bundle(path: Path) -> Iterator[BundleWriter]:
    """Write a bundle in the block: afterwards the file is complete, or not there.

    The caller keeps other processes away from this name. Raises ``StoreError``.
    """
    beside = path.with_name(f".{path.name}.{unique()}{TEMPORARY_SUFFIX}")
    with disk_errors("writing the bundle", path.parent):
        with opened(path.parent) as folder:
            if folder is not None:
                # What a killed process left: nobody else writes this name now.
                folder.drop_temporaries(re.escape(path.name), float("inf"))
        try:
            with beside.open("xb+") as file:
                writer = BundleWriter(file)
                try:
                    yield writer
                finally:
                    writer.close()
            seal_file(beside, 0o644)
            rename(beside, path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
        flush_folder(path.parent)


def describe(description: BundleDescription) -> bytes:
    """Return ``bundle.json``."""
    return encode({"format": 1, "program": "tsuku-llm", **description._asdict()})
