"""The commands ``config get|set|unset|list|path``."""

from __future__ import annotations

import os

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import CommandResult
from tsuku_llm.cli.command import Group
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import settings as render
from tsuku_llm.config.keys import key_named, text_of
from tsuku_llm.config.paths import Paths
from tsuku_llm.config.settings import load
from tsuku_llm.safe_text import redacted


@click.group("config", cls=Group)
def config_command() -> None:
    """Read and change settings."""


@config_command.command("get")
@click.argument("key", shell_complete=options.completed_by("key"))
@click.pass_obj
def get(console: Console, key: str) -> CommandResult:
    """Print a setting's value in force."""
    name = key_named(key).name
    configuration = load(_paths(), os.environ, looking=True)
    for warning in configuration.warnings:
        console.note(f"warning: {warning}")
    setting = configuration.setting(name)
    # ``get`` prints the credentials of a URL as well: the user asked for this value.
    data = {**render.setting_data(setting), "value": setting.value}
    return CommandResult(data, (text_of(setting.value),))


@config_command.command("set")
@click.argument("key", shell_complete=options.completed_by("key"))
@click.argument("value", shell_complete=options.completed_by("value"))
@click.pass_obj
def set_(console: Console, key: str, value: str) -> CommandResult:
    """Write a setting into the config file; comments are kept."""
    from tsuku_llm.config.editing import set_value

    paths = _paths()
    # Before the file is changed.
    _check_exists(console, key, value)
    set_value(paths.config_file, key, value)
    return _changed(paths, key)


@config_command.command("unset")
@click.argument("key", shell_complete=options.completed_by("key"))
def unset(key: str) -> CommandResult:
    """Remove a setting from the config file."""
    from tsuku_llm.config.editing import unset_value

    paths = _paths()
    unset_value(paths.config_file, key)
    return _changed(paths, key)


@config_command.command("list")
def list_() -> CommandResult:
    """List every setting with its value in force and the value's source."""
    # looking: another user's file is left out with a warning instead of an error.
    configuration = load(_paths(), os.environ, looking=True)
    return CommandResult(render.data(configuration), render.lines(configuration))


@config_command.command("path")
def path() -> CommandResult:
    """Print the path of the config file, even if it does not exist."""
    paths = _paths()
    return CommandResult({"config_file": paths.config_file}, (str(paths.config_file),), exact=True)


def _paths() -> Paths:
    return Paths.from_environ(os.environ)


def _check_exists(console: Console, key: str, value: str) -> None:
    """Refuse a backend that no release has; only for ``llm.backend`` this loads the manifest."""
    if key == "llm.backend":
        from tsuku_llm.cli.session import open_session
        from tsuku_llm.operations.choice import check_backend

        with open_session(console) as session:
            check_backend(session, value)


def _changed(paths: Paths, key: str) -> CommandResult:
    """Return the value in force now: the environment may override what was written."""
    setting = load(paths, os.environ).setting(key)
    shown = render.setting_data(setting)
    line = f"{key} = {redacted(text_of(setting.value)) or '(none)'}"
    return CommandResult(shown, (f"{line} ({setting.source})",))
