"""Settings from flags, environment and file, each with its source; and where things lie.

The file is ``config.toml``; with ``TSUKU_HOME`` set it is tsuku's own, of which only the
table ``[llm]`` is ours. It is read with tomli and edited with tomlkit, so that comments
and order survive. tomli, tomlkit and platformdirs are imported when they are needed:
``serve`` and ``which`` often need none of them.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsuku_llm.errors import ConfigError, NoSpace, NotWritable, StoreError, UsageError

Value = str | tuple[str, ...] | None

TABLE = "llm"
DEFAULT = "default"
BACKENDS = ("cpu", "cuda", "rocm", "sycl", "vulkan", "opencl", "openvino", "metal")
POLICIES = ("portable", "native")
SIZE_LIMIT = 1 << 20
"""Bytes of a config file that are read; more is surely no config file."""

_WORD = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
_HTTPS = re.compile(r"https://[^\s,/?#\\]+(?:[/?#][^\s,\\]*)?")
_FILE = re.compile(r"file:///[^\s,\\]*")
_USERINFO = re.compile(r"(?<=://)[^/?#@]*@")


# --- where things lie --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Paths:
    """``config_file``, and the folders ``data`` (installs) and ``state`` (running servers)."""

    config_file: Path
    data: Path
    state: Path

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Paths:
        """Everything under ``TSUKU_HOME`` where it is set, else where the system wants it.

        Raises ``ConfigError`` when ``TSUKU_HOME`` is empty or relative, or the system
        names no absolute folder (no home folder).
        """
        home = environ.get("TSUKU_HOME")
        if home is None:
            return cls._of_the_system()
        folder = _absolute("TSUKU_HOME", home)
        data = folder / "tools" / "tsuku-llm"
        return cls(folder / "config.toml", data, data / "state")

    @classmethod
    def _of_the_system(cls) -> Paths:
        from platformdirs import PlatformDirs  # noqa: PLC0415

        places = PlatformDirs("tsuku-llm", appauthor=False)
        return cls(
            _absolute("the config folder", places.user_config_dir) / "config.toml",
            _absolute("the data folder", places.user_data_dir),
            _absolute("the state folder", places.user_state_dir),
        )


def _absolute(what: str, text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise ConfigError(
            f"{what} is {text!r}, which is no absolute path",
            hint="set TSUKU_HOME to an absolute path, or unset it and have a home folder",
        )
    return path


# --- the keys ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. ``parse`` takes a TOML value or a text, and raises ``ValueError``."""

    name: str
    default: Value
    parse: Callable[[object], Value]
    help: str

    @property
    def word(self) -> str:
        """Its name inside the table ``[llm]``."""
        return self.name.partition(".")[2]

    @property
    def flag(self) -> str:
        """The option that overrides it, in the commands that have it."""
        return "--" + self.word.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable that overrides the file."""
        return "TSUKU_LLM_" + self.word.upper()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")  # noqa: TRY004
    return value.strip()


def _words(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else _text(value).split(",")
    return tuple(_text(item) for item in items)


def parse_word(value: object) -> str:
    """A name of a backend, variant, channel or repository."""
    text = _text(value)
    if not _WORD.fullmatch(text):
        raise ValueError("must be a name of lower-case letters, digits and . _ + -")
    return text


def parse_preference(value: object) -> Value:
    """A policy's name, or backends in the order wanted."""
    words = _words(value)
    if len(words) == 1 and words[0] in POLICIES:
        return words[0]
    if not words or not set(words) <= set(BACKENDS):
        choice = f"{' or '.join(POLICIES)}, or a list of {', '.join(BACKENDS)}"
        raise ValueError(f"must be {choice}")
    return words


def parse_repository_url(value: object) -> str:
    """Where a repository is published."""
    text = _text(value)
    if not (_HTTPS.fullmatch(text) and text.isprintable()):
        raise ValueError("must be an https: URL")
    return text


def parse_mirrors(value: object) -> tuple[str, ...]:
    """URLs that stand in for the release host, in the order in which they are tried."""
    urls = _words(value)
    for url in urls:
        if not (_HTTPS.fullmatch(url) or _FILE.fullmatch(url)) or not url.isprintable():
            raise ValueError("must be https: or file: URLs, with commas between them")
    return urls


KEYS: tuple[Key, ...] = (
    Key(
        "llm.backend",
        "auto",
        parse_word,
        "auto, gpu (any GPU, else an error), a backend, or a variant's name",
    ),
    Key(
        "llm.prefer",
        "portable",
        parse_preference,
        "portable, native, or backends in the order wanted",
    ),
    Key("llm.channel", "stable", parse_word, "which releases: stable, nightly or index"),
    Key("llm.repository", "official", parse_word, "the signed repository that is used"),
    Key(
        "llm.repository_url",
        None,
        parse_repository_url,
        "where the official repository's metadata is fetched, if elsewhere",
    ),
    Key("llm.mirror", (), parse_mirrors, "where archives are tried first, best first"),
)

_BY_NAME = {key.name: key for key in KEYS}


def key_named(name: str) -> Key:
    """The key of that name; ``UsageError`` with what exists when there is none."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(name, _BY_NAME, 1)
    raise UsageError(
        f"there is no setting {name!r}",
        facts=(f"settings: {', '.join(_BY_NAME)}",),
        hint=f"did you mean {near[0]}?" if near else "see: tsuku-llm config list",
    )


def text_of(value: Value) -> str:
    """A value as the user would type it; unset is the empty text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else ",".join(value)


def redacted(text: str) -> str:
    """A text without the credentials of URLs in it."""
    return _USERINFO.sub("***@", text)


# --- what is in force --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """A value in force; ``source`` says in words where it comes from."""

    key: Key
    value: Value
    source: str

    @property
    def chosen(self) -> bool:
        """Whether the user named it, in whatever place."""
        return self.source != DEFAULT


@dataclass(frozen=True, slots=True)
class Settings:
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


def load(
    paths: Paths, environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None
) -> Settings:
    """What is in force: flag, else environment, else file, else default.

    ``flags`` maps a key's name to the option's text. An empty variable counts as unset.
    Raises ``ConfigError`` for a file or a value that cannot be understood.
    """
    text = read(paths.config_file)
    table = {} if text is None else _table(_parse(text, paths.config_file), paths.config_file)
    where = _InFile(paths.config_file, text or "", table)
    entries = tuple(_in_force(key, flags or {}, environ, where) for key in KEYS)
    return Settings(entries, where.warnings())


@dataclass(frozen=True, slots=True)
class _InFile:
    """The ``[llm]`` table of a file, which can say where in the file a key stands."""

    path: Path
    text: str
    table: Mapping[str, object]

    def source(self, key: Key) -> str:
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
        return _checked(key, flag, f"flag {key.flag}")
    if environ.get(key.variable):
        return _checked(key, environ[key.variable], f"environment {key.variable}")
    if key.word in file.table:
        setting = _checked(key, file.table[key.word], file.source(key))
        return Setting(key, setting.value, f"file {file.path}")
    return Setting(key, key.default, DEFAULT)


def _checked(key: Key, raw: object, source: str) -> Setting:
    try:
        return Setting(key, key.parse(raw), source)
    except ValueError as error:
        raise ConfigError(
            f"{key.name} {error}",
            facts=(f"{source}: {redacted(repr(raw))[:200]}",),
            hint=f"{key.name}: {key.help}",
        ) from error


# --- the file ----------------------------------------------------------------------------


def read(path: Path) -> str | None:
    """The config file's text, line ends as they are; None where there is no file.

    Raises ``ConfigError`` when it is unreadable, no regular file, too large or not UTF-8.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _unreadable(path, "it is not a regular file")
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


def _parse(text: str, path: Path) -> dict[str, Any]:
    import tomli  # noqa: PLC0415

    try:
        return tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(
            f"the config file {path} is not valid TOML",
            facts=(str(error)[:300],),
            hint=f"correct that line of {path}",
        ) from error


def _table(document: Mapping[str, Any], path: Path) -> dict[str, object]:
    table = document.get(TABLE, {})
    if isinstance(table, dict):
        return table
    raise ConfigError(
        f"in the config file {path}, {TABLE} is not a table",
        facts=(f"it is {type(table).__name__} {table!r}"[:200],),
        hint=f"write [{TABLE}] on a line of its own, and the settings under it",
    )


_HEADER = re.compile(r"\s*\[\[?\s*(?P<name>[^\]]*?)\s*\]")


def line_of(text: str, word: str) -> int | None:
    """The line, from 1, on which a key of ``[llm]`` seems to stand; for error texts only."""
    inside = re.compile(rf"\s*[\"']?{re.escape(word)}[\"']?\s*=")
    outside = re.compile(rf"\s*{TABLE}\s*(?:\.\s*{re.escape(word)}\s*)?=")
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        match = _HEADER.match(line)
        if match:
            header = match["name"].strip("\"'")
        elif (header == TABLE and inside.match(line)) or (not header and outside.match(line)):
            return number
    return None


# --- editing -----------------------------------------------------------------------------


def set_value(path: Path, name: str, text: str) -> Value:
    """Write one setting into the file and return it as it will be read.

    Raises ``UsageError`` for an unknown key, ``ConfigError`` for a bad value or a file
    that cannot be understood, ``NotWritable``, ``NoSpace`` or ``StoreError``.
    """
    key = key_named(name)
    value = _checked(key, text, name).value
    _rewrite(path, edited(read(path) or "", key, value, path))
    return value


def unset_value(path: Path, name: str) -> bool:
    """Take one setting out of the file; False when it was not in it.

    Raises as ``set_value`` does.
    """
    key = key_named(name)
    text = read(path)
    if text is None or key.word not in _table(_parse(text, path), path):
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

    before = _parse(text, path)
    _table(before, path)
    try:
        document = tomlkit.parse(text)
        _change(document, key.word, value)
        result = tomlkit.dumps(document)
    except (TOMLKitError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _not_editable(path, key) from error
    if _meaning(_parse(result, path)) != _meaning(_with(before, key.word, value)):
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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(beside, text.encode("utf-8"), target)
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise _not_written(path, error) from error


def _write(path: Path, data: bytes, like: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
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


def _not_written(path: Path, error: OSError) -> StoreError:
    kind: type[StoreError] = StoreError
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        kind = NotWritable
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        kind = NoSpace
    return kind(
        f"the config file {path} cannot be written",
        facts=(str(error),),
        hint="make its folder writable, or set TSUKU_HOME to one that is",
    )
