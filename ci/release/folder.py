"""A repository as a folder of static files: written, and checked as a client would."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ci.release.errors import ReleaseError
from ci.release.plan import Plan
from tsuku_llm import manifest, trust
from tsuku_llm.errors import TrustError

METADATA = ("metadata/*.json", "targets/**/*.json")


@dataclass(frozen=True, slots=True)
class Folder:
    """A copy of a repository, for ``trust.load``."""

    path: Path

    def read(self, name: str) -> bytes | None:
        """The file of that path relative to the repository, None if it is not there."""
        file = self.path / name
        return file.read_bytes() if file.is_file() else None


@dataclass(frozen=True, slots=True)
class Files:
    """A repository that is not written yet."""

    files: Mapping[str, bytes]

    def read(self, name: str) -> bytes | None:
        """The file of that path relative to the repository, None if it is not there."""
        return self.files.get(name)


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make the folder hold these files and its older roots, after checking the whole.

    Raises ``ReleaseError`` when a client would refuse the result, or when a version would
    get other content than it has: clients keep what they saw first.
    """
    roots = {
        f"metadata/{path.name}": path.read_bytes() for path in folder.glob("metadata/*.root.json")
    }
    taken = [name for name, data in files.items() if _is_taken(folder / name, data)]
    if taken:
        names = ", ".join(sorted(taken))
        raise ReleaseError(f"other content exists under the same version, raise it: {names}")
    verify(Files(roots | dict(files)), (roots | dict(files))["metadata/1.root.json"])
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for path in (found for pattern in METADATA for found in folder.glob(pattern)):
        if path.relative_to(folder).as_posix() not in files.keys() | roots.keys():
            path.unlink()


def verify(copy: trust.Copy, root: bytes) -> trust.TrustedRepository:
    """Load a repository as a client would, every release file included.

    Raises ``ReleaseError``.
    """
    try:
        repository = trust.load(copy, root)
        for path, target in repository.targets.items():
            data = copy.read(target.name)
            if data is None:
                raise ReleaseError(f"{target.name} is missing")
            manifest.parse_release(repository.read(path, data))
    except TrustError as error:
        raise ReleaseError("; ".join((error.message, *error.facts))) from error
    return repository


def days_left(repository: trust.TrustedRepository, now: datetime) -> dict[str, int]:
    """Whole days until each role expires; negative when it has."""
    return {role: (state.expires - now).days for role, state in repository.roles.items()}


def too_old(left: Mapping[str, int], plan: Plan) -> list[str]:
    """The roles that must be signed anew."""
    return [role for role, days in left.items() if days < plan.warn[role]]


def _is_taken(path: Path, data: bytes) -> bool:
    """Whether a file has other content and no name or version that would tell them apart."""
    if not path.is_file() or path.read_bytes() == data:
        return False
    if path.name != "timestamp.json":
        return True
    old, new = (json.loads(each)["signed"]["version"] for each in (path.read_bytes(), data))
    return bool(new <= old)
