"""What a scheduled job checks: the repository is valid, and every client can follow it."""

from collections.abc import Iterator
from datetime import datetime

from ci.release.copies import Wheel
from ci.release.errors import ReleaseError
from ci.release.folder import days_left, verify
from ci.release.plan import Plan
from tsuku_llm import trust
from tsuku_llm.errors import TrustError


def first_root(copy: trust.Copy) -> bytes:
    """Return the root at which clients of a repository start. Raises ``ReleaseError``."""
    data = copy.read("metadata/1.root.json")
    if data is None:
        raise ReleaseError("there is no metadata/1.root.json")
    return data


def late_roles(
    copy: trust.Copy, repository: trust.TrustedRepository, plan: Plan, now: datetime
) -> list[str]:
    """Return the roles that must be signed again, with the days that they have left.

    A wheel's timestamp is not among them: it is older than any weekly one, and a client that goes
    online fetches a newer one.
    """
    left = days_left(repository, now)
    if isinstance(copy, Wheel):
        del left["timestamp"]
    return [f"{role} ({days} days left)" for role, days in left.items() if days < plan.warn[role]]


def walk(copy: trust.Copy) -> int:
    """Walk from every root of a repository to its newest one, as its clients do.

    Returns the newest root's version. Raises ``ReleaseError`` if a client would be stuck.
    """
    return max(_newest(copy, version, data) for version, data in _roots(copy))


def compare(embedded: trust.Copy, published: trust.Copy) -> Iterator[str]:
    """Yield how far an embedded copy is behind the published repository, role by role.

    Raises ``ReleaseError`` if clients with the embedded copy would refuse the published one:
    because of another root under the same version, or an older state.
    """
    root = first_root(embedded)
    ours, theirs = verify(embedded, root), verify(published, root)
    for version, data in _roots(embedded):
        # A client accepts no second root with a version that it knows.
        if published.read(f"metadata/{version}.root.json") != data:
            raise ReleaseError(f"root {version} is published with other content, or not at all")
    for role in trust.ROLES:
        mine, other = ours.roles[role].version, theirs.roles[role].version
        if other < mine:
            raise ReleaseError(f"{role} {mine} is embedded, and only {other} is published")
        yield f"{role:9} {mine} embedded, {other} published"


def _newest(copy: trust.Copy, version: int, data: bytes) -> int:
    try:
        return trust.newest_root(copy, data).version
    except TrustError as error:
        facts = "; ".join((error.message, *error.facts))
        raise ReleaseError(f"clients at root {version} are stuck: {facts}") from error


def _roots(copy: trust.Copy) -> Iterator[tuple[int, bytes]]:
    version = 1
    while (data := copy.read(f"metadata/{version}.root.json")) is not None:
        yield version, data
        version += 1
