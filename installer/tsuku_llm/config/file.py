"""The config file: its text, what TOML makes of it, and the table ``[llm]`` in it."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsuku_llm.errors import ConfigError
from tsuku_llm.ownership import check_path

TABLE = "llm"
SIZE_LIMIT = 1 << 20
"""Bytes of a config file that are read; more is surely no config file."""


def read(path: Path) -> str | None:
    """The config file's text, line ends as they are; None where there is no file.

    Raises ``ConfigError`` when it is unreadable, no regular file, too large or not UTF-8,
    ``UnsafeLocation`` where another user wrote it or could.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _unreadable(path, "it is not a regular file")
        check_path(path)
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    if len(data) > SIZE_LIMIT:
        raise _unreadable(path, f"it is larger than {SIZE_LIMIT:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, f"line {line} is not UTF-8") from error


def _unreadable(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"the config file {path} cannot be read",
        facts=(reason,),
        hint=f"correct it, or move it away: {path}",
    )


def parse(text: str, path: Path) -> dict[str, Any]:
    """The file's content. Raises ``ConfigError`` with the line that is no TOML."""
    import tomli  # noqa: PLC0415

    try:
        return tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(
            f"the config file {path} is not valid TOML",
            facts=(str(error)[:300],),
            hint=f"correct that line of {path}",
        ) from error


def llm_table(document: Mapping[str, Any], path: Path) -> dict[str, object]:
    """Our table, empty where there is none. Raises ``ConfigError`` where it is no table."""
    table = document.get(TABLE, {})
    if isinstance(table, dict):
        return table
    raise ConfigError(
        f"in the config file {path}, {TABLE} is not a table",
        facts=(f"it is {type(table).__name__} {table!r}"[:200],),
        hint=f"write [{TABLE}] on a line of its own, and the settings under it",
    )


_LONGEST_LINE = 200
_HEADER = re.compile(r"\s*\[\[?\s*(?P<name>[^\]]*?)\s*\]")


def line_of(text: str, word: str) -> int | None:
    """The line, from 1, on which a key of ``[llm]`` seems to stand; for error texts only."""
    inside = re.compile(rf"\s*[\"']?{re.escape(word)}[\"']?\s*=")
    outside = re.compile(rf"\s*{TABLE}\s*(?:\.\s*{re.escape(word)}\s*)?=")
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        match = _HEADER.match(line[:_LONGEST_LINE])
        if match:
            header = match["name"].strip("\"'")
        elif (header == TABLE and inside.match(line)) or (not header and outside.match(line)):
            return number
    return None
