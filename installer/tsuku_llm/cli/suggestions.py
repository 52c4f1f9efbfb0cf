"""What a mistyped or foreign command or option may mean here; imported for an error."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

import click

from tsuku_llm.ground.own_name import typed
from tsuku_llm.machine.backends import NAMES, REQUESTS, meaning

_SAME_COMMANDS = (
    "install add download pull fetch",
    "uninstall remove rm delete del erase",
    "unset remove rm delete del reset",
    "remove rm delete del uninstall",
    "list ls show dir versions installed",
    "update upgrade up outdated",
    "refresh update sync fetch pull",
    "serve start server run-server launch llama-server chat",
    "status ps top servers",
    "logs log tail journal",
    "stop kill down halt end",
    "use switch activate select default",
    "rollback undo revert downgrade",
    "prune clean cleanup gc autoremove",
    "verify check audit validate",
    "doctor diagnose troubleshoot check",
    "explain why",
    "probe info hardware gpu gpus devices system",
    "backends variants",
    "which where path",
    "bench benchmark",
    "models model gguf list-models",
    "config settings configure options",
    "repository repositories repo remote tap mirror",
    "help man usage",
    "version about",
    "self-update selfupdate self-upgrade upgrade-self",
)
"""A command, then what it is called elsewhere. A group takes the lines of its own commands."""

_SAME_OPTIONS = (
    "--detach --background --daemon --bg -d",
    "--yes --assume-yes --no-confirm -y",
    "--dry-run --dry --simulate --whatif -n",
    "--release --version --tag",
    "--backend --variant --gpu --device --accelerator",
    "--version -V",
    "--follow --tail",
    "--force --reinstall -f",
    "--offline --no-network",
    "--all -a",
    "--available --remote",
    "--name -n",
    "--model -m",
    "--exec --foreground",
    "--check --outdated",
    "--color --colour",
    "--quiet --silent -s",
    "--verbose --debug --details",
)
"""An option, then what it is called elsewhere. A command takes the lines of its own options."""

_CUTOFF = 0.7
"""The least similarity of a word: below it a suggestion is more often wrong than right."""


def command_for(word: str, context: click.Context) -> str | None:
    """Return the command line that a word may mean in a group; None if it is like none.

    It is a command of the group with a similar name or the same meaning, or one below it.
    """
    group = context.command
    names = tuple(_visible(group, context))
    # A word means the first that claims it: a name, then another word for it, then a name below it.
    meanings = {name: name for name in names}
    for name, others in _lines(_SAME_COMMANDS):
        if name in names:
            for other in others:
                meanings.setdefault(other, name)
    for name in names:
        for below in _visible(_command(group, context, name), context):
            meanings.setdefault(below, f"{name} {below}")
    found = _nearest(word.lower(), meanings)
    return f"{typed(context.command_path)} {found}" if found else None


def option_for(word: str, context: click.Context, *, similar: bool) -> str | None:
    """Return the option of a command that an unknown one may mean; None if it is like none.

    Without ``similar`` it must have the same meaning.
    """
    own = _options(context.command, context)
    meanings = {name: name for name in own}
    for name, others in _lines(_SAME_OPTIONS):
        if name in own:
            for other in others:
                meanings.setdefault(other, name)
    # Short options are all similar.
    if word in meanings or not similar or not word.startswith("--"):
        return meanings.get(word)
    # Without the dashes, which would make every two options similar.
    long = {name[2:]: option for name, option in meanings.items() if name.startswith("--")}
    return _nearest(word[2:].lower(), long)


_CHANNELS = ("stable", "nightly", "index")
_RELEASE = re.compile(r"[bv]?\d[\w.+-]*")

_INSTEAD = {
    "update": ("install", ""),
    "backends": ("explain", ""),
    "rollback": ("use", "{}"),
    "models": ("serve", "-m {}"),
}
"""Commands without arguments: the one that takes the word, and how; "" is as an option."""


def call_with(words: Sequence[str], context: click.Context) -> str | None:
    """Return the call in which words have a place that they lack in this command; None if none has.

    A word becomes the option of that name, or the value of the option that takes such a word.
    """
    name = context.command.name
    if name == "set":  # config set KEY VALUE
        blank = "," if context.params.get("key") == "llm.prefer" else " "
        value = blank.join([str(context.params.get("value")), *words])
        return f"{typed(context.command_path)} {context.params.get('key')} {shlex.quote(value)}"
    if found := _as_options(words, context.command, context):
        return f"{typed(context.command_path)} {found}"
    other, form = _INSTEAD.get(name or "", ("", ""))
    if not other:
        return None
    root = context.find_root()
    if form:
        found = form.format(shlex.quote(words[0])) if len(words) == 1 else None
    else:
        found = _as_options(words, _command(root.command, root, other), root)
    return f"{typed(root.command_path)} {other} {found}" if found else None


def _as_options(words: Sequence[str], command: click.Command, context: click.Context) -> str | None:
    """Return words as options of a command; None if one of them has no meaning there."""
    own = {
        name: parameter
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and not parameter.hidden
        for name in parameter.opts
    }
    found: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        option = f"--{word.lower().lstrip('-')}"
        if option in own and own[option].is_flag:
            found.append(option)
        elif option in own and left:
            found += [option, left.pop(0)]
        elif value_of := next((each for each in _options_for(word) if each in own), None):
            found += [value_of, word]
        else:
            return None
    return shlex.join(found)


def _options_for(word: str) -> Iterator[str]:
    """Yield the options that take a word, by its form."""
    if meaning(word) in REQUESTS or word.lower().partition("-")[0] in NAMES:
        yield "--backend"
    if word.lower() in _CHANNELS:
        yield "--channel"
    if word.isdecimal():
        yield "--keep"
    if _RELEASE.fullmatch(word):
        yield "--release"
    yield "-m"  # a file or a name: only commands that have no better meaning take it


def owners_of(option: str, context: click.Context) -> tuple[str, ...]:
    """List the other commands that have an option, as they are called."""
    root = context.find_root()
    return tuple(
        path
        for path, command in _all(root.command, root, root.command_path)
        if command is not context.command and option in _options(command, context)
    )


def _lines(table: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    for line in table:
        name, *others = line.split()
        yield name, others


def _nearest(word: str, meanings: Mapping[str, str]) -> str | None:
    near = get_close_matches(word, meanings, 1, _CUTOFF)
    return meanings[near[0]] if near else None


def _command(group: click.Command, context: click.Context, name: str) -> click.Command:
    assert isinstance(group, click.Group)
    command = group.get_command(context, name)
    assert command is not None
    return command


def _visible(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the names of a group's commands, without hidden ones; none for any other command."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if not _command(command, context, name).hidden:
                yield name


def _all(
    command: click.Command, context: click.Context, path: str
) -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is not a group, with the words that call it."""
    if not isinstance(command, click.Group):
        yield path, command
    for name in _visible(command, context):
        yield from _all(_command(command, context, name), context, f"{path} {name}")


def _options(command: click.Command, context: click.Context) -> frozenset[str]:
    """Return the names of a command's options, without the hidden ones."""
    return frozenset(
        name
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and not parameter.hidden
        for name in (*parameter.opts, *parameter.secondary_opts)
    )
