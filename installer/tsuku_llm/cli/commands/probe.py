"""The command ``probe``."""

from __future__ import annotations

from pathlib import Path

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import hardware as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.prefetch import probe_machine


@click.command("probe", cls=Command)
@click.option(
    "--record",
    type=options.FILE,
    metavar="FILE",
    help="Write the machine's raw answers to FILE, without names and serial numbers.",
)
@click.pass_obj
def command(console: Console, *, record: Path | None) -> Answer:
    """Show what this machine has."""
    with open_session(console, looking=True) as session:
        hardware = probe_machine(session, record=record)
    return Answer(render.data(hardware, record), render.lines(hardware, record))
