"""The command ``verify``."""

from __future__ import annotations

import click

from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import verify as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.verify import verify


@click.command("verify", cls=Command)
@click.argument("versions", nargs=-1)
@click.pass_obj
def command(console: Console, *, versions: tuple[str, ...]) -> Answer:
    """Hash every installed file and report what has changed.

    VERSIONS are ids as list shows them, or a release or variant that only one of them has;
    without any, all are hashed.
    """
    with open_session(console, looking=True) as session:
        verdicts = verify(session, versions)
    return Answer(
        render.data(verdicts),
        render.lines(verdicts),
        exit_code=render.exit_code(verdicts),
        failure=render.failure(verdicts),
    )
