"""The commands ``config get|set|unset|list|path``."""

from __future__ import annotations

import os

import click

from tsuku_llm import config
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Group
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import settings as render


@click.group("config", cls=Group)
def config_command() -> None:
    """Read and change settings."""


@config_command.command("get")
@click.argument("key")
@click.pass_obj
def get(console: Console, key: str) -> Answer:
    """Print the value of a setting that is in force."""
    name = config.key_named(key).name
    settings = config.load(_paths(), os.environ, looking=True)
    for warning in settings.warnings:
        console.note(f"warning: {warning}")
    setting = settings.setting(name)
    # ``get`` prints the credentials of a URL as well: the user asked for this value.
    data = {**render.setting_data(setting), "value": setting.value}
    return Answer(data, (config.text_of(setting.value),))


@config_command.command("set")
@click.argument("key")
@click.argument("value")
@click.pass_obj
def set_(console: Console, key: str, value: str) -> Answer:
    """Write a setting into the config file; comments in it stay."""
    from tsuku_llm.config.editing import set_value

    paths = _paths()
    # Before the file is changed.
    _check_exists(console, key, value)
    set_value(paths.config_file, key, value)
    return _changed(paths, key)


@config_command.command("unset")
@click.argument("key")
def unset(key: str) -> Answer:
    """Take a setting out of the config file."""
    from tsuku_llm.config.editing import unset_value

    paths = _paths()
    unset_value(paths.config_file, key)
    return _changed(paths, key)


@config_command.command("list")
def list_() -> Answer:
    """List every setting, its value in force, and where that comes from."""
    # looking: another user's file is left out with a warning instead of an error.
    settings = config.load(_paths(), os.environ, looking=True)
    return Answer(render.data(settings), render.lines(settings))


@config_command.command("path")
def path() -> Answer:
    """Print the path of the config file, be it there or not."""
    paths = _paths()
    return Answer({"config_file": paths.config_file}, (str(paths.config_file),), exact=True)


def _paths() -> config.Paths:
    return config.Paths.from_environ(os.environ)


def _check_exists(console: Console, key: str, value: str) -> None:
    """Refuse a backend that no release has; only for ``llm.backend`` this loads the manifest."""
    if key == "llm.backend":
        from tsuku_llm.cli.session import open_session
        from tsuku_llm.operations.choice import check_backend

        with open_session(console) as session:
            check_backend(session, value)


def _changed(paths: config.Paths, key: str) -> Answer:
    """Return the value in force now: the environment may override what was written."""
    setting = config.load(paths, os.environ).setting(key)
    shown = render.setting_data(setting)
    line = f"{key} = {config.redacted(config.text_of(setting.value)) or '(none)'}"
    return Answer(shown, (f"{line} ({setting.source})",))
