"""The value of each setting that is in force, its source, and what is wrong with it.

A wrong value raises nothing here: it is kept as a problem beside the setting, whose default is then
in force. A command stops for it (``Configuration.require``), unless it helps to mend it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from tsuku_llm.config.file import TABLE, decoded, line_of, llm_table, parse, read
from tsuku_llm.config.keys import (
    COMBINED,
    INSTALLED,
    KEYS,
    PORTABLE,
    Key,
    Value,
    checked,
    near_key,
)
from tsuku_llm.config.paths import Paths
from tsuku_llm.ground.errors import ConfigError, StoreError, TsukuError, did_you_mean
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.ground.safe_text import has_secret, redacted, shortened

_LONGEST = 60
"""Characters of a wrong value that are shown; the line in the file has all of it."""

DEFAULT = "default"
"""The source of a value that the user did not set."""
DEFAULT_IS_NO_CHOICE = frozenset({"channel", "repository"})
"""The keys that are None in ``Settings`` unless the user set them."""


ALL = frozenset(key.key for key in KEYS)
"""The keys of all settings."""
NAMING = ("backend", "channel", "release", "repository")
"""The settings whose value is a name that must exist."""

PREFIX = "TSUKU_LLM_"
NO_SETTINGS = frozenset({"FAKE_HARDWARE", "STRICT", "REQUIRE_TOOLS", "TEST_WHEEL"}) | {
    "SIGNERS",
    "PASSPHRASE",
    "PASSPHRASE_FILE",
}
"""Variables with our prefix that are no settings: of tests, and of the publisher's command."""


@documented("key", "value", "source", "written", "problem")
class Setting(NamedTuple):
    """A value in force; ``source`` says in words where it comes from.

    ``place`` is the source with its line in the config file. ``problem`` says what is wrong with
    the value ``written`` there; the default is in force then.
    """

    key: Key
    value: Value
    source: str
    place: str = ""
    problem: TsukuError | None = None
    written: str | None = None

    @property
    def shown(self) -> Setting:
        """The setting without the credentials of URLs; a long wrong value is shortened."""
        value, written = self.value, self.written
        # None stays None; an empty list stays empty.
        hidden = (
            redacted(value) if isinstance(value, str) else value and tuple(map(redacted, value))
        )
        return self._replace(
            value=hidden, written=written and shortened(redacted(written), _LONGEST)
        )

    @property
    def chosen(self) -> bool:
        """Whether the user set this value: by flag, environment or config file."""
        return self.source != DEFAULT and self.problem is None


class Settings(NamedTuple):
    """The values that operations use; each has the name of its key in ``[llm]``.

    ``channel``, ``release`` and ``repository`` are None if the user named none: then an operation
    may choose. ``prefer`` is a policy of the manifest, or backends in order of preference. The
    timeouts are in seconds; an ``idle_timeout`` of 0 means never. ``min_age`` is in days,
    ``ask_above`` and ``max_download`` in bytes. ``combine``, ``hold``, ``require_fresh`` and
    ``warm_up`` are words of other settings (``_words``). ``chosen`` are the keys that the user set,
    and ``flags`` those of them that a flag of this command set. ``places`` says for each chosen key
    where it was set. A key whose value is wrong has its default, and is not chosen.
    """

    backend: str
    prefer: str | tuple[str, ...]
    combine: bool
    fallback: str
    channel: str | None
    release: str | None
    hold: bool
    min_age: int
    repository: str | None
    repository_url: tuple[str, ...]
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
    model_path: tuple[str, ...]
    chosen: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    places: Mapping[str, str] = {}

    def without(self, keys: Collection[str]) -> Settings:
        """Return these settings as if the user had not set these keys."""
        defaults: dict[str, Any] = {
            key.key: None if key.key in DEFAULT_IS_NO_CHOICE else key.typed(key.default)
            for key in KEYS
            if key.key in keys
        }
        return self._replace(
            **_words(defaults),
            chosen=self.chosen - set(keys),
            places={key: place for key, place in self.places.items() if key not in keys},
        )


def _words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of keys as those of ``Settings``, where some of their words have own fields."""
    found = dict(values)
    if "prefer" in found:
        words = found["prefer"]
        if isinstance(words, str):
            first, _, rest = words.partition(",")
        else:
            first, rest = words[0], words[1:]
        found["combine"] = first == COMBINED
        if found["combine"]:
            found["prefer"] = rest or PORTABLE
    if "release" in found:
        found["hold"] = found["release"] == INSTALLED
        if found["hold"]:
            found["release"] = None
    if "refresh" in found:
        found["require_fresh"] = found["refresh"] == "required"
    if "canary" in found:
        found["warm_up"] = found["canary"] == "true"
        found["canary"] = found["canary"] != "false"
    return found


def unique(errors: Iterable[TsukuError]) -> tuple[TsukuError, ...]:
    """Return errors in their order, each once: that of a whole file belongs to many settings."""
    return tuple({id(error): error for error in errors}.values())


class Configuration(NamedTuple):
    """All settings with their sources; ``warnings`` are sentences about what was ignored."""

    entries: tuple[Setting, ...]
    warnings: tuple[str, ...] = ()

    def setting(self, name: str) -> Setting:
        """Return the entry of one key."""
        return next(entry for entry in self.entries if entry.key.name == name)

    @property
    def told(self) -> tuple[str, ...]:
        """What is wrong, in sentences for a command that goes on."""
        return (*self.warnings, *map(warning_of, self.problems))

    def with_problems(self, problems: Mapping[str, TsukuError]) -> Configuration:
        """Return the settings with what else is wrong, by key: their defaults are in force."""
        entries = (
            entry._replace(
                value=entry.key.default, problem=problems[entry.key.key], written=_text(entry.value)
            )
            if entry.key.key in problems
            else entry
            for entry in self.entries
        )
        return self._replace(entries=tuple(entries))

    @property
    def problems(self) -> tuple[TsukuError, ...]:
        """What is wrong with the file and with values, each once."""
        return unique(each.problem for each in self.entries if each.problem)

    def require(self) -> None:
        """Refuse to go on if anything is wrong.

        Raises the error of the first setting; its facts also tell what is wrong with the others.
        """
        if self.problems:
            first, *others = self.problems
            told = tuple(f"{each.message}: {', '.join(each.facts)}" for each in others)
            raise type(first)(first.message, facts=(*first.facts, *told), hint=first.hint)

    @property
    def settings(self) -> Settings:
        """The values in force."""
        values = {entry.key.key: entry.key.typed(entry.value) for entry in self.entries}
        chosen = {entry.key.key: entry for entry in self.entries if entry.chosen}
        # Their defaults are only what an operation takes if nothing else decides.
        for key in DEFAULT_IS_NO_CHOICE - chosen.keys():
            values[key] = None
        return Settings(
            **_words(values),
            chosen=frozenset(chosen),
            flags=frozenset(key for key, each in chosen.items() if each.source == _flag(each.key)),
            places={key: entry.place for key, entry in chosen.items()},
        )


def warning_of(problem: TsukuError) -> str:
    """Return a problem as one sentence, for a command that goes on without the value."""
    facts = f" ({', '.join(problem.facts)})" if problem.facts else ""
    return f"{problem.message}{facts}: it is not used; {problem.hint}"


def load(
    paths: Paths,
    environ: Mapping[str, str],
    flags: Mapping[str, str | None] | None = None,
    *,
    looking: bool = False,
) -> Configuration:
    """Return the values in force: from the flag, else environment, else file, else the default.

    ``flags`` maps a key's name to the option's text. A config file that another user wrote, or
    could write, is refused; a command that is only ``looking`` ignores it with a warning. Raises
    ``UnsafeLocation`` for that file, and ``ConfigError`` for a flag with a wrong value. What is
    wrong with the file, and with values in it and in the environment, is in the entries.
    """
    warnings: tuple[str, ...] = ()
    try:
        file = _InFile.of(paths, read(paths.config_file) or b"")
    except ConfigError as error:
        file = _InFile(paths, broken=error)
    except StoreError as error:
        if not looking:
            raise
        # A command that only looks writes and runs nothing: it may go on with the other sources.
        file = _InFile(paths)
        warnings = (f"{paths.config_file} is not used: {error.message}; {error.hint}",)
    entries = tuple(_in_force(key, flags or {}, environ, file) for key in KEYS)
    warnings += (*_readable_secret(file), *file.warnings(), *_unknown_variables(environ))
    return Configuration(entries, warnings)


class _InFile(NamedTuple):
    """The content of a config file, which also knows the line of each key.

    ``broken`` is set if the file as a whole cannot be used; then nothing of it is known.
    """

    paths: Paths
    text: str = ""
    document: Mapping[str, object] = {}
    table: Mapping[str, object] = {}
    broken: ConfigError | None = None

    @classmethod
    def of(cls, paths: Paths, data: bytes) -> _InFile:
        """Read the content of a config file."""
        path = paths.config_file
        text = ""
        try:
            text = decoded(data, path)
            document = parse(text, path)
            return cls(paths, text, document, llm_table(document, path))
        except ConfigError as error:
            return cls(paths, text, broken=error)

    def place(self, key: str) -> str:
        line = line_of(self.text, key)
        return f"file {self.paths.config_file}" + (f", line {line}" if line else "")

    def warnings(self) -> tuple[str, ...]:
        """Say which names in the file are none of ours, and so are ignored."""
        unknown = [
            (f"{self.place(key)}: unknown setting {TABLE}.", key, near_key(key))
            for key in self.table
            if key not in ALL
        ]
        # With TSUKU_HOME the file is tsuku's, and all other tables are its own.
        if self.paths.home is None:
            place = f"file {self.paths.config_file}: unknown setting "
            unknown += [
                (place, key, f"write it below a line [{TABLE}]" if key in ALL else "")
                for key in self.document
                if key != TABLE
            ]
        return tuple(
            f"{place}{shortened(key, 80)} is ignored" + (f"; {hint}" if hint else "")
            for place, key, hint in unknown
        )


def _readable_secret(file: _InFile) -> Iterator[str]:
    """Say that other users can read a password or a token in the config file."""
    items = [item if isinstance(item, list) else [item] for item in file.table.values()]
    if not any(isinstance(each, str) and has_secret(each) for item in items for each in item):
        return
    path = file.paths.config_file
    with suppress(OSError):  # it is gone since it was read
        if os.name == "posix" and path.stat().st_mode & 0o077:
            yield f"{path} has a password or a token, and other users can read it: chmod 600 {path}"


def _unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Say which variables with our prefix set nothing."""
    known = {*(key.variable.removeprefix(PREFIX) for key in KEYS), *NO_SETTINGS}
    return tuple(
        f"environment {shortened(name, 80)}: there is no such setting, and it is ignored"
        + (f"; {near}" if (near := did_you_mean(name, known, before=PREFIX)) else "")
        for name in sorted(environ)
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in known
    )


def _text(written: object) -> str:
    return written if isinstance(written, str) else repr(written)


def _flag(key: Key) -> str:
    """Return the source of a value that a flag set."""
    return f"flag {key.flag}"


def _in_force(
    key: Key, flags: Mapping[str, str | None], environ: Mapping[str, str], file: _InFile
) -> Setting:
    """Return the value of one key from the first source that has it.

    A wrong value does not make a source count as missing: the next one may say the opposite.
    """
    flag = flags.get(key.name)
    if flag is not None:
        source = _flag(key)
        way_out = f"leave {key.flag} out"
        return Setting(key, checked(key, flag, source, way_out), source, source)
    if key.variable in environ:
        source = place = f"environment {key.variable}"
        written: object = environ[key.variable]
        way_out = f"unset {key.variable}"
    elif file.broken:
        return Setting(key, key.default, DEFAULT, problem=file.broken)
    elif key.key in file.table:
        # The line is for messages; the source in the answer names just the file.
        source, place = f"file {file.paths.config_file}", file.place(key.key)
        written = file.table[key.key]
        way_out = f"{TSUKU} config unset {key.name}"
    else:
        return Setting(key, key.default, DEFAULT)
    try:
        return Setting(key, checked(key, written, place, way_out), source, place)
    except ConfigError as error:
        return Setting(key, key.default, source, place, error, _text(written))
