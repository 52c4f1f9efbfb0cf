"""Commands that sign, and that make signers."""

from datetime import datetime
from pathlib import Path

import click

from ci.release.ceremony import Ceremony
from ci.release.checking import first_root
from ci.release.commands.options import (
    data_option,
    drop_option,
    gather_option,
    into_option,
    issued_option,
    root_option,
)
from ci.release.copies import Folder
from ci.release.folder import verify, write
from ci.release.plan import (
    Plan,
    caught_up,
    load_plan,
    raised,
    release_files,
    save_roles,
    with_signers,
)
from ci.release.revoked import require_kept
from ci.release.signers import load_signers, make_signer
from ci.release.signing import sign_again

ONLINE = ("snapshot", "timestamp")


@click.command()
@data_option
@root_option
@into_option
@issued_option
@gather_option
@drop_option
@click.option("--raise", "higher", is_flag=True, help="Raise the versions of changed metadata.")
def sign(  # noqa: PLR0913 - each is an option
    *,
    data: Path,
    trusted_root: Path | None,
    into: Path,
    issued: datetime,
    gather: Path | None,
    dropping: tuple[str, ...],
    higher: bool,
) -> None:
    """Build and sign the repository with the signers that TSUKU_LLM_SIGNERS names."""
    plan = load_plan(data)
    if higher:
        plan = raised(_caught_up(plan, into), issued.date(), ("targets", *ONLINE))
    _sign(plan, data, trusted_root, into, gather, dropping)


@click.command()
@data_option
@into_option
@issued_option
def resign(data: Path, into: Path, issued: datetime) -> None:
    """Sign snapshot and timestamp anew, with the online signer alone: what a week needs."""
    copy = Folder(into)
    repository = verify(copy, first_root(copy))
    plan = raised(_caught_up(load_plan(data), into), issued.date(), ONLINE)
    write(into, sign_again(plan, repository, copy, load_signers()))
    save_roles(plan, data)
    click.echo(f"{into}: timestamp {plan.roles['timestamp'].version} is signed")


@click.command()
@data_option
@root_option
@into_option
@issued_option
@gather_option
@drop_option
@click.argument("changes", nargs=-1, required=True, metavar="ROLE=NAME,NAME,NAME...")
def rotate(  # noqa: PLR0913 - each is an option
    *,
    data: Path,
    trusted_root: Path | None,
    into: Path,
    issued: datetime,
    gather: Path | None,
    dropping: tuple[str, ...],
    changes: tuple[str, ...],
) -> None:
    """Give roles (root, targets, online) new signers, in a next root that the old ones sign too.

    Their public keys stand in [keys] of repository.toml.
    """
    parts = (change.partition("=") for change in changes)
    signers = {role: names.split(",") for role, _, names in parts}
    plan = with_signers(_caught_up(load_plan(data), into), signers)
    plan = raised(plan, issued.date(), plan.roles.keys())
    _sign(plan, data, trusted_root, into, gather, dropping)


@click.command("new-signer")
@click.argument("name")
@click.argument("file", type=click.Path(exists=False, path_type=Path))
def new_signer(name: str, file: Path) -> None:
    """Make a signer in a FILE of its holder's own, and say its public key for [keys]."""
    click.echo(f'{name} = "{make_signer(name, file)}"')


def _caught_up(plan: Plan, into: Path) -> Plan:
    copy = Folder(into)
    if copy.read("metadata/1.root.json") is None:
        return plan
    roles = verify(copy, first_root(copy)).roles
    return caught_up(plan, {name: state.version for name, state in roles.items()})


def _sign(  # noqa: PLR0913, PLR0917 - what both commands are told
    plan: Plan,
    data: Path,
    trusted_root: Path | None,
    into: Path,
    gather: Path | None,
    dropping: tuple[str, ...],
) -> None:
    releases = release_files(plan, data, trusted_root)
    for tag in require_kept(plan.revoked, releases, Folder(into), dropping):
        click.echo(f"{tag}: its revocation is dropped; only clients that saw it remember it")
    ceremony = Ceremony(plan, releases, load_signers(), click.echo)
    if gather:
        ceremony.in_turn(into, gather)
    else:
        ceremony.alone(into)
    if plan != load_plan(data):
        save_roles(plan, data)
