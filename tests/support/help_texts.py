"""The help of every command, as docs/cli.md and docs/releases.md show it.

python tests/support/help_texts.py     writes the parts of both that are made here
"""

from collections.abc import Iterator
from pathlib import Path

import click

from tsuku_llm.cli.program import program
from tsuku_publish.cli.main import group as publisher

PROGRAMS: dict[str, click.Group] = {"cli.md": program, "releases.md": publisher}
"""Each document, and the program whose help it shows."""

DOCS = Path(__file__).parents[2] / "docs"
HEADING = "\n## Help texts\n"
WIDTH = 88


def help_texts(group: click.Group) -> str:
    """Return one block for each command and subcommand."""
    blocks = (f"```text\n{context.get_help().rstrip()}\n```\n" for context in contexts(group))
    return "\n" + "\n".join(blocks)


def contexts(group: click.Group) -> Iterator[click.Context]:
    """The program, its commands, and theirs."""
    yield from _below(click.Context(group, info_name=group.name, max_content_width=WIDTH))


def _below(context: click.Context) -> Iterator[click.Context]:
    context.terminal_width = WIDTH
    yield context
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command
            # Old names that only say the new one.
            if command.hidden:
                continue
            yield from _below(click.Context(command, parent=context, info_name=name))


if __name__ == "__main__":
    for name, group in PROGRAMS.items():
        before = (DOCS / name).read_text("utf-8").partition(HEADING)[0]
        (DOCS / name).write_text(before + HEADING + help_texts(group), "utf-8")
