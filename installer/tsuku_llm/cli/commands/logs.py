"""The command ``logs``."""

from __future__ import annotations

import sys

import click

from tsuku_llm.cli import options, streams
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.session import open_session
from tsuku_llm.errors import UsageError
from tsuku_llm.operations.background import log_of


@click.command("logs", cls=Command)
@options.name
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the server ends.")
@click.pass_obj
def command(console: Console, *, name: str, follow: bool) -> Answer:
    """Print the log of a server in the background."""
    if follow and console.json:
        raise UsageError("--follow and --json cannot be combined", hint="omit one of them")
    with open_session(console, looking=True) as session:
        # An iterator: a log of any length is printed as it is read.
        said = log_of(session, name, follow=follow)
        if console.json:
            # "replace": the server may be in the middle of a character now.
            text = b"".join(said).decode("utf-8", "replace")
            return Answer({"name": name, "lines": text.splitlines()})
        for data in said:
            streams.pass_on(sys.stdout, data)
    return Answer()
