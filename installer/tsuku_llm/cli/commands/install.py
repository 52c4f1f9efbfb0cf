"""The command ``install``."""

from __future__ import annotations

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import install as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.install import install


@click.command("install", cls=Command)
@options.setting("backend")
@options.setting("channel")
@options.release
@options.setting("repository")
@options.ask_first
@options.offline
@options.allow_revoked
@click.option(
    "--dry-run", is_flag=True, help="Show what would be installed, without using the network."
)
# install asks no question so far: the option is accepted and has no effect.
@click.option("--yes", is_flag=True, expose_value=False, help="Answer every question with yes.")
@click.option("--force", is_flag=True, help="Install again, even if it is installed.")
@click.pass_obj
def command(  # noqa: PLR0913
    console: Console,
    *,
    backend: str | None,
    channel: str | None,
    release: str | None,
    repository: str | None,
    require_fresh: str | None,
    offline: bool,
    allow_revoked: bool,
    dry_run: bool,
    force: bool,
) -> Answer:
    """Install the build of llama.cpp's server that fits this machine."""
    with open_session(
        console,
        backend=backend,
        channel=channel,
        repository=repository,
        require_fresh=require_fresh,
        allow_revoked=allow_revoked,
        offline=offline,
    ) as session:
        report = install(session, release=release, dry_run=dry_run, force=force)
    return Answer(render.data(report), render.lines(report))
