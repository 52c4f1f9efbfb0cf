"""Documents about what runs: servers, models, a benchmark; and settings and repositories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from tsuku_llm.cli.documents.keys import (
    Bytes,
    Device,
    File,
    Tag,
    VariantName,
)
from tsuku_llm.config.keys import Value


class HelpAnswer(TypedDict):
    """The answer of ``--help``."""

    help: str


# --- servers -------------------------------------------------------------------------------


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
