"""Commands that sign, and that make signers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsuku_llm.cli.answer import CommandResult
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_publish.ceremony import Ceremony
from tsuku_publish.checking import FIRST_ROOT, first_root, verify
from tsuku_publish.cli.options import (
    asking,
    data_option,
    drop_option,
    gather_option,
    into_option,
    issued_option,
    root_option,
    tell,
)
from tsuku_publish.copies import RepositoryFolder
from tsuku_publish.folder import write
from tsuku_publish.keys import key_line
from tsuku_publish.passphrases import Passphrases
from tsuku_publish.plan import Plan, caught_up, load_plan, raised, save_roles, with_signers
from tsuku_publish.releases import release_files
from tsuku_publish.revoked import require_kept
from tsuku_publish.signers import load_signers, make_signer, register_token
from tsuku_publish.signing import sign_again

if TYPE_CHECKING:
    from tsuku_publish.cli import documents

ONLINE = ("snapshot", "timestamp")


@click.command(cls=Command)
@data_option
@root_option
@into_option
@issued_option
@gather_option
@drop_option
@click.option("--raise", "higher", is_flag=True, help="With the next version of what changes.")
@click.pass_obj
def sign(  # noqa: PLR0913 - each is an option
    console: Console,
    *,
    data: Path,
    trusted_root: Path | None,
    into: Path | None,
    issued: datetime,
    gather: Path | None,
    dropping: tuple[str, ...],
    higher: bool,
) -> CommandResult:
    """Make the repository, and sign it.

    TSUKU_LLM_SIGNERS names the file of the signers.
    """
    plan = load_plan(data)
    into = into or plan.signed
    if higher:
        plan = raised(_caught_up(plan, into), issued.date(), ("targets", *ONLINE))
    return _sign(console, plan, data, trusted_root, into, gather, dropping)


@click.command(cls=Command)
@data_option
@into_option
@issued_option
@click.pass_obj
def resign(console: Console, *, data: Path, into: Path | None, issued: datetime) -> CommandResult:
    """Sign snapshot and timestamp again, every week.

    Only the online signer is needed.
    """
    plan = load_plan(data)
    into = into or plan.signed
    copy = RepositoryFolder(into)
    repository = verify(copy, first_root(copy))
    plan = raised(_caught_up(plan, into), issued.date(), ONLINE)
    write(into, sign_again(plan, repository, copy, load_signers(ask=asking(console))))
    save_roles(plan, data)
    line = f"{into}: timestamp {plan.roles['timestamp'].version} is signed"
    return CommandResult(_signed(into, plan), (line,))


@click.command(cls=Command)
@data_option
@root_option
@into_option
@issued_option
@gather_option
@drop_option
@click.argument("changes", nargs=-1, required=True, metavar="ROLE=NAME,NAME,NAME...")
@click.pass_obj
def rotate(  # noqa: PLR0913 - each is an option
    console: Console,
    *,
    data: Path,
    trusted_root: Path | None,
    into: Path | None,
    issued: datetime,
    gather: Path | None,
    dropping: tuple[str, ...],
    changes: tuple[str, ...],
) -> CommandResult:
    """Replace the signers of roles, in a next root.

    A ROLE is root, targets or online. The old signers sign that root, too. The public keys of the
    new ones are in [keys] of repository.toml.
    """
    parts = (change.partition("=") for change in changes)
    signers = {role: names.split(",") for role, _, names in parts}
    plan = load_plan(data)
    into = into or plan.signed
    plan = with_signers(_caught_up(plan, into), signers)
    plan = raised(plan, issued.date(), plan.roles.keys())
    return _sign(console, plan, data, trusted_root, into, gather, dropping)


@click.command("new-signer", cls=Command)
@click.argument("name")
@click.argument("file", type=click.Path(exists=False, path_type=Path))
@click.option("--pkcs11", "uri", metavar="URI", help="Register a key that is in a PKCS#11 token.")
@click.option("--unencrypted", is_flag=True, help="Without a passphrase, for a machine's signer.")
@click.pass_obj
def new_signer(
    console: Console, *, name: str, file: Path, uri: str | None, unencrypted: bool
) -> CommandResult:
    """Make a signer, and print its public key.

    The key is encrypted if a passphrase can be asked for, or if TSUKU_LLM_PASSPHRASE_FILE or
    TSUKU_LLM_PASSPHRASE gives one. Only its holder can read FILE. The public key goes into [keys]
    of repository.toml.
    """
    secrets = Passphrases(os.environ, asking(console))
    if uri is not None:
        public = register_token(name, file, uri, secrets)
    else:
        public = make_signer(name, file, None if unencrypted else secrets.new(name))
    line = key_line(name, public)
    answer = {"name": name, "scheme": public.scheme, "public": public.keyval["public"]}
    return CommandResult({**answer, "line": line}, (line,))


def _caught_up(plan: Plan, into: Path) -> Plan:
    copy = RepositoryFolder(into)
    if copy.read(FIRST_ROOT) is None:
        return plan
    roles = verify(copy, first_root(copy)).roles
    return caught_up(plan, {name: state.version for name, state in roles.items()})


def _sign(  # noqa: PLR0913, PLR0917 - the options of both commands
    console: Console,
    plan: Plan,
    data: Path,
    trusted_root: Path | None,
    into: Path,
    gather: Path | None,
    dropping: tuple[str, ...],
) -> CommandResult:
    notes: list[str] = []

    def say(line: str) -> None:
        notes.append(line)
        tell(console, line)

    releases = release_files(plan, data, trusted_root)
    for tag in require_kept(plan.revoked, releases, RepositoryFolder(into), dropping):
        say(f"{tag}: its revocation is dropped; only clients that saw it remember it")
    ceremony = Ceremony(plan, releases, load_signers(ask=asking(console)), say)
    if gather:
        ceremony.in_turn(into, gather)
    else:
        ceremony.alone(into)
    if plan != load_plan(data):
        save_roles(plan, data)
    return CommandResult(_signed(into, plan, notes))


def _signed(into: Path, plan: Plan, notes: Sequence[str] = ()) -> documents.SignedAnswer:
    """Return what was signed for programs."""
    versions = {name: role.version for name, role in plan.roles.items()}
    return {"folder": into, "versions": versions, "notes": notes}
