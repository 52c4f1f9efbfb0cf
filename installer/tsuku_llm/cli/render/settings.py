"""Settings, each with its source, and with what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsuku_llm.cli.terminal.text import table
from tsuku_llm.config.keys import text_of
from tsuku_llm.config.settings import Configuration, Setting, warning_of
from tsuku_llm.ground.safe_text import redacted, shortened

_LONGEST = 60
"""Characters of a wrong value that are shown; the line in the file has all of it."""

if TYPE_CHECKING:
    from tsuku_llm.cli.documents import running as documents


def setting_data(setting: Setting) -> documents.SettingDocument:
    """Return one setting for programs; ``value`` is in force, ``written`` the wrong one."""
    value = setting.value
    # None stays None; an empty list stays empty.
    shown = redacted(value) if isinstance(value, str) else value and tuple(map(redacted, value))
    return {
        "key": setting.key.name,
        "value": shown,
        "source": setting.source,
        "written": _written(setting),
        "problem": warning_of(setting.problem) if setting.problem else None,
    }


def removed_data(name: str) -> documents.SettingDocument:
    """Return for programs that a name, which no setting has, was removed from the file."""
    return {"key": name, "value": None, "source": "default", "written": None, "problem": None}


def data(configuration: Configuration) -> documents.ConfigListAnswer:
    """Return all settings for programs; credentials in URLs are hidden."""
    return {
        "settings": [setting_data(setting) for setting in configuration.entries],
        "warnings": list(configuration.warnings),
    }


def lines(configuration: Configuration) -> tuple[str, ...]:
    """Return all settings for people; credentials in URLs are hidden."""
    rows = [
        (entry.key.name, _value(entry), f"{_mark(entry)}{entry.source}")
        for entry in configuration.entries
    ]
    return table(rows, indent=0)


def setting_line(setting: Setting) -> str:
    """Return one setting for people."""
    return f"{setting.key.name} = {_value(setting)} ({_mark(setting)}{setting.source})"


def _value(setting: Setting) -> str:
    return redacted(text_of(setting.value)) or "(none)"


def _mark(setting: Setting) -> str:
    """Return what stands before the source of a wrong value."""
    written = _written(setting)
    return "" if written is None else f"instead of {written!r}, which is wrong: "


def _written(setting: Setting) -> str | None:
    """Return the wrong value, None if there is none: a whole file may be wrong."""
    if setting.problem is None or setting.written is None:
        return None
    written = setting.written
    text = written if isinstance(written, str) else repr(written)
    return shortened(redacted(text), _LONGEST)
