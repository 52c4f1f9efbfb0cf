"""``which``."""

from __future__ import annotations

import click

from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.serve import which


@click.command("which", cls=Command)
@click.pass_obj
def command(console: Console) -> Answer:
    """Print the path of the server that serve starts."""
    with open_session(console) as session:
        path = which(session)
    return Answer({"path": path}, (str(path),), exact=True)
