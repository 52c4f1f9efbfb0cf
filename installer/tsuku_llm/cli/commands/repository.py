"""The commands ``repository add|list|refresh|remove|pack``."""

from __future__ import annotations

from pathlib import Path

import click

from tsuku_llm.catalog.repositories import OFFICIAL
from tsuku_llm.cli import options
from tsuku_llm.cli.answer import CommandResult
from tsuku_llm.cli.command import Group
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.render import installed
from tsuku_llm.cli.render import packing as packed
from tsuku_llm.cli.render import repository as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.operations import packing
from tsuku_llm.operations import repository as operations


@click.group("repository", cls=Group)
def repository_command() -> None:
    """Add, list and remove signed repositories; pack builds for one's own."""


@repository_command.command("add")
@click.argument("name")
@click.argument("url")
@click.option(
    "--root",
    type=options.FILE,
    metavar="FILE",
    required=True,
    help="Its root of trust, a root.json that was had from its owner by a safe way.",
)
@click.option(
    "--fingerprint",
    metavar="SHA256",
    help="What the SHA-256 of FILE must be, as its owner said by another way.",
)
@click.pass_obj
def add(
    console: Console, *, name: str, url: str, root: Path, fingerprint: str | None
) -> CommandResult:
    """Add a repository; install takes from it with --repository NAME."""
    with open_session(console) as session:
        repository = operations.add(session, name, url, root, fingerprint)
    described = operations.root_of(repository)
    return CommandResult(
        render.added_data(repository, described), render.added_lines(repository, described)
    )


@repository_command.command("refresh")
@click.argument("name", default=OFFICIAL)
@click.pass_obj
def refresh(console: Console, *, name: str) -> CommandResult:
    """Fetch the signed metadata of a repository, the official one unless NAME is given."""
    with open_session(console) as session:
        catalog = operations.fetch_metadata(session, name)
    return CommandResult(installed.available_data(catalog), installed.available_lines(catalog))


@repository_command.command("list")
@click.pass_obj
def list_(console: Console) -> CommandResult:
    """List the repositories."""
    with open_session(console, looking=True) as session:
        repositories = operations.repositories(session)
    return CommandResult(render.list_data(repositories), render.lines(repositories))


@repository_command.command("remove")
@click.argument("name")
@click.pass_obj
def remove(console: Console, *, name: str) -> CommandResult:
    """Remove a repository and its root of trust; what was installed from it stays."""
    with open_session(console) as session:
        operations.remove(session, name)
    return CommandResult({"name": name}, (f"removed {name}",))


@repository_command.command("pack")
@click.argument("build", type=options.FILE)
@click.argument("release", type=options.FILE)
@click.option(
    "--variant", metavar="NAME", required=True, help="Which variant of the release it is."
)
@click.option("--platform", metavar="NAME", help="For which platform, if several have the variant.")
@click.option(
    "--into", type=options.FILE, metavar="FOLDER", required=True, help="Where the archives go."
)
@click.option("--url", required=True, help="The https URL at which that folder is served.")
def pack(  # noqa: PLR0913  # each is an option
    *, build: Path, release: Path, variant: str, platform: str | None, into: Path, url: str
) -> CommandResult:
    """Pack a build of one's own so that updates fetch only what changed.

    BUILD is a folder, or a .tar.gz or .zip of upstream's. RELEASE is the release file, still
    to be signed, that says what the variant needs; the archives are entered there.
    """
    place = packing.Place(into, url)
    report = packing.pack(build, release, place, variant=variant, platform=platform)
    return CommandResult(packed.data(report), packed.lines(report))
