"""The help of every command, as docs/cli.md shows it.

python tests/support/help_texts.py     writes the part of docs/cli.md that is made here
"""

from collections.abc import Iterator
from pathlib import Path

import click

from tsuku_llm.cli.program import PROGRAM, program

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"
HEADING = "\n## Help texts\n"
WIDTH = 88


def help_texts() -> str:
    """Return one block for each command and subcommand."""
    blocks = (f"```text\n{context.get_help().rstrip()}\n```\n" for context in contexts())
    return "\n" + "\n".join(blocks)


def contexts() -> Iterator[click.Context]:
    """The program, its commands, and theirs."""
    yield from _below(click.Context(program, info_name=PROGRAM, max_content_width=WIDTH))


def _below(context: click.Context) -> Iterator[click.Context]:
    context.terminal_width = WIDTH
    yield context
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command
            yield from _below(click.Context(command, parent=context, info_name=name))


if __name__ == "__main__":
    before = DOCUMENT.read_text("utf-8").partition(HEADING)[0]
    DOCUMENT.write_text(before + HEADING + help_texts(), "utf-8")
