"""Changes of one setting in the file; comments, order and every other table stay."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsuku_llm.config.file import TABLE, llm_table, parse, read
from tsuku_llm.config.keys import Key, Value, checked, key_named
from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import make_folder
from tsuku_llm.errors import ConfigError
from tsuku_llm.ownership import check_path


def set_value(path: Path, name: str, text: str) -> Value:
    """Write one setting into the file and return it as it will be read.

    Raises ``UsageError`` for an unknown key, ``ConfigError`` for a bad value or a file
    that cannot be understood, ``NotWritable``, ``NoSpace`` or ``StoreError``.
    """
    key = key_named(name)
    value = checked(key, text, name)
    _rewrite(path, edited(read(path) or "", key, value, path))
    return value


def unset_value(path: Path, name: str) -> bool:
    """Take one setting out of the file; False when it was not in it.

    Raises as ``set_value`` does.
    """
    key = key_named(name)
    text = read(path)
    if text is None or key.word not in llm_table(parse(text, path), path):
        return False
    _rewrite(path, edited(text, key, None, path))
    return True


def edited(text: str, key: Key, value: Value, path: Path) -> str:
    """The file's text with one setting changed, or removed where ``value`` is None.

    Comments, order and all other tables stay; that the result means exactly what it
    should is checked by reading it again with the parser that reads it at run time.
    Raises ``ConfigError`` when the file cannot be understood or edited.
    """
    import tomlkit  # noqa: PLC0415
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    before = parse(text, path)
    llm_table(before, path)
    try:
        document = tomlkit.parse(text)
        _change(document, key.word, value)
        result = tomlkit.dumps(document)
    except (TOMLKitError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _not_editable(path, key) from error
    if _meaning(parse(result, path)) != _meaning(_with(before, key.word, value)):
        raise _not_editable(path, key)
    return result


def _change(document: Any, word: str, value: Value) -> None:
    import tomlkit  # noqa: PLC0415

    if value is None:
        del document[TABLE][word]
        return
    if TABLE not in document:
        document[TABLE] = tomlkit.table()
    document[TABLE][word] = list(value) if isinstance(value, tuple) else value


def _with(document: Mapping[str, Any], word: str, value: Value) -> dict[str, Any]:
    table = {key: item for key, item in document.get(TABLE, {}).items() if key != word}
    if value is not None:
        table[word] = list(value) if isinstance(value, tuple) else value
    return {**document, TABLE: table}


def _meaning(document: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    # As texts, because a NaN in another table is not equal to itself.
    others = {key: repr(item) for key, item in document.items() if key != TABLE}
    return others, {key: repr(item) for key, item in document.get(TABLE, {}).items()}


def _not_editable(path: Path, key: Key) -> ConfigError:
    return ConfigError(
        f"the config file {path} cannot be edited without changing something else",
        facts=(f"the setting to change is {key.name}",),
        hint=f"change {key.word} under [{TABLE}] by hand in {path}",
    )


def _rewrite(path: Path, text: str) -> None:
    """Replace the file in one step; a link is followed, mode and owner are kept."""
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
    with disk_errors(f"writing the config file {path.name}", path.parent):
        make_folder(target.parent)
        check_path(target)
        try:
            _write(beside, text.encode("utf-8"), target)
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)


def _write(path: Path, data: bytes, like: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags, 0o644), "wb") as file:
        file.write(data)
        if os.name == "posix" and like.exists():
            old = like.stat()
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
