"""What makes a repository valid for its clients, and what a scheduled job checks."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from tsuku_llm import trust
from tsuku_llm.catalog import manifest
from tsuku_llm.catalog.revocations import parse
from tsuku_llm.ground.errors import TrustError
from tsuku_llm.trust.delegations import matches
from tsuku_publish.errors import PublishError, in_one_line
from tsuku_publish.repository.copies import EMBEDDED, WheelCopy

FIRST_ROOT = "metadata/1.root.json"
"""The root at which clients of a repository start, as a path in the repository."""

_AGAIN = "clients would refuse it: fetch the published repository there again, or sign it again"


def verify(copy: trust.Copy, root: bytes) -> trust.TrustedRepository:
    """Load a repository as a client would, with every release file.

    Raises ``PublishError``.
    """
    try:
        repository = trust.load(copy, root)
        for reason in repository.refused.values():  # clients skip such a role
            raise PublishError(reason)
        for path, target in repository.targets.items():
            data = copy.read(target.name)
            if data is None:
                raise PublishError(f"{copy}: {target.name} is missing", hint=_AGAIN)
            manifest.parse_release(repository.read(path, data))
            if matches(path, trust.RELEASES):
                # Clients skip an entry that they cannot read: here it is a mistake.
                entry = manifest.parse_entry(target)
                if path != f"releases/{entry.release}.json":
                    raise PublishError(f"the entry of {path} describes {entry.release}")
        parse("", repository.revoked)
    except TrustError as error:
        raise PublishError(f"{copy}: {in_one_line(error)}", hint=_AGAIN) from error
    except ValueError as error:
        raise PublishError(f"{copy}: the signed list of revoked releases: {error}") from error
    return repository


def days_left(repository: trust.TrustedRepository, now: datetime) -> dict[str, int]:
    """Return whole days until each role expires; negative if it has expired."""
    return {role: (state.expires - now).days for role, state in repository.roles.items()}


def first_root(copy: trust.Copy) -> bytes:
    """Return the root at which clients of a repository start. Raises ``PublishError``."""
    data = copy.read(FIRST_ROOT)
    if data is None:
        raise PublishError(
            f"{copy} has no {FIRST_ROOT}",
            hint="name the folder, URL, wheel or package of a signed repository",
        )
    return data


def late_roles(
    copy: trust.Copy,
    repository: trust.TrustedRepository,
    warn: Mapping[str, int],
    now: datetime,
) -> list[str]:
    """Return the roles that must be signed again, with the days that they have left.

    ``warn`` has the days at which a role is late. The timestamp in the program's wheel is not among
    them: it is older than any weekly one, and a client that goes online fetches a newer one.
    """
    left = days_left(repository, now)
    if isinstance(copy, WheelCopy) and copy.folder == EMBEDDED:
        del left["timestamp"]
    return [f"{role} ({days} days left)" for role, days in left.items() if days < warn.get(role, 0)]


def walk(copy: trust.Copy) -> int:
    """Walk from every root of a repository to its newest one, as its clients do.

    Returns the newest root's version. Raises ``PublishError`` if a client would be stuck.
    """
    newest = 0
    for version, data in _roots(copy):
        try:
            newest = max(newest, trust.newest_root(copy, data).version)
        except TrustError as error:
            raise PublishError(
                f"clients at root {version} are stuck: {in_one_line(error)}"
            ) from error
    return newest


def compare(embedded: trust.Copy, published: trust.Copy) -> Iterator[tuple[str, int, int]]:
    """Yield each role with its embedded and its published version.

    Raises ``PublishError`` if clients with the embedded copy would refuse the published one:
    because of another root under the same version, or an older state.
    """
    root = first_root(embedded)
    ours = verify(embedded, root)
    if first_root(published) != root:
        raise PublishError(
            f"{published} is another repository: its {FIRST_ROOT} is not that of {embedded}",
            hint="name the place to which this repository was published",
        )
    theirs = verify(published, root)
    for version, data in _roots(embedded):
        # A client accepts no second root with a version that it knows.
        if published.read(f"metadata/{version}.root.json") != data:
            raise PublishError(f"root {version} is published with other content, or not at all")
    there = {**theirs.versions, "root": theirs.roles["root"].version}
    for role, state in ours.roles.items():
        # The snapshot goes on to name a channel that people sign themselves again.
        mine, other = state.version, there.get(role, 0)
        if other < mine:
            raise PublishError(f"{role} {mine} is embedded, and only {other} is published")
        yield role, mine, other


def _roots(copy: trust.Copy) -> Iterator[tuple[int, bytes]]:
    version = 1
    while (data := copy.read(f"metadata/{version}.root.json")) is not None:
        yield version, data
        version += 1
