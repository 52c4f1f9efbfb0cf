"""Commands that sign, and that make signers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import click

from tsuku_llm.cli.command import Command
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_publish.cli.options import (
    FILE,
    asking,
    channel_option,
    data_option,
    drop_option,
    gather_option,
    into_option,
    issued_option,
    offline_option,
    published_at,
    published_option,
    root_option,
    seen_at,
    tell,
    yes_option,
)
from tsuku_publish.cli.review import review_lines
from tsuku_publish.errors import PublishError
from tsuku_publish.holders.keys import key_line, load_public_keys, require_signer_name
from tsuku_publish.holders.passphrases import Passphrases
from tsuku_publish.holders.signers import load_signers, make_signer, register_token
from tsuku_publish.release_files.plan import (
    ONLINE,
    TARGETS,
    Plan,
    caught_up,
    load_plan,
    raised,
    with_keys,
    with_signers,
    with_versions,
)
from tsuku_publish.release_files.releases import release_files
from tsuku_publish.release_files.revoked import require_kept
from tsuku_publish.repository.copies import RepositoryFolder
from tsuku_publish.repository.folder import locked, require_own
from tsuku_publish.signing.ceremony import (
    is_begun,
    next_of_channel,
    next_state,
    published_versions,
    require_able,
    sign_again,
    sign_alone,
    sign_in_turn,
    vouching,
)
from tsuku_publish.signing.published import ServedState, require_not_behind
from tsuku_publish.signing.review import Review, review
from tsuku_publish.signing.signing import NextState, Signers, due_roles


@click.command(cls=Command)
@data_option
@root_option
@into_option
@issued_option
@gather_option
@drop_option
@channel_option
@click.option("--raise", "higher", is_flag=True, help="With the next version of what changes.")
@published_option
@offline_option
@yes_option
@click.pass_obj
def sign(
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
    place: str | None,
    offline: bool,
    yes: bool,
) -> CommandResult:
    """Make the repository, and sign it.

    It looks whether its copy is what is published, shows what would change, and asks. Without a
    terminal, people's signers sign with --yes only. TSUKU_LLM_SIGNERS names the file of the
    signers. A channel with its own signers stays as it is published; they sign its next state with
    --channel, without a question.
    """
    now = issued.replace(tzinfo=timezone.utc)
    into = into or load_plan(data).signed
    if channel and gather is None:
        signers = load_signers(ask=asking(console))
        with locked(data):
            require_own(into)
            state = next_of_channel(data, channel, now, into, trusted_root)
            require_able(state, signers, into)
            sign_alone(state, signers, data, into)
        line = f"{into}: {channel} {state.plan.roles[channel].version} is signed"
        return CommandResult(_signed(into, state.plan, (line,)), (line,))
    there = published_at(place, into, load_plan(data), seen_at("issued"), offline=offline)
    order = _Order(console, data, into, gather, dropping, now, there)
    asked = (data, into, now, trusted_root, gather, channel)
    return order.carry_out(lambda: next_state(*asked, higher=higher), yes=yes)


@click.command(cls=Command)
@data_option
@into_option
@issued_option
@click.pass_obj
def resign(console: Console, *, data: Path, into: Path | None, issued: datetime) -> CommandResult:
    """Sign what is published again, every week.

    Every role gets a new day whose signers are at hand: snapshot, timestamp, each channel, targets,
    and root once half of its time is over. Nothing else changes. The online signer is needed; a
    line names each role that stays as it is, and until when it is valid.
    """
    # Before the lock: a person may have to type a passphrase.
    signers = load_signers(ask=asking(console))
    now = issued.replace(tzinfo=timezone.utc)
    with locked(data):
        into = into or load_plan(data).signed
        require_own(into)
        plan, signed, notes = sign_again(data, signers, now, into)
    told = ", ".join(f"{role} {plan.roles[role].version}" for role in signed)
    return CommandResult(_signed(into, plan, notes), (f"{into}: signed again: {told}", *notes))


@click.command(cls=Command)
@data_option
@root_option
@into_option
@issued_option
@gather_option
@drop_option
@click.option(
    "--keys",
    "key_files",
    type=FILE,
    metavar="FILE",
    multiple=True,
    help="Lines that new-signer printed: the public keys of new signers.",
)
@click.option(
    "--new-channel", is_flag=True, help="ROLE is a channel that gets its own signers now."
)
@published_option
@offline_option
@yes_option
@click.argument("changes", nargs=-1, required=True, metavar="ROLE=NAME,NAME,NAME...")
@click.pass_obj
def rotate(
    console: Console,
    *,
    data: Path,
    trusted_root: Path | None,
    into: Path | None,
    issued: datetime,
    gather: Path | None,
    dropping: tuple[str, ...],
    key_files: tuple[Path, ...],
    new_channel: bool,
    place: str | None,
    offline: bool,
    yes: bool,
    changes: tuple[str, ...],
) -> CommandResult:
    """Replace the signers of roles, in a next root.

    A ROLE is root, targets, online, or a channel with its own signers. The old signers of root sign
    the next one, too; a channel needs no next root, but the signers of targets. The public keys of
    the new ones come from --keys, or from [keys] of repository.toml. It shows what would change,
    and asks, as sign.
    """
    parts = (change.partition("=") for change in changes)
    signers = {role: [name for name in names.split(",") if name] for role, _, names in parts}
    new_keys = load_public_keys(key_files)
    now = issued.replace(tzinfo=timezone.utc)
    into = into or load_plan(data).signed

    def state() -> NextState:
        plan = load_plan(data)
        if gather and is_begun(gather, into):
            raise PublishError(f"{gather} has signatures already: go on with sign")
        plan = with_keys(caught_up(plan, published_versions(into)), new_keys)
        plan = with_signers(plan, signers, new_channel=new_channel)
        roles = due_roles(plan, RepositoryFolder(into))
        # Other signers of a channel are named by targets; those of the four roles by root.
        of_root = () if signers.keys() <= {*plan.delegated} else ("root",)
        plan = raised(plan, now.date(), (*of_root, *roles[1:], *ONLINE))
        return NextState(plan, roles, release_files(plan, data, trusted_root, roles, (into,)))

    there = published_at(place, into, load_plan(data), seen_at("issued"), offline=offline)
    return _Order(console, data, into, gather, dropping, now, there).carry_out(state, yes=yes)


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

    The key is encrypted with a passphrase that is asked for, or that TSUKU_LLM_PASSPHRASE_FILE or
    TSUKU_LLM_PASSPHRASE gives. Only its holder can read FILE. The public key goes into [keys] of
    repository.toml.
    """
    require_signer_name(name)
    secrets = Passphrases(os.environ, asking(console))
    if uri is not None:
        public = register_token(name, file, uri, secrets)
    else:
        public = make_signer(name, file, None if unencrypted else secrets.new(name))
    line = key_line(name, public)
    found = {
        "name": name,
        "scheme": public.scheme,
        "public": public.keyval["public"],
        "line": line,
    }
    return CommandResult(found, (line,))


@dataclass(frozen=True, slots=True)
class _Order:
    """What both commands of people were asked to sign, and where it goes."""

    console: Console
    data: Path
    into: Path
    gather: Path | None
    dropping: tuple[str, ...]
    now: datetime
    there: ServedState | None

    def carry_out(self, state: Callable[[], NextState], *, yes: bool) -> CommandResult:
        """Check the signers, show the change, ask, and sign. Raises ``PublishError``.

        ``state`` returns what is to be signed now.
        """
        # Before the review, without any passphrase: nobody reads what they cannot sign.
        signers = load_signers(ask=asking(self.console))
        require_own(self.data, self.into, *filter(None, [self.gather]))
        if yes:
            with locked(self.data):
                now = state()
                self._show(now, signers)
                return self._sign(now, signers)
        # Without the lock: a person reads for longer than a job can wait.
        read = state()
        shown = self._show(read, signers)
        self._ask(read, signers, shown)
        with locked(self.data):
            now = state()
            if not shown.agrees(review(now, RepositoryFolder(self.into))):
                raise PublishError("other content is to be signed by now: run it again")
            # The bytes that were reviewed, from memory: what is in the files now was only compared.
            # The weekly job may have signed meanwhile, so its roles get the versions of now.
            plan = with_versions(read.plan, now.plan, ONLINE)
            return self._sign(replace(read, plan=plan), signers)

    def _show(self, state: NextState, signers: Signers) -> Review:
        """Print what the signature would change, and return it."""
        if self.there:
            require_not_behind(self.there, state, self.into, signers)
        require_able(state, signers, self.into, self.gather)
        found = review(state, RepositoryFolder(self.into))
        if found.roles or found.releases:
            for line in review_lines(found):
                tell(self.console, line)
        return found

    def _ask(self, state: NextState, signers: Signers, shown: Review) -> None:
        """Raise ``PublishError`` unless a person agrees, or only a machine's signers sign."""
        if self.console.can_ask:
            count = shown.alarms
            told = f" with {count} warning{'' if count == 1 else 's'}" if count else ""
            if not self.console.ask(f"Sign this{told}?"):
                raise PublishError("nothing was signed")
        elif names := vouching(state, signers, self.into):
            told = ", ".join(names)
            raise PublishError(
                f"nothing was signed: {told} must agree, and there is no terminal to ask",
                hint="read it with review, then sign on a terminal or with --yes",
            )

    def _sign(self, state: NextState, signers: Signers) -> CommandResult:
        """Sign what was agreed to with the signers at hand."""
        plan, published, notes = state.plan, RepositoryFolder(self.into), list[str]()
        if TARGETS in state.roles:
            notes += [
                f"{tag}: its revocation is dropped; only clients that saw it remember it"
                for tag in require_kept(plan.revoked, state.files, published, self.dropping)
            ]
        if self.gather is None:
            notes.append(sign_alone(state, signers, self.data, self.into))
        else:
            places = (self.data, self.into, self.gather)
            plan, lines = sign_in_turn(state, signers, *places, self.now)
            notes += lines
        for line in notes:
            tell(self.console, line)
        return CommandResult(_signed(self.into, plan, notes))


def _signed(into: Path, plan: Plan, notes: Sequence[str] = ()) -> dict[str, object]:
    """Return what was signed for programs."""
    versions = {name: role.version for name, role in plan.roles.items()}
    return {"folder": into, "versions": versions, "notes": notes}
