"""What is published where clients look, and whether a holder's copy of it is as new.

A holder whose copy is older would sign other content under a version that users have seen. So
``sign``, ``rotate`` and ``review`` ask the place first, if ``repository.toml`` or an option names
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm import trust
from tsuku_llm.catalog.copies import TIMESTAMP
from tsuku_llm.ground.errors import TrustError
from tsuku_publish.errors import PublishError, in_one_line
from tsuku_publish.release_files.plan import ONLINE
from tsuku_publish.repository.checking import FIRST_ROOT, first_root
from tsuku_publish.repository.copies import RepositoryFolder, copy_at
from tsuku_publish.signing.ceremony import published_versions
from tsuku_publish.signing.signing import NextState, Signers, absent


@dataclass(frozen=True, slots=True)
class ServedState:
    """The verified metadata at a place; ``first`` is the root at which its clients begin.

    ``versions`` has also those roles that the snapshot only goes on to name. ``files`` are the
    metadata of each role but the timestamp, by their paths.
    """

    place: str
    first: bytes
    repository: trust.TrustedRepository
    versions: Mapping[str, int]
    files: Mapping[str, bytes | None]


def published_state(place: str, into: Path) -> ServedState | None:
    """Load the metadata that a place serves; None if nothing is published there yet.

    It must begin with the root of the repository in ``into``. Raises ``PublishError``.
    """
    try:
        copy = copy_at(place)
        if copy.read(TIMESTAMP) is None:
            return None
        first = RepositoryFolder(into).read(FIRST_ROOT) or first_root(copy)
        repository = trust.load(copy, first)
        versions = {**repository.versions, "root": repository.roles["root"].version}
        names = [trust.file_name(role, versions[role]) for role in versions if role != "timestamp"]
        files = {name: copy.read(name) for name in names}
        return ServedState(place, first, repository, versions, files)
    except TrustError as error:
        raise PublishError(f"{place}: {in_one_line(error)}") from error
    except PublishError as error:
        error.hint = error.hint or "go on without asking what is published: --offline"
        raise


def require_not_behind(
    there: ServedState, state: NextState, into: Path, signers: Signers | None = None
) -> None:
    """Refuse to sign a state on top of an older or another state than the published one.

    With the online signer at hand every role counts: the next snapshot names them all. Raises
    ``PublishError``.
    """
    own, versions = RepositoryFolder(into), published_versions(into)
    with_online = signers is not None and not any(
        absent(state.plan, role, signers) for role in ONLINE
    )
    behind = []
    for role, theirs in there.versions.items():
        if not with_online and role not in state.roles:
            continue
        ours = versions.get(role, 0)
        name = trust.file_name(role, theirs)
        if theirs > ours:
            behind.append(f"{role} {theirs} is published, and {into} has {ours or 'none'}")
        elif theirs == ours and name in there.files and own.read(name) != there.files[name]:
            behind.append(f"{role} {theirs} is published with other content than {into} has")
    if behind:
        raise PublishError(
            f"{into} is not what is published at {there.place}",
            facts=tuple(behind),
            hint=f"fetch what is published into {into}, then begin again",
        )
