"""``repository add|list|remove``."""

from __future__ import annotations

from pathlib import Path

import click

from tsuku_llm.catalog import OFFICIAL
from tsuku_llm.cli import options
from tsuku_llm.cli.answer import Answer
from tsuku_llm.cli.command import Group
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import available
from tsuku_llm.cli.render import repository as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations import repository as operations


@click.group("repository", cls=Group)
def command() -> None:
    """Add, list and remove signed repositories."""


@command.command("add")
@click.argument("name")
@click.argument("url")
@click.option(
    "--root",
    type=options.FILE,
    metavar="FILE",
    required=True,
    help="Its root of trust, a root.json that was had from its owner by a safe way.",
)
@click.pass_obj
def add(console: Console, *, name: str, url: str, root: Path) -> Answer:
    """Add a repository; install takes from it with --repository NAME."""
    with open_session(console) as session:
        repository = operations.add(session, name, url, root)
    return Answer(render.data(repository), (f"added {repository.name}: {repository.url}",))


@command.command("refresh")
@click.argument("name", default=OFFICIAL)
@click.pass_obj
def refresh(console: Console, *, name: str) -> Answer:
    """Fetch the signed metadata of a repository, the official one unless NAME is given."""
    with open_session(console) as session:
        catalog = operations.fetch_metadata(session, name)
    return Answer(available.data(catalog), available.lines(catalog))


@command.command("list")
@click.pass_obj
def list_(console: Console) -> Answer:
    """List the repositories."""
    with open_session(console) as session:
        repositories = operations.repositories(session)
    return Answer(render.list_data(repositories), render.lines(repositories))


@command.command("remove")
@click.argument("name")
@click.pass_obj
def remove(console: Console, *, name: str) -> Answer:
    """Remove a repository and its root of trust; what was installed from it stays."""
    with open_session(console) as session:
        operations.remove(session, name)
    return Answer({"name": name}, (f"removed {name}",))
