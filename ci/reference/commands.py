"""The help of every command, as a terminal of 80 columns shows it."""

from collections.abc import Iterator

import click

from tsuku_llm.cli.command import HelpContext
from tsuku_llm.cli.program import program
from tsuku_publish.cli.main import group as publisher

PROGRAMS: dict[str, click.Group] = {"tsuku-llm": program, "tsuku-publish": publisher}
COLUMNS = 80

MADE = "<!-- Made by python -m ci.reference; do not edit. -->\n"
"""The first line of each page."""


def page(name: str) -> str:
    """Return the page with the help of a program and of each of its commands."""
    shown = contexts(PROGRAMS[name], COLUMNS)
    parts = (f"## {each.command_path}\n\n```text\n{help_of(each)}\n```\n" for each in shown)
    about = "`--help` after a command shows the same.\n"
    return "\n".join([MADE, f"# Commands of {name}\n", about, *parts])


def help_of(context: click.Context) -> str:
    """Return the help of a command without the end of its last line."""
    return context.get_help().rstrip()


def contexts(group: click.Group, columns: int) -> Iterator[click.Context]:
    """Yield the program, its commands, and theirs."""
    yield from _below(HelpContext(group, info_name=group.name, terminal_width=columns))


def _below(context: click.Context) -> Iterator[click.Context]:
    yield context
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            # Hidden are old names that only say the new one.
            if command is None or command.hidden:
                continue
            # The width goes from a context to those below it.
            yield from _below(HelpContext(command, parent=context, info_name=name))
