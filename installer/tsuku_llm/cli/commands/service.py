"""The commands ``service systemd|launchd|windows``: what starts a server without a person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import ARGV, Group, Launching
from tsuku_llm.cli.commands.serve import FALLBACK, replace, starting, with_model
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    from tsuku_llm.steps.session import Session

_output = click.option(
    "--output", type=options.FILE, metavar="FOLDER", help="Write the files into FOLDER."
)


@click.group("service", cls=Group)
def service_command() -> None:
    """Print what starts a server without a person.

    It starts nothing.
    """


@service_command.command(
    "systemd",
    cls=Launching,
    examples={
        f"{TSUKU} service systemd --output ~/.config/systemd/user -m MODEL.gguf": "Write a unit "
        "of this user.",
        f"{TSUKU} service systemd --on-demand -m MODEL.gguf -- --port 8081": "Print three units: "
        "the first connection starts the server.",
    },
)
@starting
@replace
@click.option(
    "--scope",
    type=click.Choice(["user", "system"]),
    default="user",
    show_default=True,
    help="A service of this user, or of the system.",
)
@click.option("--on-demand", is_flag=True, help="Start at the first connection and end when idle.")
@_output
@click.pass_context
def systemd(
    context: click.Context,
    /,
    *,
    replace: bool,
    scope: str,
    on_demand: bool,
    output: Path | None,
    **start: Any,
) -> CommandResult:
    """Print a systemd unit that serves with these options."""
    from tsuku_llm.cli.services import units

    with _session(context, start) as (session, argv):
        return units.unit(
            session,
            start["name"],
            argv,
            replace=replace,
            system=scope == "system",
            on_demand=on_demand,
            output=output,
        )


@service_command.command(
    "launchd",
    cls=Launching,
    examples={
        f"{TSUKU} service launchd --output ~/Library/LaunchAgents -m MODEL.gguf": "Write an "
        "agent that serves at login.",
        f"{TSUKU} service launchd -m MODEL.gguf -- --port 8081": "Print it.",
    },
)
@starting
@_output
@click.pass_context
def launchd(context: click.Context, /, *, output: Path | None, **start: Any) -> CommandResult:
    """Print an agent of launchd (macOS) that serves at login with these options."""
    return _at_login(context, start, output, windows=False)


@service_command.command(
    "windows",
    cls=Launching,
    examples={
        f"{TSUKU} service windows --output . -m MODEL.gguf -- --port 8081": "Write a task that "
        "serves at logon.",
    },
)
@starting
@_output
@click.pass_context
def windows(context: click.Context, /, *, output: Path | None, **start: Any) -> CommandResult:
    """Print a task of Windows' Task Scheduler that serves at logon with these options."""
    return _at_login(context, start, output, windows=True)


def _at_login(
    context: click.Context, start: dict[str, Any], output: Path | None, *, windows: bool
) -> CommandResult:
    from tsuku_llm.cli.services.login import login_file

    with _session(context, start) as (session, argv):
        return login_file(session, start["name"], argv, windows=windows, output=output)


@contextmanager
def _session(
    context: click.Context, start: dict[str, Any]
) -> Iterator[tuple[Session, tuple[str, ...]]]:
    """Open the session of a start, and give the arguments with the files of its model.

    A wrong address or an unknown model is an error here, and not at each start of the service.
    """
    with open_session(
        context.obj,
        allow_revoked=start["allow_revoked"],
        fallback=FALLBACK[start["fallback"]],
        backend=start["backend"],
        idle_timeout=start["idle_timeout"],
    ) as session:
        from tsuku_llm.launch.plan.addresses import require_address

        argv, arguments = context.meta[ARGV], start["arguments"]
        require_address(arguments, session.machine.environ)
        if start["model"] is not None:
            argv, _ = with_model(session, start["model"], argv, arguments)
        yield session, argv
