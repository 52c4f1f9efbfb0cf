"""The commands ``config get|set|unset|list|path``."""

from __future__ import annotations

import os
import re

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command, Group
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.cli.terminal.text import table
from tsuku_llm.config.keys import Key, key_named, text_of
from tsuku_llm.config.paths import Paths
from tsuku_llm.config.settings import NAMING, Configuration, Setting, load


class _TakesNumbers(Command):
    """A command whose last argument may be a negative number: it is a value, and no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move negative numbers behind ``--``, where nothing is an option."""
        numbers = [word for word in args if re.match(r"-[0-9.]", word)]
        if numbers and "--" not in args:
            args = [*(word for word in args if word not in numbers), "--", *numbers]
        return super().parse_args(ctx, args)


@click.group("config", cls=Group)
def config_command() -> None:
    """Read and change settings."""


@config_command.command("get")
@click.argument("key", shell_complete=options.completed_by("key"))
@click.pass_obj
def get(console: Console, key: str) -> CommandResult:
    """Print a setting's value in force."""
    name = key_named(key).name
    configuration = _configuration(console)
    setting = configuration.setting(name)
    # ``get`` prints the credentials of a URL as well: the user asked for this value.
    data = setting.shown._replace(value=setting.value)
    return CommandResult(data, (text_of(setting.value),))


@config_command.command("set", cls=_TakesNumbers)
@click.argument("key", shell_complete=options.completed_by("key"))
@click.argument("value", shell_complete=options.completed_by("value"))
@click.pass_obj
def set_(console: Console, key: str, value: str) -> CommandResult:
    """Write a setting into the config file; comments are kept."""
    from tsuku_llm.config.editing import checked_value, set_value

    paths, setting = _paths(), key_named(key)
    parsed = checked_value(setting, value)
    # Before the file is changed. Wrong values in it are no reason to refuse a right one.
    if setting.key in NAMING and isinstance(parsed, str):
        from tsuku_llm.cli.session import open_session
        from tsuku_llm.steps.choosing.names import check_exists

        with open_session(console, looking=True, tolerant=True, quiet=True) as session:
            check_exists(session, setting.key, parsed)
    set_value(paths.config_file, setting, parsed)
    return _changed(console, setting)


@config_command.command("unset")
@click.argument("key", shell_complete=options.completed_by("key"))
@click.pass_obj
def unset(console: Console, key: str) -> CommandResult:
    """Remove a setting from the config file."""
    from tsuku_llm.config.editing import unset_value

    known = unset_value(_paths().config_file, key)
    if known is None:
        return CommandResult({"key": key}, (f"removed {key}",))
    return _changed(console, known)


@config_command.command("list")
@click.pass_obj
def list_(console: Console) -> CommandResult:
    """List every setting with its value in force and the value's source."""
    configuration = _configuration(console)
    shown = [setting.shown for setting in configuration.entries]
    rows = [(each.key.name, _value(each), f"{_mark(each)}{each.source}") for each in shown]
    data = {"settings": shown, "warnings": configuration.warnings}
    return CommandResult(data, table(rows, indent=0))


@config_command.command("path")
def path() -> CommandResult:
    """Print the path of the config file, even if it does not exist."""
    paths = _paths()
    return CommandResult({"config_file": paths.config_file}, (str(paths.config_file),), exact=True)


def _paths() -> Paths:
    return Paths.from_environ(os.environ)


def _configuration(console: Console) -> Configuration:
    """Return all settings, and print what is wrong with them; this never stops the command."""
    # looking: another user's file is left out with a warning instead of an error.
    configuration = load(_paths(), os.environ, looking=True)
    # A name may be wrong as well. Only then the signed metadata has to be read.
    if any(entry.chosen for entry in configuration.entries if entry.key.key in NAMING):
        from tsuku_llm.cli.session import open_session
        from tsuku_llm.steps.choosing.names import unknown_names

        with open_session(console, looking=True, tolerant=True, quiet=True) as session:
            configuration = configuration.with_problems(unknown_names(session))
    for warning in configuration.told:
        console.note(f"warning: {warning}")
    return configuration


def _changed(console: Console, key: Key) -> CommandResult:
    """Return the value in force now: the environment may override what was written."""
    shown = _configuration(console).setting(key.name).shown
    line = f"{shown.key.name} = {_value(shown)} ({_mark(shown)}{shown.source})"
    return CommandResult(shown, (line,))


def _value(shown: Setting) -> str:
    return text_of(shown.value) or "(none)"


def _mark(shown: Setting) -> str:
    """Return what stands before the source of a wrong value."""
    return "" if shown.written is None else f"instead of {shown.written!r}, which is wrong: "
