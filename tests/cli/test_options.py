"""How many options the commands have, and how many settings there are: what fits a page is read."""

from collections.abc import Iterator

import click
import pytest

from tsuku_llm.cli.command import GLOBAL
from tsuku_llm.cli.program import program
from tsuku_llm.config.keys import KEYS
from tsuku_publish.cli.main import group as publisher

MOST = 14
"""The most options of a command, without those that each one has: ``GLOBAL``, and --help."""

MOST_SETTINGS = 20


def commands(group: click.Group, words: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        yield f"{words} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{words} {name}")


COMMANDS = dict((*commands(program, "tsuku-llm"), *commands(publisher, "tsuku-publish")))


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_has_more_options_than_a_reader_takes_in(name: str) -> None:
    """Hidden ones count as well: they are no way around the limit."""
    own = [
        each.opts[0]
        for each in COMMANDS[name].params
        if isinstance(each, click.Option) and each not in GLOBAL
    ]
    assert len(own) <= MOST, own


def test_there_are_no_more_settings_than_a_page_shows() -> None:
    assert len(KEYS) <= MOST_SETTINGS


def test_every_command_has_the_options_of_all() -> None:
    for command in COMMANDS.values():
        assert set(GLOBAL) <= set(command.params)
