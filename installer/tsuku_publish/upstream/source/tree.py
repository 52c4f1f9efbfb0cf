"""A source of llama.cpp: a folder, or the archive of a source distribution that has one in it."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tsuku_llm.ground.foreign import open_foreign, read_foreign
from tsuku_publish.errors import PublishError, reading
from tsuku_publish.upstream.source.marked import UnreadableSource

RELEASE = ".github/workflows/release.yml"
_WANTED = re.compile(
    r"(?:.*/)?(?:\.github/(?:workflows|actions)/.*\.ya?ml|CMakeLists\.txt|[\w.-]+\.cmake"
    r"|CMake(?:User)?Presets\.json|common/arg\.cpp|PKG-INFO)"
)
_LARGEST = 4 << 20
"""Bytes of one file of a source; common/arg.cpp has 240 kB."""
_MOST = 2000
"""Files of a source that are read; it has some 180 of them."""
_DISTRIBUTION = re.compile(r"^Name: llama[-_.]cpp[-_.]bin$", re.MULTILINE)
_BUILD = re.compile(r"^Version: ([0-9]+)\.0\.0$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SourceTree:
    """The files of a source that are read, by their path in it; ``tag`` is None if not known."""

    files: Mapping[str, str]
    tag: str | None

    def read(self, path: str) -> str:
        """Return a file's text. Raises ``UnreadableSource`` if there is none."""
        try:
            return self.files[path]
        except KeyError:
            raise UnreadableSource(path, "the source has no such file") from None


def open_source(place: Path) -> SourceTree:
    """Read a folder or an archive. Raises ``PublishError``."""
    with reading(place):
        found = _of_folder(place) if place.is_dir() else _of_archive(place)
    tops = [path.removesuffix(RELEASE) for path in found if f"/{path}".endswith(f"/{RELEASE}")]
    if not tops:
        raise PublishError(
            f"{place} has no {RELEASE}",
            hint="name a tree of llama.cpp, or the archive of a source distribution of it",
        )
    top = min(tops, key=len)
    told = "\n".join(text for path, text in found.items() if path.endswith("PKG-INFO"))
    build = _BUILD.search(told) if _DISTRIBUTION.search(told) else None
    files = {path[len(top) :]: text for path, text in found.items() if path.startswith(top)}
    return SourceTree(files, f"b{build[1]}" if build else None)


def _of_folder(place: Path) -> dict[str, str]:
    # The distribution's description is beside its llama.cpp.
    found = {
        path.relative_to(place).as_posix(): path
        for path in sorted(place.rglob("*"))
        if _WANTED.fullmatch(path.relative_to(place).as_posix()) and path.is_file()
    }
    return {name: _text(read_foreign(path, _LARGEST)) for name, path in found.items()}


def _of_archive(place: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        with open_foreign(place) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                name = str(PurePosixPath(member.name))
                if not (member.isfile() and _WANTED.fullmatch(name)):
                    continue
                if member.size > _LARGEST or len(found) > _MOST:
                    raise PublishError(f"{place} has too much: {name}")
                content = archive.extractfile(member)
                found[name] = _text(content.read(_LARGEST) if content else b"")
    except (tarfile.TarError, EOFError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PublishError(f"{place} is no archive that can be read: {reason}") from error
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
