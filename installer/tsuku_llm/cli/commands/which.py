"""The command ``which``."""

from __future__ import annotations

import click

from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.which import which


@click.command("which", cls=Command)
@click.argument("tool", required=False)
@click.pass_obj
def command(console: Console, *, tool: str | None) -> Answer:
    """Print the path of the server that serve starts, or of another TOOL of its build."""
    with open_session(console, looking=True) as session:
        # Scripts call this often: import the tools only if one is named.
        if tool is None:
            path = which(session)
        else:
            from tsuku_llm.operations.which import path_of  # noqa: PLC0415

            path = path_of(session, tool)
    return Answer({"path": path}, (str(path),), exact=True)
