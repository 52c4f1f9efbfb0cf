"""The command ``backends``."""

from __future__ import annotations

from pathlib import Path

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import backends as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.explain import backends


@click.command("backends", cls=Command)
@options.setting("channel")
@options.release
@options.setting("repository")
@options.hardware
@click.pass_obj
def command(
    console: Console,
    *,
    channel: str | None,
    release: str | None,
    repository: str | None,
    hardware: Path | None,
) -> Answer:
    """Compare every variant with this machine and with what is installed."""
    with open_session(console, looking=True, channel=channel, repository=repository) as session:
        matrix = backends(session, release=release, hardware_file=hardware)
    return Answer(render.data(matrix), render.lines(matrix))
