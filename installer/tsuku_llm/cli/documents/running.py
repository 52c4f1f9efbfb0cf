"""Documents about what runs: servers, models, a benchmark; and settings and repositories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from tsuku_llm.cli.documents.keys import (
    BaseUrl,
    Bytes,
    Device,
    File,
    Id,
    Number,
    PageUrl,
    Tag,
    VariantName,
)
from tsuku_llm.config.keys import Value
from tsuku_llm.launch.plan.report import Placement, StartReport
from tsuku_llm.steps.choosing.revocation import ReleaseStatus
from tsuku_llm.steps.report.bench import Skipped, VariantSpeed
from tsuku_llm.steps.servers.background import StoppedServer


class HelpAnswer(TypedDict):
    """The answer of ``--help``."""

    help: str


class VersionAnswer(TypedDict):
    """The answer of ``--version``: of tsuku-llm, and the way in which it was installed."""

    version: Number
    way: str


class CompletionAnswer(TypedDict):
    """The script for a shell; to be loaded by that shell."""

    shell: str
    script: str


class SelfUpdateAnswer(TypedDict):
    """The answer of ``self-update``: how this copy was installed, and what its updater did.

    ``commands`` bring the clone ``folder`` up to date; other ways need none. ``reason`` says why
    this copy cannot update itself, else it is null. ``new_version`` is null if nothing ran.
    ``signed`` tells whether signed metadata name the version that is installed now.
    """

    version: Number
    way: str
    commands: list[list[str]]
    folder: File | None
    reason: str | None
    ran: bool
    new_version: str | None
    signed: bool


# --- servers -------------------------------------------------------------------------------


class ServerDocument(TypedDict):
    """A server in the background; ``report`` is the last one of its start, with what has changed.

    ``port`` is null if ``host`` is a Unix socket; then ``curl`` is the command that asks it for its
    models. ``supervisor`` and ``pid`` are numbers of processes. ``idle_timeout`` is in seconds, 0
    for none. ``arguments`` are the server's, with ``***`` for each secret; null for a server that
    an older version started.
    """

    name: str
    state: str
    host: str
    port: int | None
    page_url: PageUrl | None
    base_url: BaseUrl | None
    curl: str | None
    supervisor: int
    pid: int | None
    idle_timeout: int
    arguments: Sequence[str] | None
    exit_code: int | None
    reason: str
    line: str
    report: StartReport | None


class DamagedServer(TypedDict):
    """A server whose record cannot be read."""

    name: str
    reason: str
    hint: str


class StatusAnswer(TypedDict):
    """The answer of ``status``; ``releases`` has the standing of each server's release."""

    servers: list[ServerDocument]
    releases: Mapping[str, ReleaseStatus]
    damaged: list[DamagedServer]


class MetricsAnswer(TypedDict):
    """The answer of ``status --prometheus``."""

    metrics: str


class LogsAnswer(TypedDict):
    """The answer of ``logs``."""

    name: str
    lines: list[str]


class OpenAnswer(TypedDict):
    """The answer of ``open``."""

    name: str
    page_url: PageUrl


class StopAnswer(TypedDict):
    """The answer of ``stop``: ``stopped``, ``killed``, ``gone`` or ``unreadable`` for each."""

    stopped: list[StoppedServer]


class ServeAnswer(TypedDict):
    """The answer of ``serve`` after the server's end."""

    server_exit_code: int
    start: StartReport | None


class SupervisedAnswer(TypedDict):
    """The answer of a service's ``serve`` after the server's end."""

    server_exit_code: int


class PlanAnswer(TypedDict):
    """The answer of ``serve --dry-run`` and ``run --dry-run``."""

    id: Id
    argv: Sequence[str]
    cwd: Path
    environment: Mapping[str, str]
    removed: Sequence[str]
    placement: Placement | None


class UnitsAnswer(TypedDict):
    """The answer of ``serve --systemd-unit``, ``--launchd-plist`` and ``--windows-task``.

    ``units`` has each text by its file's name.
    """

    unit: str
    units: dict[str, str]
    credentials: Path | None
    written: Sequence[Path]


# --- models --------------------------------------------------------------------------------


class ModelDocument(TypedDict):
    """A model of this machine, and whether it fits into memory.

    ``path`` is that of the first of its ``files``. ``model_repository`` is the one on Hugging Face
    that it is from. ``context`` is the model's own, in tokens. ``fits`` and what follows are null
    if that is not known; ``problem`` says why.
    """

    name: str
    source: str
    path: File
    files: Sequence[File]
    projector: File | None
    model_repository: str | None
    size: Bytes
    quantisation: str | None
    architecture: str | None
    context: int | None
    fits: bool | None
    shortened_context: int | None
    needs: Bytes | None
    layers: int | None
    layers_on_devices: int | None
    problem: str | None


class PlaceDocument(TypedDict):
    """A folder that was looked into, and the program that keeps its models there."""

    source: str
    folder: File
    exists: bool


class ModelsAnswer(TypedDict):
    """The answer of ``models``; ``notes`` are sentences about what was left out."""

    models: list[ModelDocument]
    places: list[PlaceDocument]
    notes: list[str]


# --- a benchmark ---------------------------------------------------------------------------


class BenchAnswer(TypedDict):
    """The answer of ``bench``, fastest first; ``saved`` is what was written as ``llm.backend``."""

    model: Path
    rounds: int
    results: list[VariantSpeed]
    failed: list[Skipped]
    skipped: list[Skipped]
    fastest: VariantName
    hints: Sequence[str]
    saved: str | None


# --- many machines -------------------------------------------------------------------------


class FleetHostDocument(TypedDict):
    """One host: its ``state``, and after a failure the ``reason`` and the error's ``code``.

    ``variant`` and ``release`` are those of the build that is active, or of a plan.
    """

    host: str
    state: str
    device: Device | None
    variant: VariantName | None
    release: Tag | None
    reason: str | None
    code: str | None


class FleetAnswer(TypedDict):
    """The answer of ``fleet``: ``action`` is status, plan or apply."""

    action: str
    hosts: list[FleetHostDocument]


# --- settings and repositories -------------------------------------------------------------


class SettingDocument(TypedDict):
    """A setting, its value in force, and where that comes from.

    ``problem`` says what is wrong with the value ``written`` there; the default is in force then.
    """

    key: str
    value: Value
    source: str
    written: str | None
    problem: str | None


class ConfigListAnswer(TypedDict):
    """The answer of ``config list``."""

    settings: list[SettingDocument]
    warnings: list[str]


class ConfigPathAnswer(TypedDict):
    """The answer of ``config path``."""

    config_file: Path


class ConfigEditAnswer(TypedDict):
    """The answer of ``config edit``."""

    config_file: Path
    changed: bool
