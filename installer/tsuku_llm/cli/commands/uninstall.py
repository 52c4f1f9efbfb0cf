"""The command ``uninstall``."""

from __future__ import annotations

import click

from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import removal as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations.maintenance import uninstall


@click.command("uninstall", cls=Command)
@click.argument("versions", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Remove every version, also damaged ones.")
@click.pass_obj
def command(console: Console, *, versions: tuple[str, ...], everything: bool) -> Answer:
    """Remove installed versions.

    VERSIONS are ids as list shows them, or a release or variant that only one of them has.
    Versions that a running server uses stay.
    """
    with open_session(console) as session:
        report = uninstall(session, versions, everything=everything)
    return Answer(render.uninstalled_data(report), render.uninstalled_lines(report))
