"""The commands ``fleet plan|apply|status``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Group
from tsuku_llm.cli.terminal.answer import CommandResult, ReportedError
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.cli.terminal.text import table
from tsuku_llm.ground.errors import FleetFailed, UsageError

if TYPE_CHECKING:
    from tsuku_operator.fleet.fleet import FleetHost

F = TypeVar("F", bound=Callable[..., Any])


def _hosts(command: F) -> F:
    """Add the options that say which hosts."""
    inventory = click.option(
        "-i",
        "--inventory",
        metavar="INVENTORY",
        required=True,
        help="Ansible's inventory: a file, a folder, or hosts with commas.",
    )
    limit = click.option("--limit", metavar="PATTERN", help="Only hosts that match PATTERN.")
    return inventory(limit(command))


def _wanted(command: F) -> F:
    """Add the options that say which build."""
    update = click.option(
        "--update",
        is_flag=True,
        help="Move to newer releases, in batches; a batch in which a host fails goes back.",
    )
    of_build = (options.setting("backend"), options.setting("channel"), options.release)
    for option in (*reversed(of_build), update):
        command = option(command)
    return command


@click.group("fleet", cls=Group)
def fleet_command() -> None:
    """Install and update builds on many machines, through Ansible."""


@fleet_command.command("status")
@_hosts
@click.pass_obj
def status(console: Console, /, **asked: Any) -> CommandResult:
    """Show the GPU and the active build of every host."""
    return _run(console, "status", asked)


@fleet_command.command("plan")
@_hosts
@_wanted
@click.pass_obj
def plan(console: Console, /, **asked: Any) -> CommandResult:
    """Show what apply would change on every host; change nothing."""
    return _run(console, "plan", asked)


@fleet_command.command("apply")
@_hosts
@_wanted
@click.pass_obj
def apply(console: Console, /, **asked: Any) -> CommandResult:
    """Install the build that fits on every host.

    A build that fits and is active stays, unless you add --update.
    """
    return _run(console, "apply", asked)


def _run(console: Console, action: str, asked: dict[str, Any]) -> CommandResult:
    from tsuku_llm.cli.session import open_session
    from tsuku_operator.fleet.fleet import FleetRequest, run_fleet

    for name in ("backend", "channel"):
        if asked.get(name) == "":
            hint = f"to give no value: leave --{name} out"
            raise UsageError(f"--{name} must not be empty", hint=hint)
    with open_session(console) as session:
        hosts = run_fleet(session, action, FleetRequest(**asked), console.note)
    failure = _failure(hosts)
    return CommandResult(
        {"hosts": hosts},
        lines(hosts),
        exit_code=FleetFailed.exit_code if failure else 0,
        failure=failure,
    )


_HEAD = ("host", "GPU", "variant", "release", "state", "reason")


def lines(hosts: Sequence[FleetHost]) -> tuple[str, ...]:
    """Return every host in one line of a table; what is not known is a dash."""
    rows = [
        (
            each.host,
            each.device or "-",
            each.variant or "-",
            each.release or "-",
            each.state,
            each.reason or "",
        )
        for each in hosts
    ]
    return table([_HEAD, *rows], indent=0)


def _failure(hosts: Sequence[FleetHost]) -> ReportedError | None:
    """Return the error of a fleet in which a host failed; None if all are well."""
    bad = [each for each in hosts if not each.is_well]
    if not bad:
        return None
    facts = tuple(f"{each.host}: {each.state}: {each.reason or 'no reason'}" for each in bad)
    many = f"{len(bad)} of {len(hosts)} hosts" if len(hosts) > 1 else "the host"
    was = "was" if len(bad) == 1 else "were"
    error = FleetFailed(f"{many} failed or {was} not reached", facts=facts)
    return ReportedError.of(error)
