"""Documents about builds: what fits, what is installed, what an update would change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from tsuku_llm.catalog.revocations import Revocation
from tsuku_llm.cli.documents.keys import (
    Backend,
    Bytes,
    Channel,
    Device,
    Id,
    Number,
    Publisher,
    RepositoryName,
    Requested,
    Sha256,
    Tag,
    Unattested,
    Unmeasured,
    Unsigned,
    VariantName,
)
from tsuku_llm.steps.choosing.passing_over import PassedOver
from tsuku_llm.steps.install.update import FitChange
from tsuku_llm.steps.servers.server_trials import ServerResult
from tsuku_llm.steps.servers.unattended import UpdateOutcome
from tsuku_llm.store.records.updates import RolledBack

# --- a choice ------------------------------------------------------------------------------


class DecisionDocument(TypedDict):
    """What was chosen, from which release, for which request and machine."""

    requested: Requested
    detected: list[str]
    selected: VariantName | None
    release: Tag
    version: Number | None
    publisher: Publisher
    repository: RepositoryName
    unattested: Unattested | None
    unmeasured: Unmeasured | None
    stale: str | None
    revocation: Revocation | None
    channel: Channel
    kept_by: str | None
    passed_over: Sequence[PassedOver]
    platform: str
    simulated: str | None


# --- an install and an update --------------------------------------------------------------


class Archive(TypedDict):
    """One archive of a build."""

    url: str
    sha256: Sha256
    size: Bytes | None
    format: str | None


class BetterVariant(TypedDict):
    """A variant of the installed release that would be chosen now."""

    variant: VariantName
    device: Device | None
    download_size: Bytes | None


class InstallAnswer(DecisionDocument):
    """The answer of ``install`` and ``update``: ``planned``, ``installed`` or ``unchanged``.

    ``id`` and ``path`` are null for a plan. ``obstacle`` says why the active build does not fit
    this machine now.
    """

    outcome: str
    variant: VariantName
    backend: Backend
    device: Device | None
    note: str | None
    line: str
    download_size: Bytes | None
    artifacts: list[Archive]
    bound_before: RepositoryName | None
    id: Id | None
    path: Path | None
    obstacle: str | None
    better: BetterVariant | None


class OwnBuildAnswer(TypedDict):
    """The answer of ``install --from``: ``planned``, ``installed`` or ``unchanged``.

    ``id`` and ``path`` are null for a plan, ``device`` also if the build was not started.
    """

    outcome: str
    unsigned: Unsigned
    variant: VariantName
    backend: Backend
    files: int
    size: Bytes
    device: Device | None
    id: Id | None
    path: Path | None


class InstalledRelease(TypedDict):
    """The release that is installed."""

    release: Tag
    version: Number | None
    variant: VariantName
    publisher: Publisher
    repository: RepositoryName
    unattested: Unattested | None
    revocation: Revocation | None


class NewestRelease(TypedDict):
    """The release that an update would take."""

    release: Tag
    version: Number | None
    publisher: Publisher
    repository: RepositoryName
    unattested: Unattested | None
    unmeasured: Unmeasured | None


class UpdateCheckAnswer(TypedDict):
    """The answer of ``update --check``; ``variant`` is null if an update installs nothing."""

    channel: Channel
    simulated: str | None
    installed: InstalledRelease
    newest: NewestRelease
    kept_by: str | None
    passed_over: Sequence[PassedOver]
    available: bool
    variant: VariantName | None
    download_size: Bytes | None
    to_download: Bytes | None
    replaced: str | None
    better: BetterVariant | None
    changes: list[FitChange]
    not_compatible: dict[str, str]


class RefusedBuild(TypedDict):
    """Why an unattended update went back: ``kind`` is failed, not-on-gpu or slow."""

    kind: str
    reason: str


class UnattendedAnswer(TypedDict):
    """The answer of ``update --unattended``: ``updated``, ``unchanged`` or ``rolled-back``.

    The keys of a build are those of the one that is active now. ``tried`` is the release that was
    tried, null if none was. ``checked`` says how it was judged: servers, last-model, gate or
    nothing. ``stuck`` says why the way back failed, null if it did not.
    """

    outcome: UpdateOutcome
    id: Id
    release: Tag
    variant: VariantName
    tried: str | None
    checked: str
    servers: Sequence[ServerResult]
    failure: RefusedBuild | None
    marked: bool
    stuck: str | None
    rolled_back: Sequence[RolledBack]
