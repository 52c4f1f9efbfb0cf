"""The help of every command, as docs/cli.md, docs/releases.md and the snapshots show it.

python tests/support/help_texts.py     writes all of them again, and the man page
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from tsuku_llm.cli.command import HelpContext
from tsuku_llm.cli.program import program
from tsuku_publish.cli.main import group as publisher

PROGRAMS: dict[str, click.Group] = {"cli.md": program, "releases.md": publisher}
"""Each document, and the program whose help it shows."""

DOCS = Path(__file__).parents[2] / "docs"
HEADING = "\n## Help texts\n"
WIDTH = 88

SNAPSHOTS = Path(__file__).parents[1] / "help"
"""The folder of what a terminal shows; a file for each width in ``COLUMNS``."""
COLUMNS = (40, 80, 200)


def help_texts(group: click.Group) -> str:
    """Return one block for each command and subcommand."""
    blocks = (f"```text\n{shown.get_help().rstrip()}\n```\n" for shown in contexts(group, WIDTH))
    return "\n" + "\n".join(blocks)


def snapshot(columns: int) -> str:
    """Return the help of every command of ours, as a terminal of that width shows it."""
    blocks = (
        f"$ {each.command_path} --help\n{each.get_help()}" for each in contexts(program, columns)
    )
    return "\n".join(blocks)


def contexts(group: click.Group, columns: int) -> Iterator[click.Context]:
    """The program, its commands, and theirs."""
    yield from _below(HelpContext(group, info_name=group.name, terminal_width=columns))


def _below(context: click.Context) -> Iterator[click.Context]:
    yield context
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command
            # Old names that only say the new one.
            if command.hidden:
                continue
            # The width goes from a context to those below it.
            yield from _below(HelpContext(command, parent=context, info_name=name))


if __name__ == "__main__":
    for name, group in PROGRAMS.items():
        before = (DOCS / name).read_text("utf-8").partition(HEADING)[0]
        (DOCS / name).write_text(before + HEADING + help_texts(group), "utf-8")
    for columns in COLUMNS:
        (SNAPSHOTS / f"{columns}.txt").write_text(snapshot(columns), "utf-8")
    # A script has only its own folder on the path.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.man_page import PAGE, man_page

    PAGE.write_text(man_page(), "utf-8")
