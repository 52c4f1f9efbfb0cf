"""The command ``stop``."""

from __future__ import annotations

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import servers as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.background import stop, stop_all


@click.command("stop", cls=Command)
@options.name
@click.option("--all", "everything", is_flag=True, help="Stop every server in the background.")
@click.pass_obj
def command(console: Console, *, name: str, everything: bool) -> Answer:
    """Stop a server in the background.

    A server that does not end in time is killed.
    """
    # looking: a server must be stoppable even if another user could write to our folders.
    with open_session(console, looking=True) as session:
        stopped = stop_all(session) if everything else (stop(session, name),)
    return Answer(render.stopped_data(stopped), render.stopped_lines(stopped))
