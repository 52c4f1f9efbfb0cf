"""Commands that record facts and revocations."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import click

from tsuku_llm.cli.command import Command
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.foreign import read_foreign
from tsuku_publish.cli.options import DAY, FILE, FOLDER, data_option, root_option, tell, today
from tsuku_publish.errors import reading
from tsuku_publish.release_files import revoked
from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.release_files.refresh import Refresh
from tsuku_publish.release_files.releases import known_document, with_same_builds
from tsuku_publish.repository.folder import locked
from tsuku_publish.upstream import attestations
from tsuku_publish.upstream.classify import load_rules, require_rules

day_option = click.option(
    "--on", "day", type=DAY, metavar="DAY", default=today, help="Since when; today."
)


@click.command(cls=Command)
@data_option
@click.argument("tag")
@click.option(
    "--answer", type=FILE, metavar="FILE", help="The hosting service's answer, from a file."
)
@click.option("--download", is_flag=True, help="Read every archive: its files and its needs.")
@click.option(
    "--from", "folder", type=FOLDER, metavar="FOLDER", help="Read the archives in this folder."
)
@click.option("--unmeasured", metavar="REASON", help="Why its archives cannot be read.")
@click.pass_obj
def refresh(
    console: Console,
    *,
    data: Path,
    tag: str,
    answer: Path | None,
    download: bool,
    folder: Path | None,
    unmeasured: str | None,
) -> CommandResult:
    """Record what upstream published under a tag.

    The records are in facts/ of the data.
    """
    notes: list[str] = []

    def say(line: str) -> None:
        notes.append(line)
        tell(console, line)

    require_rules(data)
    work = Refresh(data, os.environ, say)
    recorded = None
    if answer:
        with reading(answer):
            recorded = read_foreign(answer)
    work.record(tag, recorded, unmeasured)
    if download or folder:
        work.read_archives(tag, folder)
    found = {"release": tag, "notes": notes}
    return CommandResult(found)


@click.command(cls=Command)
@data_option
@root_option
@click.argument("tag")
@click.option(
    "--bundle",
    "bundles",
    type=FILE,
    metavar="FILE",
    multiple=True,
    help="Its attestations, from a file.",
)
@click.option("--unattested", metavar="REASON", help="Why its origin cannot be verified.")
def attest(
    *,
    data: Path,
    trusted_root: Path | None,
    tag: str,
    bundles: tuple[Path, ...],
    unattested: str | None,
) -> CommandResult:
    """Verify who built a release, and record the proofs.

    The proofs are in facts/ of the data, and are verified again when the release is signed.
    """
    require_rules(data)
    if unattested is not None:
        attestations.excuse(data, tag, unattested)
        number, source = 0, None
        line = f"{tag}: not attested, and its release file says so"
    else:
        rules, proofs = load_rules(data), []
        for path in bundles:
            with reading(path):
                proofs.append(read_foreign(path))
        number = attestations.prove(data, rules, os.environ, tag, proofs, trusted_root)
        source = rules.attestation["repository"]
        line = f"{tag}: {number} archives come from {source}"
    found = {
        "release": tag,
        "archives": number,
        "source": source,
        "unattested": unattested,
    }
    return CommandResult(found, (line,))


@click.command(cls=Command)
@data_option
@day_option
@click.argument("tag")
@click.option("--reason", metavar="TEXT", required=True, help="What users are told, in one line.")
@click.option("--by-name", is_flag=True, help="Also if its files are not in the data any more.")
@click.pass_obj
def revoke(
    console: Console, *, data: Path, day: datetime, tag: str, reason: str, by_name: bool
) -> CommandResult:
    """Record that a release must not be used any more.

    Clients refuse it after: sign --raise, publish.
    """
    with locked(data):
        load_plan(data)  # a folder without a sound plan has nothing to revoke
        document = None if by_name else known_document(tag, data)
        same = with_same_builds(document, data) if document else []
        revoked.revoke(data, tag, reason, day.date(), document)
    if same:
        console.note(
            f"warning: {', '.join(same)} has builds of {tag}; clients refuse the same builds under "
            "every name"
        )
    if f"{day:%Y-%m-%d}" > today():
        console.note(
            f"warning: {day:%Y-%m-%d} has not come yet (UTC); clients refuse {tag} as soon as they "
            "see the list, and it cannot be withdrawn before that day"
        )
    line = f"{tag} is revoked from {day:%Y-%m-%d} on: sign --raise, then publish"
    found = {
        "release": tag,
        "date": f"{day:%Y-%m-%d}",
        "reason": reason,
    }
    return CommandResult(found, (line,))


@click.command(cls=Command)
@data_option
@day_option
@click.argument("tag")
def withdraw(*, data: Path, day: datetime, tag: str) -> CommandResult:
    """Record that a revocation was a mistake.

    Clients end it after: sign --raise, publish.
    """
    with locked(data):
        load_plan(data)
        revoked.withdraw(data, tag, day.date())
    line = f"{tag}: its revocation is withdrawn: sign --raise, then publish"
    found = {"release": tag, "withdrawn": f"{day:%Y-%m-%d}"}
    return CommandResult(found, (line,))
