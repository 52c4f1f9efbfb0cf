"""The commands ``bundle create|show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command, Group
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.cli.terminal.text import size, table
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    from tsuku_operator.bundle.bundle import BundleReport


@click.group("bundle", cls=Group)
def bundle_command() -> None:
    """Put the program and builds for other machines into one file."""


@bundle_command.command(
    "create",
    cls=Command,
    examples={
        f"{TSUKU} bundle create machines.bundle": "For machines like this one.",
        f"{TSUKU} bundle create FILE --hardware one.json --hardware two.json": (
            "For these machines."
        ),
        f"{TSUKU} bundle create machines.bundle --platform linux-amd64 --backend vulkan": "For "
        "every machine that the Vulkan build fits.",
    },
)
@click.argument("file", type=options.FILE)
@options.repeated("--platform", "platforms", "Add builds for this platform, such as linux-amd64")
@options.repeated(
    "--hardware",
    "machines",
    "Add builds that fit a machine that probe --record wrote to FILE",
    "FILE",
)
@options.repeated("--backend", "backends", "Take only builds of this backend or variant")
@options.setting("channel")
@options.release
@options.setting("repository")
@options.repeated(
    "--python", "pythons", "Add the program for this Python only, such as 3.11", "VERSION"
)
@click.option(
    "--wheel",
    type=options.FILE,
    metavar="FILE",
    help="Take this wheel of the program, not the running copy.",
)
@click.option(
    "--no-program", is_flag=True, help="Leave the program out: the machines have it already."
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--dry-run", is_flag=True, help="Show what it would have; use no network.")
@click.pass_obj
def create(
    console: Console,
    *,
    file: Path,
    platforms: tuple[str, ...],
    machines: tuple[Path, ...],
    backends: tuple[str, ...],
    channel: str | None,
    release: str | None,
    repository: str | None,
    pythons: tuple[str, ...],
    wheel: Path | None,
    no_program: bool,
    force: bool,
    dry_run: bool,
) -> CommandResult:
    """Make a bundle, to be installed without a network: sh FILE.

    Without --platform and --hardware it is for machines like this one.
    """
    from tsuku_operator.bundle.bundle import create_bundle
    from tsuku_operator.bundle.bundle_choice import BundleWish

    if no_program and (wheel is not None or pythons):
        raise UsageError(
            "--no-program cannot be combined with --wheel and --python",
            hint="leave --no-program out, or the others",
        )
    wish = BundleWish(
        platforms, machines, backends, release, pythons, program=not no_program, wheel=wheel
    )
    with open_session(
        console,
        probes=not (machines or platforms),
        channel=channel,
        repository=repository,
    ) as session:
        report = create_bundle(session, file, wish, force=force, dry_run=dry_run)
    return CommandResult(report, _lines(report))


@bundle_command.command("show")
@click.argument("file", type=options.FILE)
@click.pass_obj
def show(console: Console, *, file: Path) -> CommandResult:
    """Show what a bundle has, and whether it is whole.

    Nothing of it is verified: install does that.
    """
    from tsuku_operator.bundle.bundle import show_bundle

    with open_session(console, looking=True):
        report = show_bundle(file)
    return CommandResult(report, _lines(report))


def _lines(report: BundleReport) -> tuple[str, ...]:
    """Return what a bundle has, for people."""
    about, count = report.description, len(report.description.artifacts)
    holds = f"{len(about.builds)} builds in {count} archives of {about.repository}"
    first = {
        "planned": f"The bundle {report.path} would have {holds}, at least {size(report.size)}.",
        "created": f"Made the bundle {report.path}: {holds}, {size(report.size)}.",
        "shown": f"The bundle {report.path} is whole: {holds}, {size(report.size)}.",
    }[report.outcome]
    told = [first]
    rows = [(each.release, each.platform, each.variant, each.channel) for each in about.builds]
    told += table((("release", "platform", "variant", "channel"), *rows))
    for each in about.programs:
        needs = f", glibc {each.glibc} or newer" if each.glibc else ""
        told.append(f"  tsuku-llm {about.made_by} for {each.platform}, Python {each.python}{needs}")
    if not about.programs and report.outcome != "planned":
        told.append("  without the program: install it there first")
    told.append(f"  its signed metadata expires: {about.expires}")
    if report.sha256:
        told += [f"  sha256: {report.sha256}", f"  root of {about.repository}: {about.fingerprint}"]
    return tuple(told)
