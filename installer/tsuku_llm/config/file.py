"""The config file: reading its text, parsing it as TOML, and finding our table ``[llm]``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli

from tsuku_llm.ground.errors import ConfigError
from tsuku_llm.ground.foreign import read_foreign
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.ground.safe_text import redacted, shortened

TABLE = "llm"
SIZE_LIMIT = 1 << 20
"""The largest config file in bytes that is read; a larger file is not a config file."""


def read(path: Path) -> bytes | None:
    """Return the content of the config file; None if it is missing.

    Raises ``ConfigError`` if the file is unreadable, not a regular file or too large, and
    ``UnsafeLocation`` if another user wrote it or could write it.
    """
    try:
        if os.path.lexists(path):
            check_path(path)
        return read_foreign(path, SIZE_LIMIT)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:  # the HOME of many services is /dev/null
        raise ConfigError(
            f"there is no folder for the config file {path}",
            facts=("a part of this path is a file",),
            hint="set HOME, or TSUKU_HOME, to a folder",
        ) from error
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error


def decoded(data: bytes, path: Path) -> str:
    """Return the text of the config file with its line ends as they are.

    Raises ``ConfigError`` if it is too large, or with the line that is not UTF-8.
    """
    if len(data) > SIZE_LIMIT:
        raise _unreadable(path, f"it is larger than {SIZE_LIMIT:,} bytes")
    try:
        return data.decode("utf-8-sig")  # some editors on Windows write a byte order mark
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
    """Parse the file's text. Raises ``ConfigError`` with the line that is not valid TOML."""
    try:
        return tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError, ValueError) as error:
        last = text.count("\n") + 1
        reason = str(error).replace("at end of document", f"at line {last}, the end of the file")
        raise ConfigError(
            f"the config file {path} is not valid TOML",
            facts=(shortened(reason, 300),),
            hint=f"correct that line, or move the file away: {path}",
        ) from error


def llm_table(document: Mapping[str, Any], path: Path) -> dict[str, object]:
    """Return our table, empty if it is missing. Raises ``ConfigError`` if it is not a table."""
    table = document.get(TABLE, {})
    if isinstance(table, dict):
        return table
    raise ConfigError(
        f"in the config file {path}, {TABLE} is not a table",
        facts=(shortened(f"it is {type(table).__name__} {redacted(repr(table))}", 200),),
        hint=f"write [{TABLE}] on a separate line of it, and the settings under that line",
    )


_LONGEST_LINE = 200
"""Characters of a line that are searched for a table header; bounds the time of the pattern."""
_HEADER = re.compile(r"\s*\[\[?\s*(?P<name>[^\]]*?)\s*\]")


def line_of(text: str, key: str) -> int | None:
    """Guess the line, from 1, that sets a key of ``[llm]``; only for messages.

    tomli gives no line numbers, so this reads the text with patterns. None if no line matches.
    """
    inside = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=")
    outside = re.compile(rf"\s*{TABLE}\s*(?:\.\s*{re.escape(key)}\s*)?=")
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        match = _HEADER.match(line[:_LONGEST_LINE])
        if match:
            header = match["name"].strip("\"'")
        elif (header == TABLE and inside.match(line)) or (not header and outside.match(line)):
            return number
    return None
