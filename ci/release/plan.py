"""The plan of a repository: ``repository.toml`` and the release files of its channels."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomli

from ci.release.attest import check_origin
from ci.release.build import ReleaseFile, check_listed, release_document, release_file
from ci.release.classify import load_rules
from ci.release.contents import load_contents
from ci.release.errors import ReleaseError
from ci.release.facts import Facts, release_of
from ci.release.own import load_own
from ci.release.packages import load_packages
from ci.release.reading import reading
from ci.release.revoked import load_revoked, marked
from tsuku_llm.revocations import Revocation

DATA = Path(__file__).parent
"""The folder of the data: ``repository.toml``, ``rules.toml``, ``packages.toml`` and ``facts/``.

``releases/`` has release files of a publisher's own builds. If a repository has only those, it
needs no rules.
"""


@dataclass(frozen=True, slots=True)
class RolePlan:
    """The signing of a role: its signers, how many are needed, and until when it is valid (UTC)."""

    version: int
    issued: datetime
    expires: datetime
    signers: tuple[str, ...]
    threshold: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The content of ``repository.toml``.

    ``channels`` name releases, newest first. ``keys`` are the signers' public keys in hexadecimal
    digits. ``warn`` are the days left at which ``check`` fails. ``revoked`` is the list that is
    signed with the targets.
    """

    channels: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, str]
    roles: Mapping[str, RolePlan]
    warn: Mapping[str, int]
    revoked: tuple[Revocation, ...] = ()


class _Role(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=1)]
    issued: date
    days: Annotated[int, msgspec.Meta(ge=1, le=36525)]
    signers: Annotated[list[str], msgspec.Meta(min_length=1)]
    threshold: Annotated[int, msgspec.Meta(ge=1)]


class _Roles(msgspec.Struct):
    root: _Role
    targets: _Role
    snapshot: _Role
    timestamp: _Role


class _Warn(msgspec.Struct):
    root: int = 60
    targets: int = 60
    snapshot: int = 60
    timestamp: int = 7


class _File(msgspec.Struct):
    """The content of ``repository.toml``."""

    channels: dict[str, list[str]]
    keys: dict[str, str]
    roles: _Roles
    warn: _Warn = msgspec.field(default_factory=_Warn)


def load_plan(data: Path = DATA) -> Plan:
    """Read ``repository.toml`` and ``revoked.json``. Raises ``ReleaseError``."""
    path = data / "repository.toml"
    with reading(path):
        raw = msgspec.convert(tomli.loads(path.read_text("utf-8")), _File)
        return Plan(
            channels={name: tuple(releases) for name, releases in raw.channels.items()},
            keys=raw.keys,
            roles={name: _role(role) for name, role in msgspec.structs.asdict(raw.roles).items()},
            warn=msgspec.structs.asdict(raw.warn),
            revoked=load_revoked(data),
        )


def raised(plan: Plan, issued: date, roles: Collection[str]) -> Plan:
    """Return the plan with the next version of these roles, signed on that day."""
    new = {
        name: replace(
            role,
            version=role.version + 1,
            issued=_midnight(issued),
            # The lifetime in days stays the same.
            expires=_midnight(issued) + (role.expires - role.issued),
        )
        for name, role in plan.roles.items()
        if name in roles
    }
    return replace(plan, roles={**plan.roles, **new})


def caught_up(plan: Plan, versions: Mapping[str, int]) -> Plan:
    """Return the plan with no version below the published ones (role → version)."""
    roles = {
        name: replace(role, version=max(role.version, versions.get(name, 0)))
        for name, role in plan.roles.items()
    }
    return replace(plan, roles=roles)


def with_signers(plan: Plan, signers: Mapping[str, Collection[str]]) -> Plan:
    """Return the plan with other signers for these roles.

    ``online`` stands for snapshot and timestamp. Raises ``ReleaseError`` for a word that is not a
    role, and for a number of signers that the role does not have.
    """
    roles = dict(plan.roles)
    for word, names in signers.items():
        for name in ("snapshot", "timestamp") if word == "online" else (word,):
            role = roles.get(name)
            if role is None or len({*names}) != len(role.signers):
                raise ReleaseError(f"{word}={','.join(names)}: not a role with all its signers")
            roles[name] = replace(role, signers=tuple(names))
    return replace(plan, roles=roles)


def save_roles(plan: Plan, data: Path) -> None:
    """Write versions, days and signers into ``repository.toml``, and keep its comments."""
    import tomlkit  # noqa: PLC0415

    path = data / "repository.toml"
    with reading(path):
        document: Any = tomlkit.parse(path.read_text("utf-8"))
    for name, role in plan.roles.items():
        table = document["roles"][name]
        table["version"] = role.version
        table["issued"] = role.issued.date()
        table["signers"] = list(role.signers)
    path.write_text(tomlkit.dumps(document), "utf-8")


def release_files(
    plan: Plan, data: Path = DATA, trusted_root: Path | None = None
) -> tuple[ReleaseFile, ...]:
    """Return the release file of every release that a channel names.

    ``trusted_root`` is Sigstore's, if it should not be the one of sigstore-python. Raises
    ``ReleaseError``, also for a release whose origin is not proven or whose archives were not read,
    unless the facts say why.
    """
    channels, own = _channels(plan), load_own(data / "releases")
    documents = {tag: own[tag] for tag in channels if tag in own}
    documents |= _published(channels.keys() - own.keys(), data, trusted_root)
    return tuple(
        release_file(marked(documents[tag], plan.revoked), channels[tag])
        for tag in sorted(channels)
    )


def known_document(tag: str, data: Path) -> dict[str, Any]:
    """Return the release file of any recorded release, in a channel or not, from any publisher.

    Raises ``ReleaseError`` if it is not recorded.
    """
    own = load_own(data / "releases")
    if tag in own:
        return own[tag]
    if not (data / "rules.toml").exists():
        raise ReleaseError(f"{tag}: there is no releases/{tag}.json")
    contents, rules = load_contents(data / "facts" / "archives"), load_rules(data)
    packages = load_packages(data, rules.libraries, contents)
    if tag in packages:
        return packages[tag]
    facts = Facts(data / "facts").releases()
    return release_document(release_of(facts, tag), rules, contents)


def _published(
    tags: Collection[str], data: Path, trusted_root: Path | None
) -> dict[str, dict[str, Any]]:
    """Return the release files of builds that others published, from the facts and the rules."""
    if not tags:
        return {}
    if not (data / "facts").is_dir():
        missing = ", ".join(f"{tag}.json" for tag in sorted(tags))
        raise ReleaseError(f"{data / 'releases'} has no {missing}, which a channel names")
    contents = load_contents(data / "facts" / "archives")
    facts, rules = Facts(data / "facts").releases(), load_rules(data)
    packages = load_packages(data, rules.libraries, contents)
    documents = {}
    for tag in sorted(tags):
        # Their origin is not attested: packages.toml says why.
        if tag in packages:
            documents[tag], unlisted = packages[tag], None
        else:
            release = release_of(facts, tag)
            with reading(f"what {data} has of {tag}"):
                check_origin(release, rules, data, trusted_root)
                documents[tag] = release_document(release, rules, contents)
            unlisted = release.unlisted
        if unlisted is None:
            check_listed(documents[tag])
    return documents


def _channels(plan: Plan) -> dict[str, list[str]]:
    """Return the channels of every release."""
    found: dict[str, list[str]] = {}
    for channel, releases in plan.channels.items():
        for release in releases:
            found.setdefault(release, []).append(channel)
    return found


def _role(raw: _Role) -> RolePlan:
    start = _midnight(raw.issued)
    expires = start + timedelta(days=raw.days)
    return RolePlan(raw.version, start, expires, tuple(raw.signers), raw.threshold)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
