"""Documents about what runs: servers, models, a benchmark; and settings and repositories."""

from __future__ import annotations

from typing import TypedDict

from tsuku_llm.cli.documents.keys import (
    Device,
    Tag,
    VariantName,
)
from tsuku_llm.config.keys import Value


class HelpAnswer(TypedDict):
    """The answer of ``--help``."""

    help: str


# --- servers -------------------------------------------------------------------------------


# --- models --------------------------------------------------------------------------------


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
