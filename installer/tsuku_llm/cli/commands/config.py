"""The commands ``config get|set|unset|list|path``."""

from __future__ import annotations

import os

import click

from tsuku_llm import config
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Group
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import settings as render
from tsuku_llm.safe_text import redacted


@click.group("config", cls=Group)
def command() -> None:
    """Read and change settings."""


@command.command("get")
@click.argument("key")
@click.pass_obj
def get(console: Console, key: str) -> Answer:
    """Print a setting's value in force."""
    name = config.key_named(key).name
    settings = config.load(_paths(), os.environ, looking=True)
    for warning in settings.warnings:
        console.note(f"warning: {warning}")
    setting = settings.setting(name)
    # ``get`` prints the credentials of a URL as well: the user asked for this value.
    data = {**render.setting_data(setting), "value": setting.value}
    return Answer(data, (config.text_of(setting.value),))


@command.command("set")
@click.argument("key")
@click.argument("value")
@click.pass_obj
def set_(console: Console, key: str, value: str) -> Answer:
    """Write a setting into the config file; comments are kept."""
    from tsuku_llm.config.editing import set_value  # noqa: PLC0415

    paths = _paths()
    # Before the file is changed.
    _check_exists(console, key, value)
    set_value(paths.config_file, key, value)
    return _changed(paths, key)


@command.command("unset")
@click.argument("key")
def unset(key: str) -> Answer:
    """Remove a setting from the config file."""
    from tsuku_llm.config.editing import unset_value  # noqa: PLC0415

    paths = _paths()
    unset_value(paths.config_file, key)
    return _changed(paths, key)


@command.command("list")
def list_() -> Answer:
    """List every setting with its value in force and the value's source."""
    # looking: another user's file is left out with a warning instead of an error.
    settings = config.load(_paths(), os.environ, looking=True)
    return Answer(render.data(settings), render.lines(settings))


@command.command("path")
def path() -> Answer:
    """Print the path of the config file, even if it does not exist."""
    paths = _paths()
    return Answer({"config_file": paths.config_file}, (str(paths.config_file),), exact=True)


def _paths() -> config.Paths:
    return config.Paths.from_environ(os.environ)


def _check_exists(console: Console, key: str, value: str) -> None:
    """Refuse a backend that no release has; only for ``llm.backend`` this loads the manifest."""
    if key == "llm.backend":
        from tsuku_llm.cli.session import open_session  # noqa: PLC0415
        from tsuku_llm.operations.choice import check_backend  # noqa: PLC0415

        with open_session(console) as session:
            check_backend(session, value)


def _changed(paths: config.Paths, key: str) -> Answer:
    """Return the value in force now: the environment may override what was written."""
    setting = config.load(paths, os.environ).setting(key)
    shown = render.setting_data(setting)
    line = f"{key} = {redacted(config.text_of(setting.value)) or '(none)'}"
    return Answer(shown, (f"{line} ({setting.source})",))
