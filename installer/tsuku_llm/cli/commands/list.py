"""The command ``list``."""

from __future__ import annotations

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import installed as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.versions import inventory


@click.command("list", cls=Command)
@click.option("--available", is_flag=True, help="List the releases of the signed manifest instead.")
@options.setting("repository")
@click.pass_obj
def command(console: Console, *, available: bool, repository: str | None) -> Answer:
    """List installed versions, or releases on offer."""
    with open_session(console, looking=True, repository=repository) as session:
        return _available(session) if available else _installed(session)


def _installed(session: Session) -> Answer:
    found = inventory(session)
    return Answer(render.data(found), render.lines(found))


def _available(session: Session) -> Answer:
    # Only this answer needs the verifier and the manifest.
    from tsuku_llm.cli.render import available as render  # noqa: PLC0415
    from tsuku_llm.operations.choice import load_catalog  # noqa: PLC0415

    catalog = load_catalog(session)
    return Answer(render.data(catalog), render.lines(catalog))
