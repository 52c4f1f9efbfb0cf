"""The values that exist on this machine, to complete a word in a shell.

Nothing here writes or asks a network; what cannot be read or verified gives no values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from tsuku_llm.catalog.embedded import REPOSITORY
from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.loading import load as load_catalog
from tsuku_llm.catalog.metadata_status import configured
from tsuku_llm.catalog.repositories import repository
from tsuku_llm.cli.terminal.text import size
from tsuku_llm.config.keys import (
    COMBINED,
    FALLBACKS,
    INSTALLED,
    KEYS,
    ON_GPU_LOSS,
    PLACEMENTS,
    REFRESHES,
    SHORT,
    parse_switch,
    text_of,
)
from tsuku_llm.config.paths import Paths
from tsuku_llm.config.settings import load
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.instances.folder import Instances
from tsuku_llm.machine.backends import NAMES, POLICIES, REQUESTS, VENDORS
from tsuku_llm.model_caches.finding import local_models
from tsuku_llm.steps.choosing.which import tools_of
from tsuku_llm.store.reader import StoreReader
from tsuku_llm.store.records.installed import Installed

Values = Iterable[tuple[str, str]]
"""Values, each with what it means; that may be empty."""

_WORDS = {"auto": "the best that fits", "gpu": "any GPU, else an error", "cpu": "the processor"}


def complete(kind: str, context: click.Context, typed: str) -> list[CompletionItem]:
    """Return the values of a kind, or of a setting, that begin with what was typed."""
    found: dict[str, str] = {}
    known = _KINDS[kind](context) if kind in _KINDS else _of_setting(kind, context)
    for value, meaning in known:
        found.setdefault(value, meaning)
    return [
        CompletionItem(value, help=meaning or None)
        for value, meaning in found.items()
        if value.startswith(typed) and _is_word(value)
    ]


def _is_word(name: str) -> bool:
    """Tell whether a shell can be offered a name, which may come from elsewhere.

    A line break would end the answer's line, and a name that begins with a dash be an option.
    """
    return name != "" and name.isprintable() and not name.startswith("-")


def complete_model(typed: str) -> list[CompletionItem]:
    """Return the names of models that begin with what was typed, and the files that do."""
    folders: tuple[str, ...] = ()
    with suppress(TsukuError):
        folders = load(_paths(), os.environ, looking=True).settings.model_path
    named = [
        CompletionItem(model.name, help=f"{size(model.size)}, {model.source}")
        for model in local_models(os.environ, folders).models
        if model.name.startswith(typed) and _is_word(model.name)
    ]
    if not named:
        return [CompletionItem(typed, type="file")]
    # A shell would complete names or files, not both: bash asks for files only if there is no name.
    return [*named, *map(CompletionItem, _model_files(typed))]


def _model_files(typed: str) -> Iterator[str]:
    """Yield the GGUF files and the folders whose path begins with what was typed."""
    before, slash, begin = typed.rpartition("/")
    with suppress(OSError):
        for entry in sorted(os.scandir(before + slash or "."), key=lambda each: each.name):
            hidden = entry.name.startswith(".") and not begin
            # With a dash first it would be an option.
            dot = "./" if entry.name.startswith("-") and not typed else ""
            path = dot + before + slash + entry.name
            if hidden or not entry.name.startswith(begin) or not path.isprintable():
                continue
            if entry.is_dir():
                yield f"{path}/"
            elif entry.name.lower().endswith(".gguf"):
                yield path


def _of_setting(name: str, context: click.Context) -> Values:
    """Yield the values that a setting can have; its default if it takes any text."""
    if name in _OF_SETTINGS:
        return _OF_SETTINGS[name](context)
    key = next((key for key in KEYS if key.name == name), None)
    if key is None:
        return ()
    if key.parse is parse_switch:
        return (("true", ""), ("false", ""))
    words = _CHOICES.get(name, ())
    return [(word, "") for word in words] or [(text_of(key.default), "the default")]


def _backends(context: click.Context) -> Values:
    for word in REQUESTS:
        yield word, _WORDS.get(word, f"a GPU of {word}" if word in VENDORS else "")
    catalog = _catalog(context)
    with suppress(TsukuError):
        for _, release in catalog.readable(catalog.entries, lambda _: None) if catalog else ():
            for platform in release.platforms.values():
                yield from ((variant.name, "") for variant in platform.variants)
    for installed in _installed(context):
        yield installed.receipt.variant, "installed"


def _channels(context: click.Context) -> Values:
    catalog = _catalog(context)
    return ((channel, "") for channel in (catalog.channels if catalog else ()))


def _releases(context: click.Context) -> Values:
    catalog = _catalog(context)
    for each in catalog.entries if catalog else ():
        channels = ", ".join(each.channels)
        yield each.release, f"v{each.version}, {channels}" if each.version else channels
        if each.version:
            yield f"v{each.version}", f"{each.release}, {channels}"
    for installed in _installed(context):
        yield installed.receipt.release, "installed"


def _kept_releases(context: click.Context) -> Values:
    yield INSTALLED, "the one that is active"
    yield from _releases(context)


def _repositories(context: click.Context) -> Values:
    del context
    with suppress(TsukuError):
        for name in configured(_paths().data):
            yield name, ""


def _versions(context: click.Context) -> Values:
    found = tuple(_installed(context))
    for each in found:
        yield each.id, f"{each.receipt.variant} of {each.receipt.release}"
    # A release or variant names a version if no other one has it.
    for names in ([e.receipt.variant for e in found], [e.receipt.release for e in found]):
        for name in names:
            if names.count(name) == 1:
                yield name, ""


def _servers(context: click.Context) -> Values:
    del context
    with suppress(TsukuError):
        instances = Instances(_paths().state)
        for record in instances.all():
            yield record.name, f"at {record.address}"
        for name in instances.damaged():
            yield name, "its record is damaged"


def _tools(context: click.Context) -> Values:
    del context
    with suppress(TsukuError):
        active = StoreReader(_paths().data).active()
        if active:
            for name in tools_of(active.receipt):
                yield name, ""


def _commands(context: click.Context) -> Values:
    root = context.find_root()
    group = root.command
    for word in context.params.get("command") or ():
        below = group.get_command(root, word) if isinstance(group, click.Group) else None
        if below is None:
            return
        group = below
    if isinstance(group, click.Group):
        for name in group.list_commands(root):
            yield name, ""


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "llm.canary": ("true", SHORT, "false"),
    "llm.fallback": FALLBACKS,
    "llm.on_gpu_loss": ON_GPU_LOSS,
    "llm.placement": PLACEMENTS,
    "llm.refresh": REFRESHES,
}

_OF_SETTINGS: Mapping[str, Callable[[click.Context], Values]] = {
    "llm.backend": _backends,
    "llm.prefer": lambda _: ((word, "") for word in (COMBINED, *POLICIES, *NAMES)),
    "llm.channel": _channels,
    "llm.release": _kept_releases,
    "llm.repository": _repositories,
}

_KINDS: Mapping[str, Callable[[click.Context], Values]] = {
    "added repository": lambda context: (
        each for each in _repositories(context) if each[0] != REPOSITORY
    ),
    "command": _commands,
    "key": lambda _: ((key.name, key.help) for key in KEYS),
    "release": _releases,
    "repository": _repositories,
    "server": _servers,
    "tool": _tools,
    "value": lambda context: _of_setting(str(context.params.get("key")), context),
    "version": _versions,
}


def _paths() -> Paths:
    """Return where this user's files are. Raises ``ConfigError``."""
    return Paths.from_environ(os.environ)


def _catalog(context: click.Context) -> Catalog | None:
    """Return what the repository in force offers; the official one if the settings are broken."""
    name = context.params.get("repository")
    with suppress(TsukuError):
        name = name or load(_paths(), os.environ, looking=True).settings.repository
    with suppress(TsukuError):
        data = _paths().data
        return load_catalog(repository(data, name or REPOSITORY), data)
    return None


def _installed(context: click.Context) -> Iterator[Installed]:
    del context
    with suppress(TsukuError):
        yield from StoreReader(_paths().data).installed()
