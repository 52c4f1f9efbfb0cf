"""The command ``prune``."""

from __future__ import annotations

import click

from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import removal as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.maintenance import prune


@click.command("prune", cls=Command)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Keep N more versions, those installed last.",
)
@click.option("--legacy", is_flag=True, help="Also remove what tsuku's earlier addon left.")
@click.pass_obj
def command(console: Console, *, keep: int, legacy: bool) -> Answer:
    """Remove versions and leftovers that nobody needs any more.

    The active version and the one before it stay, and so does what a running server uses.
    """
    with open_session(console) as session:
        report = prune(session, keep=keep, legacy=legacy)
    return Answer(render.pruned_data(report), render.pruned_lines(report))
