"""Settings, each with its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsuku_llm.cli.render.text import table
from tsuku_llm.config.keys import text_of
from tsuku_llm.config.settings import Configuration, Setting
from tsuku_llm.safe_text import redacted

if TYPE_CHECKING:
    from tsuku_llm.cli.documents import running as documents


def setting_data(setting: Setting) -> documents.SettingDocument:
    """Return one setting for programs."""
    value = setting.value
    # None stays None; an empty list stays empty.
    shown = redacted(value) if isinstance(value, str) else value and tuple(map(redacted, value))
    return {"key": setting.key.name, "value": shown, "source": setting.source}


def data(configuration: Configuration) -> documents.ConfigListAnswer:
    """Return all settings for programs; credentials in URLs are hidden."""
    return {
        "settings": [setting_data(setting) for setting in configuration.entries],
        "warnings": list(configuration.warnings),
    }


def lines(configuration: Configuration) -> tuple[str, ...]:
    """Return all settings for people; credentials in URLs are hidden."""
    rows = [
        (entry.key.name, redacted(text_of(entry.value)) or "(none)", entry.source)
        for entry in configuration.entries
    ]
    return (*table(rows, indent=0), *(f"warning: {text}" for text in configuration.warnings))
