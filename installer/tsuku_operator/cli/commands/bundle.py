"""The commands ``bundle create|show``."""

from __future__ import annotations

from pathlib import Path

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command, Group
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.own_name import TSUKU


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
    from tsuku_operator.cli.render import bundle as render

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
    return CommandResult(report, render.lines(report))


@bundle_command.command("show")
@click.argument("file", type=options.FILE)
@click.pass_obj
def show(console: Console, *, file: Path) -> CommandResult:
    """Show what a bundle has, and whether it is whole.

    Nothing of it is verified: install does that.
    """
    from tsuku_operator.bundle.bundle import show_bundle
    from tsuku_operator.cli.render import bundle as render

    with open_session(console, looking=True):
        report = show_bundle(file)
    return CommandResult(report, render.lines(report))
