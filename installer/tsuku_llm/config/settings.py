"""The value of each setting that is in force, and its source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.config.file import TABLE, line_of, llm_table, parse, read
from tsuku_llm.config.keys import KEYS, Key, Value, checked
from tsuku_llm.config.paths import Paths
from tsuku_llm.errors import UnsafeLocation

DEFAULT = "default"
"""The source of a value that the user did not set."""


class Setting(NamedTuple):
    """A value in force; ``source`` says in words where it comes from."""

    key: Key
    value: Value
    source: str

    @property
    def chosen(self) -> bool:
        """Whether the user set this value: by flag, environment or config file."""
        return self.source != DEFAULT

    @property
    def by_flag(self) -> bool:
        """Whether a flag of this command set this value."""
        return self.source == _flag(self.key)


class Settings(NamedTuple):
    """The values that operations use; each has the name of its key in ``[llm]``.

    ``channel``, ``release`` and ``repository`` are None if the user named none: then an operation
    may choose. ``prefer`` is a policy of the manifest, or backends in order of preference. The
    timeouts are in seconds; an ``idle_timeout`` or ``start_timeout`` of 0 means never.
    ``min_age`` is in days, ``ask_above`` and ``max_download`` in bytes. ``chosen`` are the keys
    that the user set, and ``flags`` those of them that a flag of this command set.
    """

    backend: str
    prefer: str | tuple[str, ...]
    fallback: str
    channel: str | None
    release: str | None
    hold: bool
    min_age: int
    repository: str | None
    repository_url: str | None
    mirror: tuple[str, ...]
    ask_above: int
    max_download: int | None
    lock_timeout: float
    probe_timeout: int
    refresh: str
    require_fresh: bool
    update_check: bool
    canary: bool
    warm_up: bool
    on_gpu_loss: str
    placement: str
    idle_timeout: int
    start_timeout: int
    chosen: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()


class Configuration(NamedTuple):
    """All settings with their sources; ``warnings`` are sentences about what was ignored."""

    entries: tuple[Setting, ...]
    warnings: tuple[str, ...] = ()

    def setting(self, name: str) -> Setting:
        """Return the entry of one key."""
        return next(entry for entry in self.entries if entry.key.name == name)

    @property
    def settings(self) -> Settings:
        """The values in force."""
        values = {entry.key.key: entry.key.typed(entry.value) for entry in self.entries}
        chosen = frozenset(entry.key.key for entry in self.entries if entry.chosen)
        flags = frozenset(entry.key.key for entry in self.entries if entry.by_flag)
        # Their defaults are only what an operation takes if nothing else decides.
        for key in {"channel", "repository"} - chosen:
            values[key] = None
        return Settings(**values, chosen=chosen, flags=flags)


def load(
    paths: Paths,
    environ: Mapping[str, str],
    flags: Mapping[str, str | None] | None = None,
    *,
    looking: bool = False,
) -> Configuration:
    """Return the values in force: from the flag, else environment, else file, else the default.

    ``flags`` maps a key's name to the option's text. An empty variable counts as unset. A config
    file that another user wrote, or could write, is refused; a command that is only ``looking``
    ignores it with a warning. Raises ``UnsafeLocation`` for that file, and ``ConfigError`` for a
    file or a value that cannot be parsed.
    """
    warnings: tuple[str, ...] = ()
    try:
        text = read(paths.config_file)
    except UnsafeLocation as error:
        if not looking:
            raise
        # A command that only looks writes and runs nothing: it may go on with the other sources.
        text = None
        warnings = (f"{paths.config_file} is not used: {error.message}; {error.hint}",)
    table = {} if text is None else llm_table(parse(text, paths.config_file), paths.config_file)
    where = _InFile(paths.config_file, text or "", table)
    entries = tuple(_in_force(key, flags or {}, environ, where) for key in KEYS)
    return Configuration(entries, (*warnings, *where.warnings()))


class _InFile(NamedTuple):
    """The ``[llm]`` table of a config file, which also knows the line of each key."""

    path: Path
    text: str
    table: Mapping[str, object]

    def place(self, key: Key) -> str:
        line = line_of(self.text, key.key)
        return f"file {self.path}" + (f", line {line}" if line else "")

    def warnings(self) -> tuple[str, ...]:
        known = {key.key for key in KEYS}
        return tuple(
            f"{self.path}: unknown setting {TABLE}.{key} is ignored"
            for key in self.table
            if key not in known
        )


def _flag(key: Key) -> str:
    """Return the source of a value that a flag set."""
    return f"flag {key.flag}"


def _in_force(
    key: Key, flags: Mapping[str, str | None], environ: Mapping[str, str], file: _InFile
) -> Setting:
    """Return the value of one key from the first source that has it."""
    flag = flags.get(key.name)
    if flag is not None:
        source = _flag(key)
        return Setting(key, checked(key, flag, source), source)
    # Not ``in environ``: an empty variable counts as unset.
    if environ.get(key.variable):
        source = f"environment {key.variable}"
        return Setting(key, checked(key, environ[key.variable], source), source)
    if key.key in file.table:
        # The line number is for the error only; the source in the answer names just the file.
        value = checked(key, file.table[key.key], file.place(key))
        return Setting(key, value, f"file {file.path}")
    return Setting(key, key.default, DEFAULT)
