"""The command ``use``."""

from __future__ import annotations

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import installed as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.maintenance import use


@click.command("use", cls=Command)
@click.argument("version")
@options.allow_revoked
@click.pass_obj
def command(console: Console, *, version: str, allow_revoked: bool) -> Answer:
    """Make an installed version the active one.

    VERSION is its id as list shows it, or a release or variant that only one of them has.
    """
    with open_session(console, allow_revoked=allow_revoked) as session:
        installed = use(session, version)
    return Answer(render.active_data(installed), render.active_lines(installed))
