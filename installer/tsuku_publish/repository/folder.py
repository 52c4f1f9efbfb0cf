"""A repository as a folder of static files: written, and published to where clients look."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from tsuku_llm import trust
from tsuku_llm.catalog.copies import TIMESTAMP
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.foreign import parse_json
from tsuku_llm.ground.ownership import check_below, check_path
from tsuku_publish.errors import PublishError, in_one_line, other_content, reading
from tsuku_publish.repository.checking import FIRST_ROOT, verify
from tsuku_publish.repository.copies import MemoryCopy, RepositoryFolder

LOCK = ".lock"
WAIT = 60.0
"""Seconds to wait for another command on the same data; signing takes a few."""
METADATA = ("metadata/*.json", "targets/**/*.json")


def require_own(*folders: Path) -> None:
    """Refuse folders in which another user can change what is signed, or that lie in such a one.

    A folder that does not exist is another error, of those who read it. Raises ``UnsafeLocation``.
    """
    for folder in folders:
        check_path(folder)
        if folder.is_dir():
            check_below(folder)


@contextmanager
def locked(data: Path, wait: float = WAIT) -> Iterator[None]:
    """Hold the lock of a data folder: one command at a time signs, or changes the plan.

    The weekly job, the job of a channel and people may work in one folder at the same moment. The
    operating system frees the lock if its holder dies. Raises ``PublishError``, and
    ``UnsafeLocation`` for data that others can write.
    """
    with reading(data / "repository.toml"):
        # The lock would make a folder that does not exist.
        (data / "repository.toml").stat()
    require_own(data)
    with _alone(data, wait):
        yield


@contextmanager
def _alone(folder: Path, wait: float) -> Iterator[Path]:
    """Hold the lock of a folder, and give its path. Raises ``PublishError``."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(wait)
    except Timeout:
        raise PublishError(
            f"another tsuku-publish has worked on {folder} for {wait:.0f} seconds",
            hint="wait until it is done, and run this again",
        ) from None
    except OSError as error:
        raise PublishError(f"{folder / LOCK} cannot be made: {error.strerror or error}") from error
    try:
        yield folder / LOCK
    finally:
        lock.release()


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make the folder hold these files and its older roots, after checking the whole.

    Raises ``PublishError`` if a client would refuse the result, or if a version would get other
    content than it has: clients keep the content that they saw first.
    """
    roots = {
        name: data
        for name in (f"metadata/{path.name}" for path in folder.glob("metadata/*.root.json"))
        if (data := RepositoryFolder(folder).read(name)) is not None
    }
    whole = roots | dict(files)
    if FIRST_ROOT not in whole:
        raise PublishError(
            f"{folder} has no {FIRST_ROOT}, where clients begin: copy the published repository "
            "there first, or set version = 1 of [roles.root] for a new one"
        )
    _put(folder, whole)
    # Only now: until the new timestamp is in place, a client may need the old files.
    for path in (found for pattern in METADATA for found in folder.glob(pattern)):
        if path.relative_to(folder).as_posix() not in whole:
            path.unlink()


def publish(source: Path, target: Path) -> trust.TrustedRepository:
    """Bring a folder that a web server serves to the state of the repository in ``source``.

    Every file is replaced as a whole, and the timestamp last: a client sees the old state or the
    new one. The old files stay, so a client that is reading the old state still finds them. Raises
    ``PublishError`` for what ``write`` refuses, and for a state older than the served one.
    """
    files = {
        name: data
        for pattern in METADATA
        for name in (path.relative_to(source).as_posix() for path in source.glob(pattern))
        if (data := RepositoryFolder(source).read(name)) is not None
    }
    if FIRST_ROOT not in files:
        raise PublishError(f"{source} has no {FIRST_ROOT}: name a signed repository with --from")
    # First: nothing is made for a repository that no client would take.
    new = verify(MemoryCopy(files), files[FIRST_ROOT])
    try:
        make_folder(target)
    except TsukuError as error:
        raise PublishError(f"{target} cannot be made: {in_one_line(error)}") from error
    # Of two at once, from two copies of the data, the older one would replace the newer timestamp.
    with _alone(target, WAIT) as lock:
        try:
            return _publish(source, files, new, target)
        finally:
            # While we hold it: a process that waits opens the name again. Clients need none.
            with suppress(OSError):
                lock.unlink()


def _publish(
    source: Path, files: Mapping[str, bytes], new: trust.TrustedRepository, target: Path
) -> trust.TrustedRepository:
    if (target / TIMESTAMP).exists():
        if RepositoryFolder(target).read(FIRST_ROOT) != files[FIRST_ROOT]:
            raise PublishError(
                f"{target} has another repository: its {FIRST_ROOT} is not that of {source}",
                hint="name an empty folder: users of the other one would be stuck",
            )
        # Going back is refused by every client that has seen the newer versions.
        served = verify(RepositoryFolder(target), files[FIRST_ROOT])
        # The four roles first. The snapshot also names a channel that has no own role any more.
        known = {**{role: served.roles[role].version for role in trust.ROLES}, **served.versions}
        older = trust.setbacks(known, {**new.versions, "root": new.roles["root"].version})
        if older:
            raise PublishError(
                f"{target} has newer versions of: {', '.join(older)}",
                hint=f"fetch the published repository into {source}, then sign and publish again",
            )
    _put(target, files)
    return verify(RepositoryFolder(target), files[FIRST_ROOT])


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files that belong together, the timestamp last, after checking the whole."""
    there = RepositoryFolder(folder)
    taken = [name for name, data in files.items() if _is_taken(name, there.read(name), data)]
    if taken:
        raise other_content(f"{folder}: {', '.join(sorted(taken))}")
    verify(MemoryCopy(files), files[FIRST_ROOT])
    try:
        # Clients may read the folder at any moment between two of these writes.
        for name in _in_order(files):
            make_folder((folder / name).parent)
            replace_file(folder / name, files[name])
    except OSError as error:
        raise PublishError(f"{folder} cannot be written: {error.strerror or error}") from error
    except TsukuError as error:
        raise PublishError(f"{folder} cannot be written: {in_one_line(error)}") from error


def _in_order(names: Iterable[str]) -> list[str]:
    """Order release files first, then the metadata that names them, and the timestamp last."""
    return sorted(names, key=lambda name: (name.startswith("metadata/"), name == TIMESTAMP, name))


def _is_taken(name: str, old: bytes | None, new: bytes) -> bool:
    """Tell whether a file has other content under the same name and version.

    A file's name has its version, except for the timestamp, which must have a newer one.
    """
    if old is None or old == new:
        return False
    if name != TIMESTAMP:
        return True
    with reading(name):
        before, after = (parse_json(each)["signed"]["version"] for each in (old, new))
        return bool(after <= before)
