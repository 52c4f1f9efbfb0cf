"""Which value of each setting is in force, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.config.file import TABLE, line_of, llm_table, parse, read
from tsuku_llm.config.keys import KEYS, Key, Value, checked, seconds_of, text_of
from tsuku_llm.config.paths import Paths
from tsuku_llm.errors import UnsafeLocation

DEFAULT = "default"


class Setting(NamedTuple):
    """A value in force; ``source`` says in words where it comes from."""

    key: Key
    value: Value
    source: str

    @property
    def chosen(self) -> bool:
        """Whether the user named it, in whatever place."""
        return self.source != DEFAULT


class Settings(NamedTuple):
    """Every key's value in force; ``warnings`` are sentences about what was ignored."""

    entries: tuple[Setting, ...]
    warnings: tuple[str, ...] = ()

    def setting(self, name: str) -> Setting:
        """The entry of one key."""
        return next(entry for entry in self.entries if entry.key.name == name)

    @property
    def backend(self) -> str:
        """A word of the request: ``auto``, ``gpu``, a backend or a variant."""
        return text_of(self.setting("llm.backend").value)

    @property
    def prefer(self) -> str | tuple[str, ...]:
        """A policy, or backends in order."""
        return self.setting("llm.prefer").value or ()

    @property
    def fallback(self) -> str:
        """``off``, ``ask`` or ``auto``."""
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
        """The official repository's address, None for the built-in one."""
        return text_of(self.setting("llm.repository_url").value) or None

    @property
    def mirrors(self) -> tuple[str, ...]:
        """Mirrors, best first."""
        value = self.setting("llm.mirror").value
        return value if isinstance(value, tuple) else ()

    @property
    def lock_timeout(self) -> float:
        """Seconds to wait for another process."""
        return float(text_of(self.setting("llm.lock_timeout").value))

    @property
    def refresh(self) -> str:
        """When metadata is asked for before an install: ``auto``, ``always`` or ``never``."""
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
        """Seconds without a request after which a server in the background ends; 0: never."""
        return seconds_of(text_of(self.setting("llm.idle_timeout").value))


def load(
    paths: Paths,
    environ: Mapping[str, str],
    flags: Mapping[str, str | None] | None = None,
    *,
    looking: bool = False,
) -> Settings:
    """What is in force: flag, else environment, else file, else default.

    ``flags`` maps a key's name to the option's text. An empty variable counts as unset.
    A file that another user wrote, or could, is refused; a command that is only ``looking``
    passes it over with a warning. Raises ``UnsafeLocation``, and ``ConfigError`` for a file or
    a value that cannot be understood.
    """
    warnings: tuple[str, ...] = ()
    try:
        text = read(paths.config_file)
    except UnsafeLocation as error:
        if not looking:
            raise
        text = None
        warnings = (f"{paths.config_file} is not used: {error.message}; {error.hint}",)
    table = {} if text is None else llm_table(parse(text, paths.config_file), paths.config_file)
    where = _InFile(paths.config_file, text or "", table)
    entries = tuple(_in_force(key, flags or {}, environ, where) for key in KEYS)
    return Settings(entries, (*warnings, *where.warnings()))


class _InFile(NamedTuple):
    """The ``[llm]`` table of a file, which can say where in the file a key stands."""

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
    flag = flags.get(key.name)
    if flag is not None:
        source = f"flag {key.flag}"
        return Setting(key, checked(key, flag, source), source)
    if environ.get(key.variable):
        source = f"environment {key.variable}"
        return Setting(key, checked(key, environ[key.variable], source), source)
    if key.word in file.table:
        value = checked(key, file.table[key.word], file.place(key))
        return Setting(key, value, f"file {file.path}")
    return Setting(key, key.default, DEFAULT)
