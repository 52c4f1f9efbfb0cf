"""The table of all settings: name, default, parser and one line of help for each."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from urllib.parse import quote

from tsuku_llm.ground.errors import ConfigError, UsageError, did_you_mean
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.ground.safe_text import redacted, shortened
from tsuku_llm.machine.backends import NAMES, POLICIES, VENDORS, WORDS, backends_of, meaning

Value = str | tuple[str, ...] | None
"""A parsed value; None means that the setting is unset."""

FALLBACKS = ("off", "ask", "auto")
ON_GPU_LOSS = ("warn", "restart", "fallback", "stop")
PLACEMENTS = ("auto", "all", "off")
REFRESHES = ("auto", "always", "required", "never")
ORIGIN = "origin"
"""The word in ``llm.mirror`` for the hosts that are asked without one."""
INSTALLED = "installed"
"""The word in ``llm.release`` for the one that is active."""
PORTABLE = "portable"
"""The order of backends by default."""
COMBINED = "combined"
"""The word in ``llm.prefer`` for two builds in one, before the others."""
SHORT = "short"
"""The word in ``llm.canary`` for the short request without the warm-up."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
"""The names of backends, variants, channels and repositories are lower case."""
_HTTPS = re.compile(
    r"https://(?:[^\s,/?#\\@]+@)?(?:[^\s,/?#\\@:\[\]]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?"
    r"(?:[/?#][^\s,\\]*)?"
)
"""An https URL without spaces or commas: a comma separates mirrors.

After a password that is not escaped, the port would be no number, or a second @ would follow.
"""
_SECONDS = re.compile(r"[0-9]{1,7}", re.ASCII)
_DAYS = re.compile(r"[0-9]{1,5}", re.ASCII)
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
REGISTRY = re.compile(
    r"oci://(?P<host>(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?)"
    rf"/(?P<name>{_PART}(?:/{_PART})*)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?/?"
)
"""The address of a mirror in an OCI registry: ``oci://HOST/NAME`` or ``oci://HOST/NAME:TAG``."""
_SPAN = re.compile(r"(?:[0-9]{1,7}(?:\.[0-9]{1,9})?(?:h|m|s|ms))+", re.ASCII)
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_LONGEST_PROBE = 3600
"""The longest ``llm.probe_timeout`` in seconds: a driver that takes longer never answers."""
_SIZE = re.compile(r"(?P<number>[0-9]{1,15}(?:\.[0-9]{1,9})?) ?(?P<unit>[kmgt]?i?b)?", re.ASCII)
_SHARE = re.compile(r"(?P<number>[0-9]{1,3}(?:\.[0-9]{1,9})?)(?P<percent> ?%)?", re.ASCII)
_FILE = re.compile(r"file:///[^\s,\\]*")
PACKAGE = re.compile(r"pkg:pypi/[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
"""A package that pip fetches from the user's package index, by its name alone."""


@documented(by="name")
class Key(NamedTuple):
    """One setting. ``parse`` takes a TOML value or a string, and raises ``ValueError``.

    ``typed`` converts a parsed value into the type that operations use: a number or a bool.
    """

    name: str
    default: Value
    parse: Callable[[object], Value]
    help: str
    typed: Callable[[Any], Any] = lambda value: value

    @property
    def key(self) -> str:
        """The name inside the table ``[llm]``."""
        return self.name.partition(".")[2]

    @property
    def flag(self) -> str:
        """The option that overrides the setting, in commands that have it."""
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable that overrides the config file."""
        return "TSUKU_LLM_" + self.key.upper()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text in quotes")
    return value.strip()


def _items(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else _text(value).split(",")
    return tuple(_text(item) for item in items)


def parse_name(value: object) -> str:
    """Parse the name of a backend, variant, channel or repository."""
    text = _text(value)
    if not _NAME.fullmatch(text):
        raise ValueError("must be a name of lower-case letters, digits and . _ + -")
    return text


def parse_word(value: object) -> str:
    """Parse a name of others (a backend, a maker, a variant, a release), in any case."""
    return parse_name(_text(value).lower())


def parse_preference(value: object) -> Value:
    """Parse the name of a policy, or backends in the order of preference.

    ``combined`` may stand before them, or alone. A maker of GPUs stands for its own backends; other
    names of backends are understood, too.
    """
    items = [meaning(item) for item in _items(value)]
    before = (COMBINED,) if items[:1] == [COMBINED] else ()
    items = items[len(before) :]
    if (before and not items) or (len(items) == 1 and items[0] in POLICIES):
        return ",".join((*before, *items))
    unknown = [item for item in items if item not in NAMES and item not in VENDORS]
    if unknown or not items:
        choice = f"{' or '.join(POLICIES)}, or a list of {', '.join(NAMES)}"
        known = (COMBINED, *POLICIES, *NAMES, *VENDORS, *WORDS)
        near = did_you_mean(unknown[0], known) if unknown else ""
        raise ValueError(f"must be {choice}" + (f": {near}" if near else ""))
    named = (backends_of(item) if item in VENDORS else (item,) for item in items)
    return (*before, *chain.from_iterable(named))


def _urls(value: object, kinds: tuple[re.Pattern[str], ...], allowed: str) -> tuple[str, ...]:
    places = _items(value)
    for place in places:
        if not (any(kind.fullmatch(place) for kind in kinds) and place.isprintable()):
            raise ValueError(f"must be https: or file: URLs{allowed}{_right_form(place)}")
    return places


def _right_form(place: str) -> str:
    """Say how a folder, or a URL with a character that has to be escaped, is written."""
    for kind in (PurePosixPath, PureWindowsPath):
        if kind(place).is_absolute():
            return f"; write this folder as {kind(place).as_uri()}"
    if place.startswith("file:///"):
        return f"; write this folder as {quote(place, safe=':/%')}"
    if "@" in place:
        return "; in a user or a password write %40 for @, %3A for :, %2F for / and %25 for %"
    return ""


def parse_places(value: object) -> tuple[str, ...]:
    """Parse the places at which a repository is published, in the order of asking."""
    kinds = (_HTTPS, _FILE, PACKAGE, REGISTRY)
    return _urls(value, kinds, ", oci://HOST/NAME or pkg:pypi/NAME, with commas between them")


def parse_mirrors(value: object) -> tuple[str, ...]:
    """Parse the places that stand for all hosts, in the order of asking; ``origin`` is a host."""
    allowed = " or oci://HOST/NAME, with commas between them; "
    allowed += f"{ORIGIN} stands for the hosts that the metadata names"
    return _urls(value, (_HTTPS, _FILE, REGISTRY, re.compile(ORIGIN)), allowed)


_SWITCH = {
    **dict.fromkeys(("true", "yes", "on", "1"), "true"),
    **dict.fromkeys(("false", "no", "off", "0"), "false"),
}


def parse_switch(value: object) -> str:
    """Parse true or false, or another usual word for them, in any case; return true or false."""
    # bool is a subclass of int: both are written as a text here.
    text = (str(value) if isinstance(value, int) else _text(value)).lower()
    if text not in _SWITCH:
        raise ValueError("must be true or false (or yes, no, on, off, 1, 0)")
    return _SWITCH[text]


def parse_canary(value: object) -> str:
    """Parse a switch, or the word for the short request alone."""
    if isinstance(value, str) and value.strip().lower() == SHORT:
        return SHORT
    try:
        return parse_switch(value)
    except ValueError:
        raise ValueError(f"must be true, {SHORT} or false") from None


def parse_duration(value: object) -> str:
    """Parse a duration in Go's notation (tsuku's file has "5m"), or a number of seconds."""
    # bool is a subclass of int: ``type`` keeps true and false out.
    text = str(value).strip() if type(value) is int else _text(value)
    if not (_SECONDS.fullmatch(text) or _SPAN.fullmatch(text)):
        raise ValueError("must be a span of time such as 90s, 5m or 1h30m, or 0")
    return text


def parse_probe_timeout(value: object) -> str:
    """Parse the time that a driver may take: a duration of at least a second, at most an hour."""
    text = parse_duration(value)
    if not 1 <= seconds_of(text) <= _LONGEST_PROBE:
        raise ValueError("must be a span of time from 1s to 1h")
    return text


def seconds_of(duration: str) -> int:
    """Return the seconds of a parsed duration, rounded up, so that only zero gives 0."""
    if duration.isdecimal():
        return int(duration)
    parts = re.findall(r"([0-9.]+)([a-z]+)", duration)
    return math.ceil(sum(float(number) * _UNITS[unit] for number, unit in parts))


def whole_number(unit: str, form: re.Pattern[str]) -> Callable[[object], str]:
    """Make the parser for a number of these units, of which 0 is allowed."""

    def parse(value: object) -> str:
        # bool is a subclass of int: ``type`` keeps true and false out.
        text = str(value) if type(value) is int else _text(value)
        if not form.fullmatch(text):
            raise ValueError(f"must be a whole number of {unit}")
        return text

    return parse


def parse_folders(value: object) -> str:
    """Parse folders as in ``PATH``: absolute, with the system's separator between them."""
    items = value if isinstance(value, list) else _text(value).split(os.pathsep)
    folders = [folder for folder in map(_text, items) if folder]
    for folder in folders:
        # "~" is the user's home, which a service may have elsewhere.
        if not Path(folder).is_absolute() and not folder.startswith("~"):
            raise ValueError(f"must be absolute folders, with {os.pathsep} between them")
        if not folder.isprintable():
            raise ValueError("must be folders without control characters in their names")
        if os.pathsep in folder:
            raise ValueError(f"must be folders without {os.pathsep} in their names")
    return os.pathsep.join(folders)


def folders_of(text: str) -> tuple[str, ...]:
    """Return the folders in a parsed list."""
    return tuple(filter(None, text.split(os.pathsep)))


def parse_share(value: object) -> str:
    """Parse a share: a number from 0 to 1, or a percentage."""
    text = _text(value)
    found = _SHARE.fullmatch(text)
    if found is None or float(found["number"]) > (100 if found["percent"] else 1):
        raise ValueError("must be a number from 0 to 1, or a percentage such as 50%")
    return text


def share_of(text: str) -> float:
    """Return a parsed share as a number from 0 to 1."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def parse_size(value: object) -> str:
    """Parse a size in bytes: a number, or one with a unit such as 200MB or 1.5 GiB."""
    text = str(value).strip() if type(value) is int else _text(value)
    found = _SIZE.fullmatch(text.lower())
    if found is None or found["unit"] == "ib":
        raise ValueError("must be a size such as 200MB or 1.5GB")
    return text


def bytes_of(text: str | None) -> int | None:
    """Return a parsed size as a number of bytes; None stays None."""
    found = _SIZE.fullmatch(text.lower()) if text is not None else None
    if found is None:
        return None
    unit = found["unit"] or "b"
    base = 1024 if "i" in unit else 1000
    scale: int = base ** "bkmgt".index(unit[0])
    return round(float(found["number"]) * scale)


def one_of(values: tuple[str, ...]) -> Callable[[object], str]:
    """Make the parser for a setting that takes one of a few words, in any case."""

    def parse(value: object) -> str:
        text = _text(value).lower()
        if text not in values:
            near = did_you_mean(text, values)
            allowed = f"must be {', '.join(values[:-1])} or {values[-1]}"
            raise ValueError(allowed + (f": {near}" if near else ""))
        return text

    return parse


KEYS: tuple[Key, ...] = (
    Key(
        "llm.backend",
        "auto",
        parse_word,
        "the backend: auto, gpu (any GPU, else an error), cpu, cuda, vulkan or another, the maker "
        "of a GPU (nvidia, amd, intel), or a variant's name",
    ),
    Key(
        "llm.prefer",
        PORTABLE,
        parse_preference,
        "which backend to prefer among equal GPUs: portable, native, or a list such as "
        "cuda,vulkan; combined before it installs a CUDA or ROCm build and the Vulkan build of a "
        "release as one where that uses a card of another maker, too",
    ),
    Key(
        "llm.fallback",
        "ask",
        one_of(FALLBACKS),
        "what serve does if a backend fails: off, ask (on a terminal), auto",
    ),
    Key("llm.channel", "stable", parse_name, "the channel: stable, nightly or index"),
    Key(
        "llm.release",
        None,
        parse_word,
        "the release to install and keep, such as b11429 or v0.6.0; installed: the one that is "
        "active; unset: the newest that fits",
    ),
    Key(
        "llm.min_age",
        "0",
        whole_number("days", _DAYS),
        "the age in days from which install and update take a release",
        int,
    ),
    Key("llm.repository", "official", parse_name, "the signed repository to use"),
    Key(
        "llm.repository_url",
        (),
        parse_places,
        "other places for the metadata of the official repository, asked in this order: https: or "
        "file: URLs, oci://HOST/NAME, or pkg:pypi/NAME for a package that pip fetches",
    ),
    Key(
        "llm.mirror",
        (),
        parse_mirrors,
        "where metadata and archives come from instead of their own hosts, in this order: https: "
        "or file: URLs, oci://HOST/NAME for a registry, and origin for their own hosts",
    ),
    Key(
        "llm.ask_above",
        "200MB",
        parse_size,
        "the size of a download above which the program asks first, on a terminal",
        bytes_of,
    ),
    Key(
        "llm.max_download",
        None,
        parse_size,
        "the most that the program downloads for one build, also after a yes; unset: no limit",
        bytes_of,
    ),
    Key(
        "llm.lock_timeout",
        "1800",
        whole_number("seconds", _SECONDS),
        "seconds to wait for another tsuku-llm that is running; 0: do not wait",
        float,
    ),
    Key(
        "llm.probe_timeout",
        "20s",
        parse_probe_timeout,
        "the time that each driver may take to answer when the GPUs are detected",
        seconds_of,
    ),
    Key(
        "llm.refresh",
        "auto",
        one_of(REFRESHES),
        "when install and bench ask for newer metadata: auto (once a day), always, required "
        "(always; then install, bench, serve and run refuse metadata that is not fresh), never",
    ),
    Key(
        "llm.update_check",
        "true",
        parse_switch,
        "whether serve looks for an update once a day, and reports it",
        lambda text: text == "true",
    ),
    Key(
        "llm.canary",
        "true",
        parse_canary,
        "whether serve sends the server one short request, to see if the GPU works, and has the "
        "GPU's drivers compile their code before it counts as ready: true, short (the request "
        "alone), false",
    ),
    Key(
        "llm.on_gpu_loss",
        "warn",
        one_of(ON_GPU_LOSS),
        "what serve does if the GPU is lost or the server hangs: warn, restart, fallback, stop",
    ),
    Key(
        "llm.placement",
        "auto",
        one_of(PLACEMENTS),
        "on which GPUs serve puts a model: auto (as few as hold it), all, off (the server chooses)",
    ),
    Key(
        "llm.idle_timeout",
        "0",
        parse_duration,
        "the time without a request after which a server in the background ends, such as 10m; "
        "0: never",
        seconds_of,
    ),
    Key(
        "llm.model_path",
        "",
        parse_folders,
        "more folders in which models and serve -m look for GGUF files, separated as in PATH",
        folders_of,
    ),
)

PREFIX = "llm."
_BY_NAME = {key.name: key for key in KEYS}


def near_key(name: str) -> str:
    """Return the hint for a name that no setting has; "" if none is similar."""
    # Users also type the name as it stands in the file, or with a hyphen as in the flag.
    return did_you_mean(name.replace("-", "_"), (key.key for key in KEYS), before=PREFIX)


def key_named(name: str) -> Key:
    """Return the key of that name, with or without ``llm.``.

    Raises ``UsageError``, which lists the existing keys.
    """
    if found := _BY_NAME.get(name) or _BY_NAME.get(f"{PREFIX}{name}"):
        return found
    raise UsageError(
        f"there is no setting {shortened(name, 80)!r}",
        facts=(f"settings: {', '.join(_BY_NAME)}",),
        hint=near_key(name)
        or f"see: {TSUKU} config list; the server's own are arguments: {TSUKU} serve -- -c 8192",
    )


def text_of(value: Value) -> str:
    """Return a value as the user would type it; an unset value is the empty string."""
    if value is None:
        return ""
    return value if isinstance(value, str) else ",".join(value)


def checked(key: Key, raw: object, source: str, way_out: str) -> Value:
    """Parse the value that ``source`` gives for a setting.

    An empty text is no value in any source: it may be a variable of a script that was never set.
    ``way_out`` says how to give none. Raises ``ConfigError``, which names the source; its text
    holds no credentials.
    """
    shown = (f"{source}: {shortened(redacted(repr(raw)), 120)}",)
    if isinstance(raw, str) and not raw.strip():
        raise ConfigError(
            f"{key.name} must not be empty", facts=shown, hint=f"to give no value: {way_out}"
        )
    try:
        # The parsers know only the value; the name of the key and the source are added here.
        return key.parse(raw)
    except ValueError as error:
        raise ConfigError(
            f"{key.name} {error}", facts=shown, hint=f"{key.name}: {key.help}"
        ) from error
