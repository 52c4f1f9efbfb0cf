"""Settings, each with its source."""

from __future__ import annotations

from typing import Any

from tsuku_llm.cli.render.text import table
from tsuku_llm.config import Setting, Settings, text_of
from tsuku_llm.safe_text import redacted


def setting_data(setting: Setting) -> dict[str, Any]:
    """Return one setting for programs."""
    value = setting.value
    # None stays None; an empty list stays empty.
    shown = redacted(value) if isinstance(value, str) else value and list(map(redacted, value))
    return {"key": setting.key.name, "value": shown, "source": setting.source}


def data(settings: Settings) -> dict[str, Any]:
    """Return all settings for programs; credentials in URLs are hidden."""
    return {
        "settings": [setting_data(setting) for setting in settings.entries],
        "warnings": list(settings.warnings),
    }


def lines(settings: Settings) -> tuple[str, ...]:
    """Return all settings for people; credentials in URLs are hidden."""
    rows = [
        (entry.key.name, redacted(text_of(entry.value)) or "(none)", entry.source)
        for entry in settings.entries
    ]
    return (*table(rows, indent=0), *(f"warning: {text}" for text in settings.warnings))
