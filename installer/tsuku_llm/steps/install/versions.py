"""The installed versions: a list of them, and the versions that a name means. This only reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.ground.errors import CorruptStore, NotInstalled, UsageError, did_you_mean
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.machine.backends import NAMES, meaning
from tsuku_llm.steps.choosing import revocation
from tsuku_llm.steps.choosing.passing_over import noted_marks
from tsuku_llm.steps.choosing.revocation import ReleaseStatus
from tsuku_llm.steps.choosing.temporary import withheld
from tsuku_llm.steps.session import Session
from tsuku_llm.store.reader import StoreReader
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.updates import RolledBack

_RELEASE = re.compile(r"b\d+|v\d+(?:\.\d+)+")


@documented("*build", "*told", "active", "previous", "withheld", "size")
@dataclass(frozen=True, slots=True)
class ListedBuild:
    """An installed build in ``list``, and what is known of its release.

    ``rollback`` goes back to the ``previous`` one. ``withheld`` are the states that kept a GPU from
    the choice when it was installed. ``size`` is that of its files; versions may share some.
    """

    build: Installed
    told: ReleaseStatus
    active: bool
    previous: bool
    withheld: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.build.receipt.files)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The content of the store; the answer of ``list``.

    ``damaged`` has the reason for each unusable version, by its id. ``unusable`` says why nothing
    is active although something should be. ``foreign`` are files that this program did not make:
    it never removes them. ``rolled_back`` are the releases that failed here.
    """

    versions: tuple[ListedBuild, ...]
    damaged: Mapping[str, CorruptStore]
    unusable: CorruptStore | None
    foreign: tuple[Path, ...]
    rolled_back: tuple[RolledBack, ...] = ()


def inventory(session: Session) -> Inventory:
    """Return everything that is installed; what cannot be read is listed and not an error.

    What is known of revocations was noted before: a list verifies nothing.
    """
    reader = session.reader
    versions = reader.installed()
    known = revocation.signed_status(session, verify=False) if versions else None
    unusable: CorruptStore | None = None
    try:
        active = reader.active()
    except CorruptStore as error:
        active, unusable = None, error
    previous = readable(reader.previous)
    return Inventory(
        versions=tuple(
            ListedBuild(
                each,
                known.of(each.receipt) if known else ReleaseStatus(),
                active=each == active,
                previous=each == previous,
                withheld=tuple(state.text for state in withheld(each.receipt, "auto")),
            )
            for each in versions
        ),
        damaged=reader.damaged(),
        unusable=unusable,
        foreign=reader.foreign(),
        rolled_back=noted_marks(session.paths.data, session.user.note),
    )


def readable(look: Callable[[], Installed | None]) -> Installed | None:
    """Return what ``reader.active`` or ``reader.previous`` finds; None if that is damaged."""
    with suppress(CorruptStore):
        return look()
    return None


def resolve(reader: StoreReader, names: Iterable[str]) -> list[str]:
    """Return the ids of the versions that these names mean, each once.

    A damaged version can only be named by its id. Raises ``NotInstalled`` or ``UsageError``, whose
    facts list what is installed.
    """
    installed = tuple(reader.installed())
    named: dict[str, set[str]] = {}
    for version in installed:
        receipt = version.receipt
        numbers = {receipt.version, f"v{receipt.version}"} if receipt.version else set[str]()
        named[version.id] = {version.id, receipt.release, receipt.variant} | numbers
    named |= {version: {version} for version in reader.damaged()}
    backends = {version.id: version.receipt.backend for version in installed}
    return list(dict.fromkeys(_resolved(name, named, backends) for name in names))


def all_ids(reader: StoreReader) -> list[str]:
    """Return the ids of all versions, damaged ones included."""
    return [*(version.id for version in reader.installed()), *reader.damaged()]


def found(reader: StoreReader, version: str) -> Installed:
    """Return the version of a resolved id. Raises ``CorruptStore`` if it is damaged."""
    installed = reader.find(version)
    if installed is None:
        raise reader.damaged().get(version) or NotInstalled(f"{version} no longer exists")
    return installed


def _resolved(name: str, named: Mapping[str, set[str]], backends: Mapping[str, str]) -> str:
    """Return the id that a name means: a variant's own name comes before that of a backend."""
    backend = meaning(name)
    ids = [version for version, names in named.items() if name in names]
    ids = ids or [version for version, each in backends.items() if each == backend]
    if len(ids) == 1:
        return ids[0]
    facts = tuple(f"installed: {version}" for version in named)
    if not ids:
        known = (text for names in named.values() for text in names)
        otherwise = f"see: {TSUKU} list" if named else f"run: {TSUKU} install"
        if backend in NAMES:
            otherwise = f"to install it: {TSUKU} install --backend {backend}"
        if _RELEASE.fullmatch(name):  # two releases are similar, and both may be meant
            hint = f"to install it: {TSUKU} install --release {name}"
            if similar := did_you_mean(name, known):
                hint = f"{similar} Or {hint}"
        else:
            hint = did_you_mean(name, known, otherwise)
        raise NotInstalled(f"{name} is not installed", facts=facts, hint=hint)
    raise UsageError(
        f"{name} names {len(ids)} installed versions",
        facts=tuple(f"installed: {version}" for version in ids),
        hint="name one by its id",
    )
