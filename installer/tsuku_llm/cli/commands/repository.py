"""The commands ``repository add|list|refresh|remove``."""

from __future__ import annotations

from pathlib import Path

import click

from tsuku_llm.catalog.repositories import OFFICIAL, remove_repository
from tsuku_llm.cli import options
from tsuku_llm.cli.command import Group
from tsuku_llm.cli.render import installed
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.cli.terminal.text import table
from tsuku_llm.steps.metadata import repository as operations
from tsuku_llm.steps.metadata.refresh import refresh as fetch_newest
from tsuku_llm.steps.metadata.repository import AddedRepository, RepositoryState


@click.group("repository", cls=Group)
def repository_command() -> None:
    """Add, list and remove signed repositories."""


@repository_command.command("add")
@click.argument("name")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option(
    "--root",
    type=options.FILE,
    metavar="FILE",
    required=True,
    help="The root of trust: a root.json obtained from its owner over a trusted channel.",
)
@click.option(
    "--fingerprint",
    metavar="SHA256",
    help="The SHA-256 that FILE must have; its owner tells you.",
)
@click.pass_obj
def add(
    console: Console, *, name: str, urls: tuple[str, ...], root: Path, fingerprint: str | None
) -> CommandResult:
    """Add a repository, to be used with install --repository NAME.

    URL is https://HOST/FOLDER/, file:///FOLDER/, oci://HOST/NAME or pkg:pypi/NAME. Of several, the
    first that gives a valid answer counts.
    """
    url, *others = urls
    with open_session(console) as session:
        added = operations.add(session, name, url, root, fingerprint=fingerprint, others=others)
    return CommandResult(added, _added_lines(added, compared=fingerprint is not None))


@repository_command.command("refresh")
@click.argument("name", default=OFFICIAL, shell_complete=options.completed_by("repository"))
@click.pass_obj
def refresh(console: Console, *, name: str) -> CommandResult:
    """Fetch the newest signed metadata.

    Without NAME, that of the official repository.
    """
    with open_session(console) as session:
        catalog = fetch_newest(session.with_settings(repository=name))
        found = operations.offered_releases(session, catalog)
    return CommandResult(
        found, (f"Refreshed the repository {name}.", *installed.available_lines(found))
    )


@repository_command.command("list")
@click.pass_obj
def list_(console: Console) -> CommandResult:
    """List the repositories."""
    with open_session(console, looking=True) as session:
        repositories = operations.repositories(session)
    rows = [
        (one.name, _places(one), one.state, f"root sha256 {one.fingerprint}")
        for one in repositories
    ]
    return CommandResult({"repositories": repositories}, table(rows, indent=0))


@repository_command.command("remove")
@click.argument("name", shell_complete=options.completed_by("added repository"))
@click.pass_obj
def remove(console: Console, *, name: str) -> CommandResult:
    """Remove a repository; installed versions stay."""
    with open_session(console) as session:
        remove_repository(session.paths.data, name)
    return CommandResult(
        {"name": name}, (f"Removed the repository {name}; its builds stay installed.",)
    )


_SHOWN = 16
"""Digits of a key's id that are shown to people."""


def _added_lines(found: AddedRepository, *, compared: bool) -> tuple[str, ...]:
    """Return an added repository for people: what its owner can compare, unless it was."""
    rows = [
        (
            name,
            f"{role.threshold} of {len(role.keys)} keys",
            ", ".join(key[:_SHOWN] for key in role.keys),
        )
        for name, role in found.roles.items()
    ]
    added = found.added
    return (
        f"Added the repository {added.name}.",
        f"  its address is {_places(added)}",
        f"  its root {found.number} has the fingerprint (SHA-256) {added.fingerprint}",
        *table(rows),
        "it is the fingerprint that you gave"
        if compared
        else "compare the fingerprint with the one that the owner gives you separately",
    )


def _places(state: RepositoryState) -> str:
    return ", ".join((state.url, *state.others))
