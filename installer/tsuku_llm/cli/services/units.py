"""``service systemd``: the units for a start with the same arguments, printed or written."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import tsuku_llm
from tsuku_llm.cli.render.services import units as render
from tsuku_llm.cli.services.command_line import serve_again, this_program
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.own_name import ROOTS_TSUKU, SUDO
from tsuku_llm.instances.record import checked_name, unit_name
from tsuku_llm.launch.plan.addresses import address_of, expected_addresses
from tsuku_llm.steps.servers.service import (
    Handover,
    closed_to_others,
    device_groups,
    handover,
    keep_credentials,
    listen_stream,
    proxy_program,
    write_units,
)
from tsuku_llm.steps.session import Session, working_folder

_IDLE = 300
"""Seconds without a connection after which a server on demand ends, if no setting says so."""

_FLAGS = ("--on-demand", "--exec", "--quiet", "-q")
_WITH_VALUE = ("--scope", "--output")


def unit(
    session: Session,
    name: str,
    argv: Sequence[str],
    *,
    replace: bool,
    system: bool,
    on_demand: bool,
    output: Path | None,
) -> CommandResult:
    """Return the units that serve with these arguments; secrets go to a file."""
    if on_demand and replace:
        raise UsageError(
            "--on-demand and --exec cannot be combined",
            facts=("the server itself does not tell systemd when it is ready",),
            hint="omit --exec",
        )
    if system and session.paths.home is None:
        raise UsageError(
            "a service of the system cannot use the builds in your own folder",
            facts=(f"they are in {session.paths.data}",),
            hint=f"install them for all users: {SUDO}TSUKU_HOME=/opt/tsuku {ROOTS_TSUKU} install; "
            "then run this with the same TSUKU_HOME",
        )
    if "--" not in argv:
        argv = (*argv, "--")
    at = argv.index("--") + 1
    given = handover(argv[at:], session.machine.environ)
    listen = None
    options = ["--exec" if replace else "--notify"]
    if on_demand:
        address = address_of(argv[at:], session.machine.environ)
        idle = session.settings.idle_timeout or _IDLE
        listen = render.OnDemand(listen_stream(address), proxy_program(), idle)
        # The proxy knows best when the last connection was.
        options += ["--idle-timeout", "0"]
    credentials = None
    if given.secret:
        content = render.environment_file(given.secret)
        credentials = keep_credentials(session.paths.state, name, given.secret, content)
        session.user.note(
            f"{', '.join(given.secret)}: not in the unit; it loads {credentials}, "
            "which only you can read"
        )
    folder = working_folder()
    # Only ours: the server's arguments may hold secrets, and ``handover`` separates them.
    words = serve_again(argv[:at], without=_FLAGS, without_values=_WITH_VALUE, options=options)
    line = [*this_program(), *words]
    service = render.Service(
        name=checked_name(name),
        unit=unit_name(name),
        line=line,
        given=given,
        folder=folder,
        credentials=credentials,
        replace=replace,
        system=system,
        groups=device_groups() if system else (),
        on_demand=listen,
    )
    if system:
        _warn(session, given, folder)
    texts = render.unit_texts(service)
    # Behind --on-demand it is the address at which systemd listens.
    told = [
        f"{what}: {text}" for what, text in expected_addresses(argv[at:], session.machine.environ)
    ]
    if output is None:
        # On stderr: stdout may be a file. Any other unit's server tells its addresses itself.
        for each in told if on_demand else ():
            session.user.note(each)
    return units_answer(
        texts, credentials, output, (*told, f"start it with: {service.start_command}")
    )


_ELSEWHERE = (
    "move these first to where systemd looks: ~/.config/systemd/user, "
    "or /etc/systemd/system for the whole system"
)


def scope_of(folder: Path) -> str:
    """Return whose units systemd looks for in a folder, "system" or "user"; "" for another one.

    Each folder of systemd.unit(5) that one writes to ends so.
    """
    end = (working_folder() / folder).parts[-2:]
    return end[-1] if end in (("systemd", "system"), ("systemd", "user")) else ""


def units_answer(
    texts: dict[str, str], credentials: Path | None, output: Path | None, told: Sequence[str]
) -> CommandResult:
    """Write the units into a folder and return what there is to say, or return their texts.

    The first unit is the one that the others belong to. Raises as ``write_units``.
    """
    written = write_units(output, texts) if output else ()
    data = {
        "unit": next(iter(texts.values())),
        "units": texts,
        "credentials": credentials,
        "written": written,
    }
    if output:
        told = told if scope_of(output) else (_ELSEWHERE, *told)
        return CommandResult(data, (*(f"written: {file}" for file in written), *told))
    shown = "\n".join(texts.values())
    # As ``systemctl cat`` shows several: each below the name of its file.
    if len(texts) > 1:
        shown = "\n".join(f"# {file}\n{text}" for file, text in texts.items())
    return CommandResult(data, tuple(shown.rstrip("\n").split("\n")), exact=True)


def _warn(session: Session, given: Handover, folder: Path) -> None:
    """Print what the service's own user could not read: the start would fail."""
    named = (folder / each for each in given.argv if each)
    needed = (
        session.paths.data,
        folder,
        Path(sys.executable),
        Path(tsuku_llm.__file__),
        *(path for path in named if os.path.isfile(path)),  # noqa: PTH113 - Path.is_file may raise
    )
    for closed in dict.fromkeys(closed_to_others(needed)):
        session.user.note(
            f"warning: {closed} is closed to other users, and the service runs as its own user: "
            "it will not start"
        )
