"""The value of each setting that is in force, and its source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.config.file import TABLE, line_of, llm_table, parse, read
from tsuku_llm.config.keys import KEYS, Key, Value, checked, seconds_of, text_of
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


class Settings(NamedTuple):
    """The values in force for all keys; ``warnings`` are sentences about what was ignored."""

    entries: tuple[Setting, ...]
    warnings: tuple[str, ...] = ()

    def setting(self, name: str) -> Setting:
        """Return the entry of one key."""
        return next(entry for entry in self.entries if entry.key.name == name)

    @property
    def backend(self) -> str:
        """The requested backend: ``auto``, ``gpu``, a backend or a variant."""
        return text_of(self.setting("llm.backend").value)

    @property
    def prefer(self) -> str | tuple[str, ...]:
        """A policy, or backends in order of preference."""
        return self.setting("llm.prefer").value or ()

    @property
    def fallback(self) -> str:
        """What ``serve`` does if a backend fails: ``off``, ``ask`` or ``auto``."""
        return text_of(self.setting("llm.fallback").value)

    @property
    def channel(self) -> str:
        """The channel that releases are taken from."""
        return text_of(self.setting("llm.channel").value)

    @property
    def repository(self) -> str:
        """The name of the signed repository."""
        return text_of(self.setting("llm.repository").value)

    @property
    def repository_url(self) -> str | None:
        """The URL of the official repository, None for the built-in one."""
        return text_of(self.setting("llm.repository_url").value) or None

    @property
    def mirrors(self) -> tuple[str, ...]:
        """The mirrors, best first."""
        value = self.setting("llm.mirror").value
        return value if isinstance(value, tuple) else ()

    @property
    def lock_timeout(self) -> float:
        """Seconds to wait for a lock that another process holds."""
        return float(text_of(self.setting("llm.lock_timeout").value))

    @property
    def refresh(self) -> str:
        """When an install asks for newer metadata: ``auto``, ``always`` or ``never``."""
        return text_of(self.setting("llm.refresh").value)

    @property
    def require_fresh(self) -> bool:
        """Whether metadata that is not fresh is an error."""
        return self.setting("llm.require_fresh").value == "true"

    @property
    def update_check(self) -> bool:
        """Whether ``serve`` looks for updates."""
        return self.setting("llm.update_check").value == "true"

    @property
    def idle_timeout(self) -> int:
        """Seconds without a request after which a background server is stopped; 0 means never."""
        return seconds_of(text_of(self.setting("llm.idle_timeout").value))


def load(
    paths: Paths,
    environ: Mapping[str, str],
    flags: Mapping[str, str | None] | None = None,
    *,
    looking: bool = False,
) -> Settings:
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
    return Settings(entries, (*warnings, *where.warnings()))


class _InFile(NamedTuple):
    """The ``[llm]`` table of a config file, which also knows the line of each key."""

    path: Path
    text: str
    table: Mapping[str, object]

    def place(self, key: Key) -> str:
        line = line_of(self.text, key.word)
        return f"file {self.path}" + (f", line {line}" if line else "")

    def warnings(self) -> tuple[str, ...]:
        known = {key.word for key in KEYS}
        return tuple(
            f"{self.path}: unknown setting {TABLE}.{word} is ignored"
            for word in self.table
            if word not in known
        )


def _in_force(
    key: Key, flags: Mapping[str, str | None], environ: Mapping[str, str], file: _InFile
) -> Setting:
    """Return the value of one key from the first source that has it."""
    flag = flags.get(key.name)
    if flag is not None:
        source = f"flag {key.flag}"
        return Setting(key, checked(key, flag, source), source)
    # Not ``in environ``: an empty variable counts as unset.
    if environ.get(key.variable):
        source = f"environment {key.variable}"
        return Setting(key, checked(key, environ[key.variable], source), source)
    if key.word in file.table:
        # The line number is for the error only; the source in the answer names just the file.
        value = checked(key, file.table[key.word], file.place(key))
        return Setting(key, value, f"file {file.path}")
    return Setting(key, key.default, DEFAULT)
