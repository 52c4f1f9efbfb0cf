"""Commands that sign, and that make signers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsuku_llm.cli.answer import CommandResult
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_publish.ceremony import (
    Ceremony,
    files_for,
    is_begun,
    next_state,
    published_versions,
    record_since,
    sign_channel,
)
from tsuku_publish.checking import first_root
from tsuku_publish.cli.options import (
    asking,
    channel_option,
    data_option,
    drop_option,
    gather_option,
    into_option,
    issued_option,
    root_option,
    tell,
)
from tsuku_publish.cli.review import review_lines
from tsuku_publish.copies import RepositoryFolder
from tsuku_publish.documents import ReleaseFile
from tsuku_publish.errors import PublishError
from tsuku_publish.folder import locked, write
from tsuku_publish.keys import key_line
from tsuku_publish.passphrases import Passphrases
from tsuku_publish.plan import (
    ONLINE,
    TARGETS,
    Plan,
    caught_up,
    load_plan,
    raised,
    save_roles,
    with_signers,
)
from tsuku_publish.review import Review, review
from tsuku_publish.revoked import require_kept
from tsuku_publish.signers import load_signers, make_signer, register_token
from tsuku_publish.signing import Signers, due_roles
from tsuku_publish.signing import sign as signed_files

if TYPE_CHECKING:
    from tsuku_publish.cli import documents


@click.command(cls=Command)
@data_option
@root_option
@into_option
@issued_option
@gather_option
@drop_option
@channel_option
@click.option("--raise", "higher", is_flag=True, help="With the next version of what changes.")
@click.option("--yes", is_flag=True, help="Sign without a question.")
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
    channel: str | None,
    higher: bool,
    yes: bool,
) -> CommandResult:
    """Make the repository, and sign it.

    It shows what would change, and asks on a terminal. TSUKU_LLM_SIGNERS names the file of the
    signers. A channel with its own signers stays as it is published; they sign its next state with
    --channel.
    """
    now = issued.replace(tzinfo=timezone.utc)
    into = into or load_plan(data).signed
    if channel and gather is None:
        signers = load_signers(ask=asking(console))
        with locked(data):
            plan = sign_channel(data, channel, signers, now, into, trusted_root)
        line = f"{into}: {channel} {plan.roles[channel].version} is signed"
        return CommandResult(_signed(into, plan, (line,)), (line,))
    order = _Order(console, data, into, gather, dropping, now)
    asked = (data, into, now, trusted_root, gather, channel)
    shown: Review | None = None
    if console.can_ask and not yes:
        # Without the lock: a person reads for longer than a job can wait.
        shown = order.show(*next_state(*asked, higher=higher))
        if not console.ask("Sign this?"):
            raise PublishError("nothing was signed")
    signers = load_signers(ask=asking(console))
    with locked(data):
        state = next_state(*asked, higher=higher)
        if shown is None:
            order.show(*state)
        elif not shown.agrees(order.review(*state)):
            raise PublishError("other content is to be signed by now: run sign again")
        return order.done(*state, signers)


@click.command(cls=Command)
@data_option
@into_option
@issued_option
@click.pass_obj
def resign(console: Console, *, data: Path, into: Path | None, issued: datetime) -> CommandResult:
    """Sign snapshot and timestamp again, every week.

    Only the online signer is needed.
    """
    # Before the lock: a person may have to type a passphrase.
    signers = load_signers(ask=asking(console))
    with locked(data):
        plan = load_plan(data)
        into = into or plan.signed
        copy = RepositoryFolder(into)
        first_root(copy)
        plan = raised(caught_up(plan, published_versions(into)), issued.date(), ONLINE)
        write(into, signed_files(plan, (), signers, copy, roles=()))
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

    A ROLE is root, targets, online, or a channel with its own signers. The old signers of root sign
    the next one, too; a channel needs no next root, but the signers of targets. The public keys of
    the new ones are in [keys] of repository.toml.
    """
    parts = (change.partition("=") for change in changes)
    signers = {role: names.split(",") for role, _, names in parts}
    now = issued.replace(tzinfo=timezone.utc)
    at_hand = load_signers(ask=asking(console))
    with locked(data):
        plan = load_plan(data)
        into = into or plan.signed
        if gather and is_begun(gather, into):
            raise PublishError(f"{gather} has signatures already: go on with sign")
        plan = with_signers(caught_up(plan, published_versions(into)), signers)
        roles = due_roles(plan, RepositoryFolder(into))
        # Other signers of a channel are named by targets; those of the four roles by root.
        of_root = () if signers.keys() <= {*plan.delegated} else ("root",)
        plan = raised(plan, now.date(), (*of_root, *roles[1:], *ONLINE))
        files = files_for(plan, roles, data, trusted_root, into)
        order = _Order(console, data, into, gather, dropping, now)
        order.show(plan, roles, files)
        return order.done(plan, roles, files, at_hand)


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
    found: documents.NewSignerAnswer = {
        "name": name,
        "scheme": public.scheme,
        "public": public.keyval["public"],
        "line": line,
    }
    return CommandResult(found, (line,))


Roles = tuple[str, ...]
Files = tuple[ReleaseFile, ...]


@dataclass(frozen=True, slots=True)
class _Order:
    """What both commands of people were asked to sign, and where it goes."""

    console: Console
    data: Path
    into: Path
    gather: Path | None
    dropping: tuple[str, ...]
    now: datetime

    def review(self, plan: Plan, roles: Roles, files: Files) -> Review:
        """Compare with what is published."""
        return review(plan, roles, files, RepositoryFolder(self.into))

    def show(self, plan: Plan, roles: Roles, files: Files) -> Review:
        """Print what the signature would change, and return it."""
        found = self.review(plan, roles, files)
        if found.roles or found.releases:
            for line in review_lines(found):
                tell(self.console, line)
        return found

    def done(self, plan: Plan, roles: Roles, files: Files, signers: Signers) -> CommandResult:
        """Sign these roles of a plan with the signers at hand."""
        notes: list[str] = []

        def say(line: str) -> None:
            notes.append(line)
            tell(self.console, line)

        published = RepositoryFolder(self.into)
        if TARGETS in roles:
            for tag in require_kept(plan.revoked, files, published, self.dropping):
                say(f"{tag}: its revocation is dropped; only clients that saw it remember it")
        ceremony = Ceremony(plan, files, signers, say, roles)
        if self.gather is None:
            ceremony.alone(self.into)
            if plan != load_plan(self.data):
                save_roles(plan, self.data)
            record_since(self.data, plan, files)
        else:
            plan = ceremony.in_turn(self.into, self.gather, self.data, self.now) or plan
        return CommandResult(_signed(self.into, plan, notes))


def _signed(into: Path, plan: Plan, notes: Sequence[str] = ()) -> documents.SignedAnswer:
    """Return what was signed for programs."""
    versions = {name: role.version for name, role in plan.roles.items()}
    return {"folder": into, "versions": versions, "notes": notes}
