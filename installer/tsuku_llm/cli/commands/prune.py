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
    help="Also keep the N versions that were installed last.",
)
@click.option("--legacy", is_flag=True, help="Also remove the files of tsuku's earlier addon.")
@click.pass_obj
def command(console: Console, *, keep: int, legacy: bool) -> Answer:
    """Remove versions and leftovers that are no longer needed.

    The active version, the one before it and every version in use stay.
    """
    with open_session(console) as session:
        report = prune(session, keep=keep, legacy=legacy)
    return Answer(render.pruned_data(report), render.pruned_lines(report))
