"""The commands of the release tool."""

import logging
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path

import click

from ci.release.checking import compare, first_root, late_roles, walk
from ci.release.copies import Folder, copy_at
from ci.release.errors import ReleaseError
from ci.release.folder import days_left, verify, write
from ci.release.folder import publish as publish_folder
from ci.release.plan import (
    DATA,
    Plan,
    caught_up,
    load_plan,
    raised,
    release_files,
    save_roles,
    with_signers,
)
from ci.release.signers import VARIABLE, load_seeds, load_signers, make_signer

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
ONLINE = ("snapshot", "timestamp")
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
DAY = click.DateTime(["%Y-%m-%d"])
TODAY = datetime.now(timezone.utc).strftime("%Y-%m-%d")

data_option = click.option(
    "--data", type=FOLDER, default=DATA, help="Where rules, facts and the plan lie."
)
root_option = click.option(
    "--trusted-root", type=FILE, help="Sigstore's trusted root; sigstore-python's without it."
)
into_option = click.option(
    "--into", type=FOLDER, default=MANIFESTS, help="Where the repository lies."
)
gather_option = click.option(
    "--gather", type=FOLDER, help="Where the signatures of several holders come together."
)
issued_option = click.option(
    "--issued", type=DAY, default=TODAY, help="The day that new versions carry; today."
)


@click.group()
def cli() -> None:
    """From what upstream published to the signed repository in manifests/."""


@cli.command()
@data_option
@click.argument("tag")
@click.option("--json", "answer", type=FILE, help="The hosting service's answer, stored.")
@click.option("--download", is_flag=True, help="Read every archive: its files and its needs.")
@click.option("--from", "folder", type=FOLDER, help="Where the archives lie already.")
@click.option("--unlisted", metavar="REASON", help="Why no archive of it can be read.")
def refresh(  # noqa: PLR0913 - each is an option
    *,
    data: Path,
    tag: str,
    answer: Path | None,
    download: bool,
    folder: Path | None,
    unlisted: str | None,
) -> None:
    """Record what upstream published under a tag, in facts/."""
    from ci.release.refresh import Refresh  # noqa: PLC0415

    work = Refresh(data, os.environ, click.echo)
    work.record(tag, answer.read_bytes() if answer else None, unlisted)
    if download or folder:
        work.read_archives(tag, folder)


@cli.command()
@data_option
@root_option
@click.argument("tag")
@click.option("--bundle", "bundles", type=FILE, multiple=True, help="Attestations, stored.")
@click.option("--unattested", metavar="REASON", help="Why its origin cannot be verified.")
def attest(
    *,
    data: Path,
    trusted_root: Path | None,
    tag: str,
    bundles: tuple[Path, ...],
    unattested: str | None,
) -> None:
    """Verify offline who built a release's archives, and record the proofs in facts/."""
    from ci.release.attest import Attest  # noqa: PLC0415

    work = Attest(data, os.environ)
    if unattested is None:
        number = work.prove(tag, [path.read_bytes() for path in bundles], trusted_root)
        click.echo(f"{tag}: {number} archives come from {work.origin.repository}")
    else:
        work.excuse(tag, unattested)
        click.echo(f"{tag}: not attested, and its release file says so")


@cli.command()
@data_option
@root_option
@click.argument("into", type=FOLDER)
def build(data: Path, trusted_root: Path | None, into: Path) -> None:
    """Write the unsigned release files of every channel into a folder, for review."""
    for release in release_files(load_plan(data), data, trusted_root):
        path = into / release.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(release.data)
        click.echo(f"{release.path}  {', '.join(release.custom['channels'])}")


@cli.command()
@data_option
@root_option
@into_option
@issued_option
@gather_option
@click.option("--raise", "higher", is_flag=True, help="With the next version of what changes.")
def sign(  # noqa: PLR0913 - each is an option
    *,
    data: Path,
    trusted_root: Path | None,
    into: Path,
    issued: datetime,
    gather: Path | None,
    higher: bool,
) -> None:
    """Build and sign the repository with the signers that TSUKU_LLM_SIGNERS names."""
    plan = load_plan(data)
    if higher:
        plan = raised(_caught_up(plan, into), issued.date(), ("targets", *ONLINE))
    _sign(plan, data, trusted_root, into, gather)


@cli.command()
@data_option
@into_option
@issued_option
def resign(data: Path, into: Path, issued: datetime) -> None:
    """Sign snapshot and timestamp anew, with the online signer alone: what a week needs."""
    from ci.release.signing import sign_again  # noqa: PLC0415

    copy = Folder(into)
    repository = verify(copy, first_root(copy))
    plan = raised(_caught_up(load_plan(data), into), issued.date(), ONLINE)
    write(into, sign_again(plan, repository, copy, load_signers()))
    save_roles(plan, data)
    click.echo(f"{into}: timestamp {plan.roles['timestamp'].version} is signed")


@cli.command()
@data_option
@root_option
@into_option
@issued_option
@gather_option
@click.argument("changes", nargs=-1, required=True, metavar="ROLE=NAME,NAME,NAME...")
def rotate(  # noqa: PLR0913 - each is an option
    *,
    data: Path,
    trusted_root: Path | None,
    into: Path,
    issued: datetime,
    gather: Path | None,
    changes: tuple[str, ...],
) -> None:
    """Give roles (root, targets, online) new signers, in a next root that the old ones sign too.

    Their public keys stand in [keys] of repository.toml.
    """
    parts = (change.partition("=") for change in changes)
    signers = {role: names.split(",") for role, _, names in parts}
    plan = with_signers(_caught_up(load_plan(data), into), signers)
    plan = raised(plan, issued.date(), plan.roles.keys())
    _sign(plan, data, trusted_root, into, gather)


@cli.command("new-signer")
@click.argument("name")
@click.argument("file", type=click.Path(exists=False, path_type=Path))
def new_signer(name: str, file: Path) -> None:
    """Make a signer in a FILE of its holder's own, and say its public key for [keys]."""
    click.echo(f'{name} = "{make_signer(name, file)}"')


@cli.command()
@click.argument("target", type=FOLDER)
@click.option("--from", "source", type=FOLDER, default=MANIFESTS, help="The signed repository.")
def publish(target: Path, source: Path) -> None:
    """Bring a folder that a web server serves to the state of the signed repository."""
    repository = publish_folder(source, target)
    click.echo(f"{target}: timestamp {repository.roles['timestamp'].version} is served")


@cli.command()
@data_option
@click.argument("place", default=str(MANIFESTS))
@click.option("--published", metavar="PLACE", help="Compare with what is published there.")
@click.option("--on", "now", type=DAY, default=TODAY, help="As if it were that day.")
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
    click.echo(f"every root leads to root {walk(copy)}")
    if published:
        other = copy_at(published)
        for line in compare(copy, other):
            click.echo(line)
        click.echo(f"every published root leads to root {walk(other)}")
    late = late_roles(copy, repository, load_plan(data), now)
    if late:
        raise ReleaseError(f"sign anew: {', '.join(late)}")


@cli.command()
@click.option("--repository", type=FOLDER, default=ROOT, help="Whose files and history.")
@click.option("--build", "build_it", is_flag=True, help="Build wheel and sdist, and look there.")
@click.argument("places", nargs=-1, type=click.Path(exists=True, path_type=Path))
def secrets(*, repository: Path, build_it: bool, places: tuple[Path, ...]) -> None:
    """Look for the signers' seeds in this repository, its history, and PLACES (logs, builds).

    Ends with 1 when one is found. Without TSUKU_LLM_SIGNERS there is nothing to look for.
    """
    from ci.release.secrets import built, files_below, history, search  # noqa: PLC0415

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


def _caught_up(plan: Plan, into: Path) -> Plan:
    copy = Folder(into)
    if copy.read("metadata/1.root.json") is None:
        return plan
    roles = verify(copy, first_root(copy)).roles
    return caught_up(plan, {name: state.version for name, state in roles.items()})


def _sign(
    plan: Plan, data: Path, trusted_root: Path | None, into: Path, gather: Path | None
) -> None:
    from ci.release.ceremony import Ceremony  # noqa: PLC0415

    releases = release_files(plan, data, trusted_root)
    ceremony = Ceremony(plan, releases, load_signers(), click.echo)
    if gather:
        ceremony.in_turn(into, gather)
    else:
        ceremony.alone(into)
    if plan != load_plan(data):
        save_roles(plan, data)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; what stops it is one line."""
    logging.getLogger("sigstore").setLevel(logging.ERROR)  # it warns that it works offline
    try:
        cli(arguments, prog_name="python -m ci.release")
    except ReleaseError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
