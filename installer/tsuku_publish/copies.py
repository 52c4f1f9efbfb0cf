"""Copies of a repository for ``trust.load``: a folder, files in memory, a wheel, a host."""

import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm import trust
from tsuku_llm.errors import HttpStatusError, TsukuError
from tsuku_publish.errors import PublishError, in_one_line

_LARGEST = 5_000_000
"""Bytes of one file of a repository at most; clients have the same limit."""
_NOT_FOUND = 404

EMBEDDED = "tsuku_llm/manifests"
"""The folder of the repository in the program's own wheel."""


@dataclass(frozen=True, slots=True)
class RepositoryFolder:
    """A repository in a folder."""

    path: Path

    def read(self, name: str) -> bytes | None:
        """Return the file at that path in the repository, None if it is missing."""
        file = self.path / name
        return file.read_bytes() if file.is_file() else None


@dataclass(frozen=True, slots=True)
class MemoryCopy:
    """A repository that is not written yet."""

    files: Mapping[str, bytes]

    def read(self, name: str) -> bytes | None:
        """Return the file at that path in the repository, None if it is missing."""
        return self.files.get(name)


@dataclass(frozen=True, slots=True)
class FirstOf:
    """Several copies, each asked if those before it lack a file."""

    copies: tuple[trust.Copy, ...]

    def read(self, name: str) -> bytes | None:
        """Return the file at that path in the repository, None if it is missing."""
        found = (copy.read(name) for copy in self.copies)
        return next((data for data in found if data is not None), None)


@dataclass(frozen=True, slots=True)
class WheelCopy:
    """The repository in a folder of a wheel: the program's own wheel, or one of metadata alone."""

    path: Path
    folder: str

    @classmethod
    def of(cls, path: Path) -> "WheelCopy":
        """Find the repository's folder in a wheel. Raises ``PublishError``."""
        end = "/metadata/timestamp.json"
        try:
            with zipfile.ZipFile(path) as wheel:
                found = [name.removesuffix(end) for name in wheel.namelist() if name.endswith(end)]
        except (OSError, zipfile.BadZipFile) as error:
            raise PublishError(f"{path} is no wheel: {error}") from error
        return cls(path, found[0] if found else EMBEDDED)

    def read(self, name: str) -> bytes | None:
        """Return the file at that path in the repository, None if it is missing."""
        try:
            with zipfile.ZipFile(self.path) as wheel:
                return wheel.read(f"{self.folder}/{name}")
        except KeyError:
            return None
        except (OSError, zipfile.BadZipFile) as error:
            raise PublishError(f"{self.path} is no wheel: {error}") from error


@dataclass(frozen=True, slots=True)
class HostedCopy:
    """A published repository, fetched as clients fetch it; ``url`` ends with a slash."""

    url: str

    def read(self, name: str) -> bytes | None:
        """Return the file at that path in the repository, None if it is missing."""
        from tsuku_llm.fetch import Network, get  # noqa: PLC0415

        try:
            with Network(os.environ) as network:
                return get(f"{self.url}{name}", _LARGEST, network)
        except HttpStatusError as error:
            # Missing is an answer (there is no next root); any other status is an error.
            if error.status == _NOT_FOUND:
                return None
            raise PublishError(f"{self.url}{name}: {error}") from error
        except TsukuError as error:
            raise PublishError(in_one_line(error)) from error


def copy_at(place: str) -> trust.Copy:
    """Return a copy by its address: an https or file URL, a wheel, or a folder."""
    if "://" in place:
        return HostedCopy(place if place.endswith("/") else f"{place}/")
    return WheelCopy.of(Path(place)) if place.endswith(".whl") else RepositoryFolder(Path(place))
