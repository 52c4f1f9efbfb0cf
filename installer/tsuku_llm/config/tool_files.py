"""Settings that are added to the configuration file of another program, in JSON or TOML.

What is in the file stays, and a copy of the file as it was is kept beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import tomli
import tomlkit
from tomlkit.exceptions import TOMLKitError

from tsuku_llm.config.editing import replace
from tsuku_llm.config.file import decoded, read
from tsuku_llm.ground.errors import ConfigError
from tsuku_llm.ground.foreign import parse_object

_KEPT = ".before-tsuku-llm"


def add_to_file(path: Path, settings: str) -> Path | None:
    """Add settings to a file whose name ends in ``.json`` or ``.toml``; they have its format.

    Return the copy of the file as it was before the first change of ours, None for a new file.
    Raises ``ConfigError`` for a file that cannot be parsed or that has something else in a place of
    these settings, ``UnsafeLocation``, ``NotWritable``, ``NoSpace`` or ``StoreError``.
    """
    data = read(path)
    add = _ADDED[path.suffix]
    try:
        result = add(decoded(data or b"", path), settings)
    except (ValueError, TypeError, KeyError, RecursionError, TOMLKitError) as error:
        raise ConfigError(
            f"the settings cannot be added to {path} without losing something",
            facts=(str(error),),
            hint="nothing was written; run the same without --write, and add them by hand",
        ) from error
    kept = path.with_name(path.name + _KEPT)
    # The file may have a key of another service: the copy is for its owner alone.
    if data is not None and not os.path.lexists(kept):
        replace(kept, data, 0o600)
    replace(path, result.encode("utf-8"), 0o600)
    return None if data is None else kept


def _added_json(text: str, settings: str) -> str:
    document = parse_object(text) if text.strip() else {}
    _add(document, parse_object(settings))
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _added_toml(text: str, settings: str) -> str:
    wanted = tomli.loads(text)
    _add(wanted, tomli.loads(settings))
    document = tomlkit.parse(text)  # keeps comments and order
    _add(document, tomlkit.parse(settings))
    result = tomlkit.dumps(document)
    if tomli.loads(result) != wanted:
        raise ValueError("its form is one that cannot be edited")
    return result


def _add(document: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    """Set each value in ``document``; tables that both have are joined."""
    for key, value in settings.items():
        there = document.get(key)
        if isinstance(value, MutableMapping) and there is not None:
            if not isinstance(there, MutableMapping):
                raise ValueError(f"{key} is there, and is no table")
            _add(there, value)
        else:
            document[key] = value


_ADDED: dict[str, Callable[[str, str], str]] = {".json": _added_json, ".toml": _added_toml}
