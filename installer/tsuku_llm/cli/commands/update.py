"""The command ``update``: for a person, and for a timer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult, ReportedError
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.errors import StoreError, TsukuError, UsageError
from tsuku_llm.ground.files import write_output
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    from tsuku_llm.steps.session import Session


@click.command(
    "update",
    cls=Command,
    examples={
        f"{TSUKU} update --check": "Show whether there is something newer.",
        f"{TSUKU} update --unattended": "Update, restart the servers, and go back if they do "
        "worse.",
        f"{TSUKU} update --systemd-unit --window 02:00-05:00 --output ~/.config/systemd/user": ""
        "Let a timer do that each night.",
        f"{TSUKU} rollback": "Go back to the version before the update.",
    },
)
@click.option("--check", is_flag=True, help="Show what an update would change; change nothing.")
@click.option(
    "--unattended",
    is_flag=True,
    help="Also restart the servers in the background, check them, and go back if they do worse "
    "(exit code 9).",
)
@click.option(
    "--retry", is_flag=True, help="Also take releases that were rolled back on this machine."
)
@click.option(
    "--metrics",
    type=options.FILE,
    metavar="FILE",
    help="With --unattended: write metrics into FILE, for a node exporter to collect.",
)
@click.option(
    "--systemd-unit",
    "unit",
    is_flag=True,
    help="Print a systemd service and timer for --unattended; change nothing.",
)
@click.option(
    "--window",
    metavar="FROM-TO",
    help="With --systemd-unit: update at a random time in this part of the day, such as "
    "02:00-05:00.",
)
@click.option(
    "--output",
    type=options.FILE,
    metavar="FOLDER",
    help="With --systemd-unit: write the files into FOLDER.",
)
@options.setting("channel")
@options.setting("repository")
@options.yes
@click.pass_obj
def update_command(
    console: Console,
    *,
    check: bool,
    unattended: bool,
    retry: bool,
    metrics: Path | None,
    unit: bool,
    window: str | None,
    output: Path | None,
    channel: str | None,
    repository: str | None,
    yes: bool,
) -> CommandResult:
    """Update to the newest release of the channel."""
    _refuse_wrong_use(
        {"--check": check, "--unattended": unattended, "--systemd-unit": unit},
        {"--window": window, "--output": output},
        metrics=metrics,
    )
    if unit:
        from tsuku_llm.cli.services.timer import timer

        with open_session(console, looking=True, channel=channel, repository=repository) as session:
            named = {"channel": channel, "repository": repository}
            return timer(session, named, window=window, metrics=metrics, output=output)
    with open_session(
        console,
        agreed=yes or unattended,
        channel=channel,
        repository=repository,
    ) as session:
        if retry:
            from tsuku_llm.steps.servers.unattended import forget_rolled_back

            forget_rolled_back(session.paths.data)
        return _unattended(session, metrics) if unattended else _attended(session, check=check)


def _refuse_wrong_use(
    ways: dict[str, bool], of_units: dict[str, object], *, metrics: Path | None
) -> None:
    """Refuse options that do not go together."""
    chosen = [flag for flag, wanted in ways.items() if wanted]
    if len(chosen) > 1:
        raise UsageError(f"{chosen[0]} and {chosen[1]} cannot be combined", hint="omit one of them")
    lost = [option for option, value in of_units.items() if value is not None]
    if lost and not ways["--systemd-unit"]:
        raise UsageError(f"{lost[0]} is only for units", hint="add --systemd-unit")
    if metrics and not (ways["--unattended"] or ways["--systemd-unit"]):
        raise UsageError("--metrics is only for an unattended update", hint="add --unattended")


def _attended(session: Session, *, check: bool) -> CommandResult:
    from tsuku_llm.cli.render import install as render
    from tsuku_llm.steps.install.update import UpToDate, check_update, update

    if check:
        checked = check_update(session)
        return CommandResult(checked, render.update_lines(checked))
    report = update(session)
    if isinstance(report, UpToDate):
        return CommandResult(report, render.up_to_date_lines(report))
    return CommandResult(report, render.lines(report), next_step=render.next_step(report))


def _unattended(session: Session, metrics: Path | None) -> CommandResult:
    from tsuku_llm.cli.render.services import unattended as render
    from tsuku_llm.steps.servers.unattended import unattended_update

    now = session.machine.now
    try:
        report = unattended_update(session)
    except TsukuError as error:
        # Without this, a machine that fails each night would look like one that is asleep.
        if metrics:
            try:
                write_output(metrics, render.metrics(None, error.exit_code, now))
            except StoreError as unwritten:
                # What ended the update matters more.
                session.user.note(f"{metrics} was not written: {'; '.join(unwritten.facts)}")
        raise
    failure = render.failure(report)
    code = failure.exit_code if failure else 0
    if metrics:
        write_output(metrics, render.metrics(report, code, now))
    return CommandResult(
        report,
        render.lines(report),
        exit_code=code,
        failure=ReportedError.of(failure) if failure else None,
    )
