"""Settings, each with its source, and with what is wrong with it."""

from __future__ import annotations

from tsuku_llm.cli.terminal.text import table
from tsuku_llm.config.keys import text_of
from tsuku_llm.config.settings import Configuration, Setting


def lines(configuration: Configuration) -> tuple[str, ...]:
    """Return all settings for people; credentials in URLs are hidden."""
    rows = [
        (entry.key.name, _value(entry), f"{_mark(entry)}{entry.source}")
        for entry in (each.shown for each in configuration.entries)
    ]
    return table(rows, indent=0)


def setting_line(setting: Setting) -> str:
    """Return one setting for people."""
    shown = setting.shown
    return f"{shown.key.name} = {_value(shown)} ({_mark(shown)}{shown.source})"


def _value(shown: Setting) -> str:
    return text_of(shown.value) or "(none)"


def _mark(shown: Setting) -> str:
    """Return what stands before the source of a wrong value."""
    return "" if shown.written is None else f"instead of {shown.written!r}, which is wrong: "
