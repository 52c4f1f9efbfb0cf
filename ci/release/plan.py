"""What the repository is to say: ``repository.toml`` and the release files of its channels."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import tomli

from ci.release.build import ReleaseFile, release_document, release_file
from ci.release.classify import load_rules
from ci.release.contents import load_contents
from ci.release.facts import Facts, release_of
from ci.release.packages import load_packages

DATA = Path(__file__).parent
"""Where the data lie: ``repository.toml``, ``rules.toml``, ``packages.toml`` and ``facts/``."""


@dataclass(frozen=True, slots=True)
class RolePlan:
    """How a role is signed: by whom, how many are needed, and until when it holds (UTC)."""

    version: int
    issued: datetime
    expires: datetime
    signers: tuple[str, ...]
    threshold: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Channels (newest release first), roles, and the days left at which `check` fails."""

    channels: Mapping[str, tuple[str, ...]]
    roles: Mapping[str, RolePlan]
    warn: Mapping[str, int]


def load_plan(data: Path = DATA) -> Plan:
    """Read ``repository.toml``."""
    raw = tomli.loads((data / "repository.toml").read_text("utf-8"))
    return Plan(
        channels={name: tuple(releases) for name, releases in raw["channels"].items()},
        roles={name: _role(**role) for name, role in raw["roles"].items()},
        warn=raw["warn"],
    )


def release_files(plan: Plan, data: Path = DATA) -> tuple[ReleaseFile, ...]:
    """The release file of every release that a channel names. Raises ``ReleaseError``."""
    contents = load_contents(data / "facts" / "archives")
    facts, rules = Facts(data / "facts").releases(), load_rules(data)
    packages = load_packages(data, rules.libraries, contents)
    channels: dict[str, list[str]] = {}
    for channel, releases in plan.channels.items():
        for release in releases:
            channels.setdefault(release, []).append(channel)
    return tuple(
        release_file(
            packages.get(release) or release_document(release_of(facts, release), rules, contents),
            names,
        )
        for release, names in sorted(channels.items())
    )


def _role(version: int, issued: date, days: int, signers: list[str], threshold: int) -> RolePlan:
    start = datetime(issued.year, issued.month, issued.day, tzinfo=timezone.utc)
    return RolePlan(version, start, start + timedelta(days=days), tuple(signers), threshold)
