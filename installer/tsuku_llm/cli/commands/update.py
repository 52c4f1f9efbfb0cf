"""The command ``update``."""

from __future__ import annotations

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import install as install_render
from tsuku_llm.cli.render import update as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.update import check_update, update


@click.command("update", cls=Command)
@click.option("--check", is_flag=True, help="Only show what an update would change.")
@options.setting("channel")
@options.setting("repository")
@click.pass_obj
def command(
    console: Console, *, check: bool, channel: str | None, repository: str | None
) -> Answer:
    """Update to the newest release of the channel."""
    with open_session(console, channel=channel, repository=repository) as session:
        if check:
            checked = check_update(session)
            return Answer(render.data(checked), render.lines(checked))
        report = update(session)
    return Answer(install_render.data(report), install_render.lines(report))
