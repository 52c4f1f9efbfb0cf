"""The command ``mirror``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult, ReportedError
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.cli.terminal.text import listed, size
from tsuku_llm.ground.errors import TamperedMirror, UsageError
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    from tsuku_operator.mirror.mirror import MirrorCheck, MirroredFile, MirrorReport
    from tsuku_operator.mirror.mirror_folder import Swept


@click.command(
    "mirror",
    cls=Command,
    examples={
        f"{TSUKU} mirror /srv/llm": "Copy everything that the repository offers.",
        f"{TSUKU} mirror /srv/llm --platform linux-amd64 --channel stable": "Copy a part of it.",
        f"{TSUKU} mirror /srv/llm --hardware host1.json --hardware host2.json": "Copy the builds "
        "that fit these machines.",
        f"{TSUKU} mirror /srv/llm --check": "Verify what is there.",
        f"{TSUKU} mirror --to oci://registry.example/llm/mirror": "Push the copy to a registry.",
    },
)
@click.argument("folder", type=options.FILE, metavar="[DIR]", required=False)
@click.option(
    "--to",
    "registry",
    metavar="URL",
    help="Push to oci://HOST/NAME or oci://HOST/NAME:TAG, in place of DIR.",
)
@options.repeated(
    "--platform", "platforms", "Copy only builds for this platform, such as linux-amd64"
)
@options.repeated("--channel", "channels", "Copy only releases of this channel")
@options.repeated("--backend", "backends", "Copy only builds of this backend or variant")
@options.repeated("--release", "releases", "Copy only this release", "TAG")
@options.repeated(
    "--hardware",
    "machines",
    "Copy only builds that fit a machine that probe --record wrote to FILE",
    "FILE",
)
@options.setting("repository")
@click.option("--prune", is_flag=True, help="Remove what the mirror does not need any more.")
@click.option("--check", is_flag=True, help="Verify what is there; use no network, change nothing.")
@click.option("--dry-run", is_flag=True, help="Show what would be fetched; use no network.")
@click.pass_obj
def mirror_command(
    console: Console,
    *,
    folder: Path | None,
    registry: str | None,
    platforms: tuple[str, ...],
    channels: tuple[str, ...],
    backends: tuple[str, ...],
    releases: tuple[str, ...],
    machines: tuple[Path, ...],
    repository: str | None,
    prune: bool,
    check: bool,
    dry_run: bool,
) -> CommandResult:
    """Copy a repository and its archives for other machines.

    Serve DIR with a web server or a share, and name it in llm.mirror there. A registry is named in
    llm.mirror as it is in --to.
    """
    from tsuku_operator.mirror.mirror import check_mirror, mirror
    from tsuku_operator.mirror.mirror_choice import Narrowing
    from tsuku_operator.mirror.registry_mirror import push_mirror

    narrow = Narrowing(platforms, channels, backends, releases, machines)
    with open_session(console, repository=repository) as session:
        if (folder is None) == (registry is None):
            raise UsageError(
                "name one place for the mirror: a folder, or a registry with --to",
                hint=f"see: {TSUKU} mirror --help",
            )
        if check and (prune or dry_run or narrow != Narrowing()):
            raise UsageError(
                "--check looks at the whole mirror, and changes nothing",
                hint="give it without --prune, --dry-run and options that narrow a copy",
            )
        if prune and dry_run:
            raise UsageError("--prune and --dry-run cannot be combined", hint="omit one of them")
        if folder is None and (check or prune):
            raise UsageError(
                "--check and --prune are for a folder: a registry does both by itself",
                hint="it hashes what it gets, and its garbage collection removes what no tag needs",
            )
        if folder is None or registry is not None:
            report = push_mirror(session, registry or "", narrow, dry_run=dry_run)
            return CommandResult(report, _lines(report))
        if check:
            found = check_mirror(session, folder)
            failure = _check_failure(found)
            return CommandResult(
                found,
                _check_lines(found),
                exit_code=TamperedMirror.exit_code if failure else 0,
                failure=failure,
            )
        report = mirror(session, folder, narrow, prune=prune, dry_run=dry_run)
    return CommandResult(report, _lines(report))


def _lines(report: MirrorReport) -> tuple[str, ...]:
    """Return what a mirror has, for people."""
    name, count = report.repository, report.artifacts
    holds = f"{count} archives of {len(report.releases)} releases, {_sum(report.archives)}"
    came = f"{len(report.fetched)} archives, {_sum(report.fetched)}"
    first = {
        "planned": f"The mirror {report.place} of {name} would have {holds}; to fetch: {came}.",
        "updated": f"The mirror {report.place} of {name} has {holds}; fetched: {came}.",
        "unchanged": f"The mirror {report.place} of {name} is up to date: {holds}.",
    }[report.outcome]
    told = [first]
    if report.outcome == "planned":
        told += [f"  {each.name}  {size(each.size)}" for each in report.fetched]
    if swept := report.swept:
        told.append(f"Removed {len(swept.unused)} files that nothing needs, {size(swept.size)}.")
        told += _foreign(swept)
    return tuple(told)


def _sum(files: Sequence[MirroredFile]) -> str:
    known = [each.size for each in files if each.size is not None]
    return ("at least " if len(known) < len(files) else "") + size(sum(known))


def _check_lines(found: MirrorCheck) -> tuple[str, ...]:
    """Return what a check found, for people."""
    hashed = f"{found.artifacts} archives, {size(found.size)}"
    state = "intact" if found.intact else "not intact"
    told = [f"The mirror {found.place} of {found.repository} is {state}: {hashed}."]
    if found.swept.unused:
        told.append(
            f"{len(found.swept.unused)} files are not needed any more: --prune removes them."
        )
    return (*told, *_foreign(found.swept))


def _foreign(swept: Swept) -> tuple[str, ...]:
    return listed("not of this program, and left alone:", swept.foreign) if swept.foreign else ()


def _check_failure(found: MirrorCheck) -> ReportedError | None:
    """Return the error of a mirror that is not intact, or None."""
    if found.intact:
        return None
    return ReportedError(
        TamperedMirror.slug,
        f"the mirror {found.place} is not as it was signed",
        found.differences,
        "remove files that are not as they were signed; then run the command again that made the "
        "mirror, with the same options",
    )
