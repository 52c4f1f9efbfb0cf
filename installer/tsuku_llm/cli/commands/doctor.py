"""The command ``doctor``."""

from __future__ import annotations

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import doctor as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.doctor import examine


@click.command("doctor", cls=Command)
@options.setting("backend")
@click.pass_obj
def command(console: Console, *, backend: str | None) -> Answer:
    """Find the first broken link between the GPU and the server."""
    with open_session(console, looking=True, backend=backend) as session:
        examination = examine(session)
    # For people the text says what is broken; only a program needs an error.
    failure = render.failure(examination.chain) if console.json else None
    return Answer(
        render.data(examination),
        render.lines(examination),
        exit_code=examination.chain.exit_code,
        failure=failure,
    )
