"""The command ``explain``."""

from __future__ import annotations

from pathlib import Path

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import choice as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.explain import explain


@click.command("explain", cls=Command)
@options.setting("backend")
@options.setting("channel")
@options.release
@options.setting("repository")
@options.hardware
@click.pass_obj
def command(  # noqa: PLR0913
    console: Console,
    *,
    backend: str | None,
    channel: str | None,
    release: str | None,
    repository: str | None,
    hardware: Path | None,
) -> Answer:
    """Explain for each variant why it fits this machine or not."""
    with open_session(
        console, looking=True, backend=backend, channel=channel, repository=repository
    ) as session:
        choice = explain(session, release=release, hardware_file=hardware)
    return Answer(render.data(choice), render.lines(choice))
