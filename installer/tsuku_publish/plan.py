"""The plan of a repository, ``repository.toml``: its channels, signers, versions and dates."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomli
from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]  # its re-export

from tsuku_llm.revocations import Revocation
from tsuku_publish.errors import PublishError, reading
from tsuku_publish.keys import PublicKeyTable, read_public_keys
from tsuku_publish.revoked import load_revoked

SIGNED = "signed"
"""The signed repository, next to ``repository.toml`` unless that names another folder."""


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

    ``signed`` is the folder of the signed repository. ``channels`` name releases, newest first.
    ``keys`` are the signers' public keys. ``warn`` are the days left at which ``check`` fails.
    ``revoked`` is the list that is signed with the targets.
    """

    signed: Path
    channels: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, SSlibKey]
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


class _RepositoryFile(msgspec.Struct, kw_only=True):
    """The content of ``repository.toml``."""

    signed: str = SIGNED
    channels: dict[str, list[str]]
    keys: dict[str, str | PublicKeyTable]
    roles: _Roles
    warn: _Warn = msgspec.field(default_factory=_Warn)


def load_plan(data: Path) -> Plan:
    """Read ``repository.toml`` and ``revoked.json``. Raises ``PublishError``."""
    path = data / "repository.toml"
    with reading(path):
        raw = msgspec.convert(tomli.loads(path.read_text("utf-8")), _RepositoryFile)
        return Plan(
            signed=data / raw.signed,
            channels={name: tuple(releases) for name, releases in raw.channels.items()},
            keys=read_public_keys(raw.keys),
            roles={name: _role(role) for name, role in msgspec.structs.asdict(raw.roles).items()},
            warn=msgspec.structs.asdict(raw.warn),
            revoked=load_revoked(data),
        )


def raised(plan: Plan, issued: date, roles: Collection[str]) -> Plan:
    """Return the plan with the next version of these roles, signed on that day.

    Raises ``PublishError`` if a role would expire after the year 9999.
    """
    start = _midnight(issued)
    try:
        new = {
            # The lifetime in days stays the same.
            name: replace(
                role,
                version=role.version + 1,
                issued=start,
                expires=start + (role.expires - role.issued),
            )
            for name, role in plan.roles.items()
            if name in roles
        }
    except OverflowError as error:
        raise PublishError(
            f"signed on {issued}, a role would expire after the year 9999: choose an earlier day"
        ) from error
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

    ``online`` stands for snapshot and timestamp. Raises ``PublishError`` for a word that is not a
    role, and for a number of signers that the role does not have.
    """
    roles = dict(plan.roles)
    for word, names in signers.items():
        for name in ("snapshot", "timestamp") if word == "online" else (word,):
            role = roles.get(name)
            if role is None or len({*names}) != len(role.signers):
                given = f"{word}={','.join(names)}"
                raise PublishError(
                    f"{given}: not a role with all its signers; write root, targets or online, "
                    "and as many signers as it has"
                )
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


def _role(raw: _Role) -> RolePlan:
    start = _midnight(raw.issued)
    expires = start + timedelta(days=raw.days)
    return RolePlan(raw.version, start, expires, tuple(raw.signers), raw.threshold)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
