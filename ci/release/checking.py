"""What a scheduled job asks of a repository: that it holds, and that nobody is left behind."""

from collections.abc import Iterator
from datetime import datetime

from ci.release.copies import Wheel
from ci.release.errors import ReleaseError
from ci.release.folder import days_left, verify
from ci.release.plan import Plan
from tsuku_llm import trust
from tsuku_llm.errors import TrustError


def first_root(copy: trust.Copy) -> bytes:
    """The root that clients of a repository start at. Raises ``ReleaseError``."""
    data = copy.read("metadata/1.root.json")
    if data is None:
        raise ReleaseError("there is no metadata/1.root.json")
    return data


def late_roles(
    copy: trust.Copy, repository: trust.TrustedRepository, plan: Plan, now: datetime
) -> list[str]:
    """The roles that must be signed anew, with the days that they have left.

    A wheel's timestamp is not among them: it is older than any weekly one, and a client
    that goes on line fetches another.
    """
    left = days_left(repository, now)
    if isinstance(copy, Wheel):
        del left["timestamp"]
    return [f"{role} ({days} days left)" for role, days in left.items() if days < plan.warn[role]]


def walk(copy: trust.Copy) -> int:
    """Walk from every root of a repository to its newest one, as its clients do.

    Gives the newest one's version. Raises ``ReleaseError`` where somebody would be stuck.
    """
    return max(_newest(copy, version, data) for version, data in _roots(copy))


def compare(embedded: trust.Copy, published: trust.Copy) -> Iterator[str]:
    """How far an embedded copy is behind the published repository, role by role.

    Raises ``ReleaseError`` when clients with the embedded copy would refuse the published
    one: another root under the same version, or an older state.
    """
    root = first_root(embedded)
    ours, theirs = verify(embedded, root), verify(published, root)
    for version, data in _roots(embedded):
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
