"""Commands that publish a signed repository, and that check it."""

import os
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path

import click

from ci.release.checking import compare, first_root, late_roles, walk
from ci.release.commands.options import DAY, FOLDER, MANIFESTS, ROOT, TODAY, data_option
from ci.release.copies import copy_at
from ci.release.errors import ReleaseError
from ci.release.folder import days_left, verify
from ci.release.folder import publish as publish_folder
from ci.release.plan import load_plan
from ci.release.secrets import built, files_below, history, search
from ci.release.signers import VARIABLE, load_seeds
from tsuku_llm.revocations import parse


@click.command()
@click.argument("target", type=FOLDER)
@click.option("--from", "source", type=FOLDER, default=MANIFESTS, help="The signed repository.")
def publish(target: Path, source: Path) -> None:
    """Bring a folder that a web server serves to the state of the signed repository."""
    repository = publish_folder(source, target)
    click.echo(f"{target}: timestamp {repository.roles['timestamp'].version} is served")


@click.command()
@data_option
@click.argument("place", default=str(MANIFESTS))
@click.option("--published", metavar="PLACE", help="Compare with what is published there.")
@click.option("--on", "now", type=DAY, default=TODAY, help="The day to check for; default: today.")
def check(data: Path, place: str, published: str | None, now: datetime) -> None:
    """Verify a repository as a client would, and say how long each role holds.

    PLACE is a folder, a wheel or a URL. Ends with 1 when a role must be signed anew, when a
    client of any root would be stuck, or when a package would refuse what is published.
    """
    now = now.replace(tzinfo=timezone.utc)
    copy = copy_at(place)
    repository = verify(copy, first_root(copy))
    for role, days in days_left(repository, now).items():
        state = repository.roles[role]
        click.echo(f"{role:9} version {state.version}, {days} days left ({state.expires:%Y-%m-%d})")
    for each in parse("", repository.revoked):
        withdrawn = f", withdrawn on {each.withdrawn}" if each.withdrawn else ""
        click.echo(f"revoked: {each.release} on {each.date}{withdrawn}: {each.reason}")
    click.echo(f"every root leads to root {walk(copy)}")
    if published:
        other = copy_at(published)
        for line in compare(copy, other):
            click.echo(line)
        click.echo(f"every published root leads to root {walk(other)}")
    late = late_roles(copy, repository, load_plan(data), now)
    if late:
        raise ReleaseError(f"sign anew: {', '.join(late)}")


@click.command()
@click.option(
    "--repository",
    type=FOLDER,
    default=ROOT,
    help="The git checkout whose files and history to scan.",
)
@click.option("--build", "build_it", is_flag=True, help="Build wheel and sdist, and scan them.")
@click.argument("places", nargs=-1, type=click.Path(exists=True, path_type=Path))
def secrets(*, repository: Path, build_it: bool, places: tuple[Path, ...]) -> None:
    """Look for the signers' seeds in this repository, its history, and PLACES (logs, builds).

    Ends with 1 when one is found. Without TSUKU_LLM_SIGNERS there is nothing to look for.
    """
    if not os.environ.get(VARIABLE):
        click.echo(f"skipped: {VARIABLE} names no file of signers, so no seed is known")
        return
    seeds = load_seeds()
    contents = [files_below(place) for place in (repository, *places)]
    contents += [history(repository)] if (repository / ".git").exists() else []
    contents += [built(repository)] if build_it else []
    found, number = search(chain.from_iterable(contents), seeds)
    for finding in found:
        click.echo(f"{finding.signer}: {finding.place}")
    if found:
        raise ReleaseError("a seed is where it must not be: replace that signer")
    click.echo(f"none of {len(seeds)} seeds is in {number} files and objects")
