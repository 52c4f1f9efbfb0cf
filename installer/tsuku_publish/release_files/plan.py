"""The plan of a repository, ``repository.toml``: its channels, signers, versions and dates."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import tomli
import tomlkit
from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]  # its re-export

from tsuku_llm.catalog.revocations import Revocation
from tsuku_llm.ground.files import replace_file
from tsuku_llm.ground.foreign import read_foreign
from tsuku_llm.trust import RELEASES, ROLES
from tsuku_publish.errors import LARGEST_FILE, PublishError, content_of, reading
from tsuku_publish.holders.keys import (
    PublicKeyTable,
    fingerprint,
    key_line,
    read_public_keys,
    require_signer_name,
)
from tsuku_publish.release_files.promoted import NAME as PROMOTED
from tsuku_publish.release_files.promoted import Promotion, load_promoted
from tsuku_publish.release_files.revoked import NAME as REVOKED
from tsuku_publish.release_files.revoked import load_revoked
from tsuku_publish.release_files.sightings import SINCE, Sightings, load_sightings

SIGNED = "signed"
"""The signed repository, next to ``repository.toml`` unless that names another folder."""


TARGETS = "targets"
ONLINE = ("snapshot", "timestamp")
PLAN_FILES = ("repository.toml", REVOKED, PROMOTED)
"""The files of a plan: what holders pass on, so that each signs the same."""
_WARN = {"root": 60, "targets": 60, "snapshot": 60}
_WARN_SHORT = 14
"""The days of timestamp and of channels: two runs of the weekly job may fail."""
_CHANNEL = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
_DAYS_DELEGATED = 30
"""The lifetime of a channel's first signature; a person may write another one."""


@dataclass(frozen=True, slots=True)
class RolePlan:
    """The signing of a role: its signers, how many are needed, from which day and for how many.

    ``paths`` are the patterns that targets delegates to it; none for the four roles of TUF.
    """

    version: Annotated[int, msgspec.Meta(ge=1)]
    issued: date
    days: Annotated[int, msgspec.Meta(ge=1, le=36525)]
    signers: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    threshold: Annotated[int, msgspec.Meta(ge=1)]
    paths: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ()

    @property
    def start(self) -> datetime:
        """The beginning of the day on which it is signed, in UTC."""
        return datetime(*self.issued.timetuple()[:3], tzinfo=timezone.utc)

    @property
    def expires(self) -> datetime:
        """When it is no longer valid. Raises ``OverflowError`` for a time after the year 9999."""
        return self.start + timedelta(days=self.days)


@dataclass(frozen=True, slots=True)
class Plan:
    """The content of ``repository.toml``.

    ``signed`` is the folder of the signed repository. ``channels`` name releases, newest first.
    ``keys`` are the signers' public keys. ``warn`` are the days left at which ``check`` fails.
    ``revoked`` is the list that is signed with the targets, and ``promoted`` are the releases that
    people took from a delegated channel. ``roles`` are the four of TUF, and one for each channel
    that has signers of its own; ``since`` is what these state. ``publisher`` is for new release
    files of own builds. ``published`` is where clients look, empty if it is not said. ``program``
    is the newest version of tsuku-llm itself, with the SHA-256 of its wheel, and of archives by
    name: the program without Python. It is empty in others' repositories. ``sources`` are the bytes
    of the plan's files as they were read: what people review is what is passed on.
    """

    signed: Path
    channels: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, SSlibKey]
    roles: Mapping[str, RolePlan]
    warn: Mapping[str, int]
    revoked: tuple[Revocation, ...] = ()
    promoted: tuple[Promotion, ...] = ()
    since: Sightings = field(default_factory=dict)
    publisher: str = ""
    published: str = ""
    program: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)

    @property
    def delegated(self) -> tuple[str, ...]:
        """The channels that a role of the same name signs, in the order of their priority."""
        return tuple(name for name in self.roles if name not in ROLES)

    def role_of(self, channel: str) -> str:
        """Name the role that signs a channel."""
        return channel if channel in self.delegated else TARGETS


_Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_ArchiveName: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"^tsuku-llm-[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}\.tar\.gz\Z")
]


# A table without archives is signed without that key: the empty default is left out.
class _Program(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    version: Annotated[str, msgspec.Meta(pattern=r"^[0-9][0-9A-Za-z.!+-]{0,63}\Z")]
    sha256: _Digest
    archives: dict[_ArchiveName, _Digest] = {}


class _RepositoryFile(msgspec.Struct, kw_only=True):
    """The content of ``repository.toml``."""

    publisher: str = ""
    published: str = ""
    signed: str = SIGNED
    channels: dict[str, list[str]]
    keys: dict[str, str | PublicKeyTable]
    roles: dict[str, RolePlan]
    warn: dict[str, int] = {}
    program: _Program | None = None


def load_plan(data: Path) -> Plan:
    """Read the files of a plan, each of them once. Raises ``PublishError``."""
    path = data / PLAN_FILES[0]
    found = {name: content_of(data / name) for name in PLAN_FILES}
    sources = {name: content for name, content in found.items() if content is not None}
    with reading(path):
        if path.name not in sources:
            path.stat()  # it is missing, and the error says so
        raw = msgspec.convert(tomli.loads(sources[path.name].decode("utf-8")), _RepositoryFile)
        for name in raw.keys:
            require_signer_name(name)
        place = raw.published
        return Plan(
            signed=data / raw.signed,
            channels={name: tuple(releases) for name, releases in raw.channels.items()},
            keys=read_public_keys(raw.keys),
            roles=_roles(raw),
            # Half of its time for a role that has less than twice as many days.
            warn={
                name: min(_WARN.get(name, _WARN_SHORT), role.days // 2)
                for name, role in raw.roles.items()
            }
            | raw.warn,
            revoked=load_revoked(data / REVOKED, sources.get(REVOKED)),
            promoted=load_promoted(data / PROMOTED, sources.get(PROMOTED)),
            since=load_sightings(data / SINCE),
            publisher=raw.publisher,
            # A folder is seen from the data, everything else is an address.
            published=place if not place or ":" in place else str(data / place),
            program=msgspec.to_builtins(raw.program) if raw.program else {},
            sources=sources,
        )


def _roles(raw: _RepositoryFile) -> dict[str, RolePlan]:
    roles = {name: raw.roles[name] for name in ("root", TARGETS, *ONLINE)}
    for name, role in raw.roles.items():
        if name in ROLES:
            if role.paths:
                raise PublishError(f"[roles.{name}] has paths: only a channel's role has")
            continue
        if name not in raw.channels:
            raise PublishError(
                f"[roles.{name}] is the role of no channel: [channels] has no {name}"
            )
        # Clients read a release file only from there, under the name of its release.
        paths = role.paths or (RELEASES,)
        if any(not path.startswith("releases/") or path.count("/") != 1 for path in paths):
            raise PublishError(f"[roles.{name}] has a path that is not below releases/: {[*paths]}")
        roles[name] = replace(role, paths=paths)
    for role in roles.values():
        _ = role.expires  # it raises for a year that no clock has
    return roles


def raised(plan: Plan, issued: date, roles: Collection[str]) -> Plan:
    """Return the plan with the next version of these roles, signed on that day.

    Raises ``PublishError`` if a role would expire after the year 9999.
    """
    new = {
        name: replace(role, version=role.version + 1, issued=issued)
        for name, role in plan.roles.items()
        if name in roles
    }
    try:
        _ = [role.expires for role in new.values()]
    except OverflowError as error:
        raise PublishError(
            f"signed on {issued}, a role would expire after the year 9999: choose an earlier day"
        ) from error
    return replace(plan, roles={**plan.roles, **new})


def with_versions(plan: Plan, newer: Plan, roles: Collection[str]) -> Plan:
    """Return a plan whose roles have the versions and days of another, and nothing else of it."""
    changed = {
        name: replace(role, version=newer.roles[name].version, issued=newer.roles[name].issued)
        for name, role in plan.roles.items()
        if name in roles
    }
    return replace(plan, roles={**plan.roles, **changed})


def caught_up(plan: Plan, versions: Mapping[str, int]) -> Plan:
    """Return the plan with no version below the published ones (role → version)."""
    roles = {
        name: replace(role, version=max(role.version, versions.get(name, 0)))
        for name, role in plan.roles.items()
    }
    return replace(plan, roles=roles)


def with_keys(plan: Plan, keys: Mapping[str, SSlibKey]) -> Plan:
    """Return the plan with further public keys.

    Raises ``PublishError`` for another key under a known name, and for a known key under another
    name: one person would then sign as two.
    """
    for name, key in keys.items():
        for known, other in plan.keys.items():
            if (known == name) != (other.keyval == key.keyval):
                raise PublishError(
                    f"[keys] has {known} already, with "
                    + ("another key" if known == name else f"the key that {name} is to have"),
                    facts=(
                        f"{known} of [keys]: {fingerprint(other)}",
                        f"{name}, as it is given: {fingerprint(key)}",
                    ),
                    hint=f"ask {known} by another way which one it is; a new signer gets a new "
                    f"name, such as {name}-2, and a new key",
                )
    return replace(plan, keys={**plan.keys, **keys})


def with_signers(
    plan: Plan, signers: Mapping[str, Collection[str]], *, new_channel: bool = False
) -> Plan:
    """Return the plan with other signers for these roles.

    ``online`` stands for snapshot and timestamp. ``new_channel`` allows a role that does not exist
    yet: the channel of that name begins with it, or gets its own signers. Raises ``PublishError``
    for a word that is not a role, and for a number of signers that the role does not have.
    """
    roles, channels = dict(plan.roles), dict(plan.channels)
    for word, names in signers.items():
        for name in ONLINE if word == "online" else (word,):
            role = roles.get(name)
            if role is None and new_channel and names and _CHANNEL.fullmatch(name):
                # Its first version is still to be raised.
                threshold = len(names) // 2 + 1
                role = RolePlan(0, date.min, _DAYS_DELEGATED, tuple(names), threshold, (RELEASES,))
                channels.setdefault(name, ())
            if role is None:
                raise PublishError(
                    f"{name} is no role of this repository",
                    facts=(
                        f"roles: root, targets, online, {', '.join(plan.delegated)}".strip(", "),
                    ),
                    hint="a channel gets its own signers with --new-channel",
                )
            if len({*names}) != len(role.signers):
                raise PublishError(
                    f"{name} has {len(role.signers)} signers, and {len({*names})} are given: "
                    + (", ".join(names) or "none"),
                    hint=f"name all of them, also those who stay: {word}={','.join(role.signers)}",
                )
            roles[name] = replace(role, signers=tuple(names))
    return replace(plan, roles=roles, channels=channels)


@contextmanager
def _edited(data: Path) -> Iterator[Any]:
    """Yield the content of ``repository.toml``, and write it with its comments after the block."""
    path = data / PLAN_FILES[0]
    with reading(path):
        document = tomlkit.parse(read_foreign(path, LARGEST_FILE).decode("utf-8"))
        yield document
        text = tomlkit.dumps(document)
    replace_file(path, text.encode())


def save_roles(plan: Plan, data: Path) -> None:
    """Write versions, days, signers and new keys into ``repository.toml``; keep its comments."""
    with _edited(data) as document:
        for name, key in plan.keys.items():
            if name not in document["keys"]:
                line: Any = tomlkit.parse(key_line(name, key))
                document["keys"][name] = line[name]
        for name, role in plan.roles.items():
            if name not in document["roles"]:
                document["channels"].setdefault(name, [])
                document["roles"][name] = {
                    "version": role.version,
                    "issued": role.issued,
                    "days": role.days,
                    "signers": [],
                    "threshold": role.threshold,
                }
            table = document["roles"][name]
            table["version"] = role.version
            table["issued"] = role.issued
            table["signers"] = list(role.signers)


def save_channel(data: Path, channel: str, releases: Sequence[str]) -> None:
    """Write the releases of a channel into ``repository.toml``, and keep the file's comments."""
    with _edited(data) as document:
        channels = document["channels"]
        array = channels.setdefault(channel, [])
        # In place: a person may have written a comment beside a release that stays.
        for gone in [each for each in array if each not in releases]:
            array.remove(gone)
        for at, release in enumerate(releases):
            if release not in array:
                array.insert(at, release)
        if [*array] != [*releases]:
            channels[channel] = list(releases)


def adopt_plan(plan: Plan, data: Path, signed: Collection[str]) -> None:
    """Take over what holders have signed: the plan that they passed on, with these versions.

    Its files are written as they were reviewed.

    The channels of roles that were not ``signed`` stay as they are here: their signer may have
    gone on.
    """
    path = data / "repository.toml"
    with reading(path):
        own: Any = tomlkit.parse(read_foreign(path, LARGEST_FILE).decode("utf-8"))
        document: Any = tomlkit.parse(plan.sources[path.name].decode("utf-8"))
        for name in plan.delegated:
            if name not in signed and name in own["channels"]:
                document["channels"][name] = own["channels"][name]
        # Where this holder has the repository, and where this holder looks for what is published.
        for name in ("signed", "published"):
            if name in own:
                document[name] = own[name]
            else:
                document.pop(name, None)
    for name, content in plan.sources.items():
        if name != path.name:
            replace_file(data / name, content)
    replace_file(path, tomlkit.dumps(document).encode())
    save_roles(plan, data)
