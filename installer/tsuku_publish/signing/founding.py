"""A new repository: its folder, its signers and its ``repository.toml``."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]  # its re-export

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_publish.holders.keys import key_line, require_signer_name
from tsuku_publish.holders.signers import make_signer
from tsuku_publish.repository.folder import LOCK

CHANNEL = "stable"

_HEAD = """\
# A repository of builds that tsuku-llm installs: releases, signers, versions and dates.
# docs/releases.md of tsuku-llm describes it.

# Who built the releases: users see it. `add` writes it into new release files.
publisher = {publisher}

# Where clients look. sign and review then refuse a copy that is older than what is published.
# published = "https://host.example/llm/repository/"

[channels]
# Releases, newest first. `add` puts a release at the head of its channel.
{channel} = []

[keys]
# The public keys of those who may sign, as `new-signer` prints them.
{keys}

[roles]
# Who signs what, and how many of them are needed. A signature holds for so many days.
# `sign --raise` and `resign` raise versions and days.
"""
_ROLE = """
[roles.{role}]
version = 1
issued = {issued}
days = {days}
signers = {signers}
threshold = {threshold}
"""
_DAYS = {"root": 730, "targets": 365, "snapshot": 365, "timestamp": 30}


@dataclass(frozen=True, slots=True)
class Founders:
    """The signers of a new repository; ``threshold`` of the people are needed for root and targets.

    ``online`` signs snapshot and timestamp, every week and alone.
    """

    root: tuple[str, ...]
    targets: tuple[str, ...]
    online: str
    threshold: int

    @property
    def names(self) -> tuple[str, ...]:
        """Every signer once."""
        return tuple(dict.fromkeys((*self.root, *self.targets, self.online)))

    def require_sound(self) -> None:
        """Raise ``UsageError`` for names or a threshold that no repository can have."""
        for name in self.names:
            require_signer_name(name)
        for role, names in (("root", self.root), ("targets", self.targets)):
            if len({*names}) != len(names):
                raise UsageError(f"a signer of {role} is named twice: {', '.join(names)}")
            if not 1 <= self.threshold <= len(names):
                raise UsageError(
                    f"{self.threshold} of {len(names)} signers of {role} cannot be needed",
                    hint=f"name a threshold from 1 to {len(names)}: --threshold N",
                )


def make_keys(
    names: Iterable[str], folder: Path, passphrase_of: Callable[[str], str | None]
) -> dict[str, SSlibKey]:
    """Make a signer for each name in a folder of its own; return their public keys.

    After an error none of them stays. Raises ``PublishError``.
    """
    made: dict[str, SSlibKey] = {}
    paths: list[Path] = []
    try:
        for name in names:
            passphrase = passphrase_of(name)
            path = folder / f"{name}.{'json' if passphrase is None else 'pem'}"
            make_folder(folder, private=True)
            made[name] = make_signer(name, path, passphrase)
            paths.append(path)
    except BaseException:
        for path in paths:
            path.unlink()
        raise
    return made


def require_new(folder: Path) -> None:
    """Raise ``UsageError`` if a folder is a repository already: its keys are in use."""
    if (folder / "repository.toml").exists():
        raise UsageError(
            f"{folder} has a repository.toml already",
            hint="name a new folder; rotate replaces the signers of a repository",
        )


def found(
    folder: Path, founders: Founders, keys: Mapping[str, SSlibKey], publisher: str, day: date
) -> Path:
    """Write ``repository.toml`` into a folder, and return its path."""
    people = {"root": founders.root, "targets": founders.targets}
    roles = [
        _ROLE.format(
            role=role,
            issued=day.isoformat(),
            days=days,
            signers=json.dumps([*people.get(role, (founders.online,))]),
            threshold=founders.threshold if role in people else 1,
        )
        for role, days in _DAYS.items()
    ]
    head = _HEAD.format(
        publisher=json.dumps(publisher, ensure_ascii=False),
        channel=CHANNEL,
        keys="\n".join(key_line(name, keys[name]) for name in founders.names),
    )
    make_folder(folder / "releases")
    if not (folder / ".gitignore").exists():
        # Each clone has its own lock: git would refuse to pull another one's.
        replace_file(folder / ".gitignore", f"{LOCK}\n".encode())
    path = folder / "repository.toml"
    replace_file(path, (head + "".join(roles)).encode())
    return path
