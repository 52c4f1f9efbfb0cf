"""Documents about what runs: servers, models, a benchmark; and settings and repositories."""

from __future__ import annotations

from typing import TypedDict

from tsuku_llm.config.keys import Value


class HelpAnswer(TypedDict):
    """The answer of ``--help``."""

    help: str


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
