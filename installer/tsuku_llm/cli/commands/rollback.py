"""The command ``rollback``."""

from __future__ import annotations

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import installed as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.maintenance import rollback


@click.command("rollback", cls=Command)
@options.allow_revoked
@click.pass_obj
def command(console: Console, *, allow_revoked: bool) -> Answer:
    """Go back to the previous active version."""
    with open_session(console, allow_revoked=allow_revoked) as session:
        installed = rollback(session)
    return Answer(render.active_data(installed), render.active_lines(installed))
