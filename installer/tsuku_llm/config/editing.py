"""Changes of one setting in the config file; comments, order and all other tables stay."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from tsuku_llm.config.file import TABLE, decoded, llm_table, parse, read
from tsuku_llm.config.keys import Key, Value, checked, key_named
from tsuku_llm.config.settings import ALL
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import ConfigError
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.ground.safe_text import has_secret


def checked_value(key: Key, text: str) -> Value:
    """Parse a value that is to be written. Raises ``ConfigError``."""
    return checked(key, text, "the value", f"{TSUKU} config unset {key.name}")


def set_value(path: Path, key: Key, value: Value) -> None:
    """Write a parsed value of one setting into the file; one that it has already stays as it is.

    Raises ``ConfigError`` for a file that cannot be parsed or edited, ``UnsafeLocation``,
    ``NotWritable``, ``NoSpace`` or ``StoreError``.
    """
    text = decoded(read(path) or b"", path)
    written = llm_table(parse(text, path), path).get(key.key)
    # A value that cannot be parsed is another one.
    with suppress(ValueError):
        if written is not None and key.parse(written) == value:
            return
    replace(path, edited(text, key.key, value, path).encode("utf-8"))


def unset_value(path: Path, name: str) -> Key | None:
    """Remove one setting from the file, if it is there; return its key.

    A mistyped name that is in the file is removed, too: then None is returned. Raises
    ``UsageError`` for any other unknown name, and the errors of ``set_value``.
    """
    text = decoded(read(path) or b"", path)
    key = name.removeprefix(f"{TABLE}.")
    there = key in llm_table(parse(text, path), path)
    found = None if there and key not in ALL else key_named(name)
    if there:
        replace(path, edited(text, key, None, path).encode("utf-8"))
    return found


def edited(text: str, key: str, value: Value, path: Path) -> str:
    """Return the file's text with one setting changed, or removed if ``value`` is None.

    Comments, order and all other tables stay. The result is parsed again with the parser that reads
    it at run time, and its meaning is compared with the intended one. Raises ``ConfigError`` if the
    file cannot be parsed or edited.
    """
    # tomli reads the file at run time; tomlkit, which keeps comments, only edits it.
    before = parse(text, path)
    llm_table(before, path)
    try:
        document = tomlkit.parse(text)
        _change(document, key, value)
        result = tomlkit.dumps(document)
    except (TOMLKitError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _not_editable(path, key) from error
    # tomlkit may misread a file that tomli accepts: never write such a result.
    if _meaning(parse(result, path)) != _meaning(_with(before, key, value)):
        raise _not_editable(path, key)
    return result


def _change(document: Any, key: str, value: Value) -> None:
    if value is None:
        del document[TABLE][key]
        return
    if TABLE not in document:
        document[TABLE] = tomlkit.table()
    document[TABLE][key] = list(value) if isinstance(value, tuple) else value


def _with(document: Mapping[str, Any], key: str, value: Value) -> dict[str, Any]:
    """Return the parsed document as it should be after the change."""
    table = {name: item for name, item in document.get(TABLE, {}).items() if name != key}
    if value is not None:
        table[key] = list(value) if isinstance(value, tuple) else value
    return {**document, TABLE: table}


def _meaning(document: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    # Compare texts, because a NaN in another table does not equal itself.
    others = {key: repr(item) for key, item in document.items() if key != TABLE}
    return others, {key: repr(item) for key, item in document.get(TABLE, {}).items()}


def _not_editable(path: Path, key: str) -> ConfigError:
    return ConfigError(
        f"the config file {path} cannot be edited without changing something else",
        facts=(f"the setting to change is {TABLE}.{key}",),
        hint=f"change {key} under [{TABLE}] of that file by hand",
    )


def replace(path: Path, data: bytes, new: int | None = None) -> None:
    """Replace the file in one step; follow a link to its target, keep mode and owner.

    ``new`` is the mode of a new file; None for one that suits what is in it. Raises
    ``UnsafeLocation``, ``NotWritable``, ``NoSpace`` or ``StoreError``.
    """
    # Replace the target of a link, not the link: users keep this file in a folder of dotfiles.
    target = Path(os.path.realpath(path))
    # A file that exists keeps its mode: a shared one is read by others, who are told then.
    mode = new or (0o600 if has_secret(data.decode("utf-8", "replace")) else 0o644)
    owner = None
    with disk_errors(f"writing the config file {path.name}", path.parent):
        make_folder(target.parent)
        # Refuse before anything is written if another user could replace the file.
        check_path(target)
        if os.name == "posix" and target.exists():
            old = target.stat()
            # root may be changing a user's file: the user must be able to read it afterwards.
            mode, owner = stat.S_IMODE(old.st_mode), (old.st_uid, old.st_gid)
        replace_file(target, data, mode, owner)
