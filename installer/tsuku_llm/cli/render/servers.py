"""Servers: those in the background, what a start would run, and a systemd unit for a start."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsuku_llm.cli.render.installed import told_data, told_lines
from tsuku_llm.cli.render.text import size, table

if TYPE_CHECKING:
    from tsuku_llm.instances.record import Record
    from tsuku_llm.operations.background import Servers, StoppedServer
    from tsuku_llm.operations.credentials import Handover
    from tsuku_llm.operations.tools import Planned


def data(found: Servers) -> dict[str, Any]:
    """Return every server for programs."""
    return {
        "servers": [record_data(record) for record in found.records],
        "releases": {name: told_data(told) for name, told in found.told.items()},
        "damaged": [
            {"name": name, "reason": error.message} for name, error in found.damaged.items()
        ],
    }


def record_data(record: Record) -> dict[str, Any]:
    """Return one server for programs; ``report`` is the report of its start."""
    # The report's own JSON, so that ``status`` and the file on the disk agree.
    report = json.loads(record.report.to_json()) if record.report else None
    return {
        "name": record.name,
        "state": record.state.value,
        "host": record.host,
        "port": record.port,
        "supervisor": record.supervisor.pid,
        "pid": record.server.pid if record.server else None,
        "idle_timeout": record.idle_timeout,
        "exit_code": record.exit_code,
        "reason": record.reason,
        "line": line(record),
        "report": report,
    }


def lines(found: Servers) -> tuple[str, ...]:
    """Return every server for people."""
    nothing = () if found.records else ("no server runs in the background",)
    return (
        *nothing,
        *(text for record in found.records for text in _paragraph(record)),
        *told_lines(found.told),
        *(f"damaged: {name}: {error.message}" for name, error in found.damaged.items()),
    )


def started_lines(record: Record) -> tuple[str, ...]:
    """Return a server that has just become ready, for people."""
    return (*_paragraph(record), f"stop it with: tsuku-llm stop --name {record.name}")


def stopped_data(stopped: tuple[StoppedServer, ...]) -> dict[str, Any]:
    """Return what was stopped, for programs."""
    return {"stopped": list(stopped)}


_STOPPED = {
    "stopped": "{} has ended",
    "killed": "{} did not end in time, and was killed",
    "gone": "{} had ended before",
}


def stopped_lines(stopped: tuple[StoppedServer, ...]) -> tuple[str, ...]:
    """Return what was stopped, for people."""
    told = tuple(_STOPPED[each.outcome].format(each.name) for each in stopped)
    return told or ("no server runs in the background",)


def line(record: Record) -> str:
    """Return the line of the decision, as the start printed it when the server was ready."""
    report = record.report
    if report is None:
        return ""
    detected = ",".join(report.detected)
    share = f" gpu=[{report.told_share}]" if report.told_share else ""
    return f"requested={report.requested} detected=[{detected}] selected={report.selected}{share}"


def _paragraph(record: Record) -> tuple[str, ...]:
    """Return the server in one line, and the result of its start below it."""
    first = f"{record.name}: {record.state.value} at {record.address}{_how_it_ended(record)}"
    return (first, line(record), *table(_facts(record), indent=2))


def _how_it_ended(record: Record) -> str:
    if record.exit_code is None:
        return ""
    return f", exit code {record.exit_code}" + (f" ({record.reason})" if record.reason else "")


def _facts(record: Record) -> list[tuple[str, str]]:
    report = record.report
    if report is None:
        return []
    layers = f"{report.layers_offloaded} of {report.layers_total or '?'}"
    # One of the two may be unknown: ``size`` then prints "?".
    memory = f"{size(report.memory_used)} of {size(report.memory_total)}"
    facts = {
        "build": f"{report.selected} of {report.release}, checked by {report.verification}",
        "runs on": f"{report.backend or 'unknown'} ({report.verdict.value.replace('_', ' ')})",
        "on the GPU": report.told_share or None,
        "device": report.device,
        "driver": report.driver,
        "memory": memory if report.memory_total or report.memory_used else None,
        "layers": layers if report.layers_offloaded is not None else None,
        "since": report.started_at,
        "processes": f"{report.pid}, watched by {record.supervisor.pid}",
    }
    passed = [(f"not {each.variant}", each.reason) for each in report.fallen_back_from]
    # Facts that are unknown have no line.
    return [*((name, text) for name, text in facts.items() if text), *passed]


# --- what a start would run ---------------------------------------------------------------


def planned_data(plan: Planned) -> dict[str, Any]:
    """Return the plan for programs."""
    return {
        "version": plan.version,
        "argv": plan.argv,
        "cwd": plan.cwd,
        "environment": plan.env,
        "removed": plan.removed,
    }


def planned_lines(plan: Planned) -> tuple[str, ...]:
    """Return the plan for people: the decision, the variables that count, the arguments."""
    return (
        plan.line,
        f"in {plan.cwd}",
        *(f"with {name}={value}" for name, value in plan.env.items()),
        *(f"without {name}" for name in plan.removed),
        f"would run: {shlex.join(plan.argv)}",
    )


# --- a systemd unit -----------------------------------------------------------------------


# The unit's hardening needs neither root nor user namespaces, which many systems forbid: so it has
# no ``ProtectSystem=`` and similar options. ``MemoryDenyWriteExecute=`` is missing because GPU
# drivers compile shaders and kernels.

_TEMPLATE = """\
# Made by: tsuku-llm serve --systemd-unit
# Save it as ~/.config/systemd/user/{unit}.service, then:
#   systemctl --user daemon-reload && systemctl --user enable --now {unit}
# To run it while you are not logged in: loginctl enable-linger

[Unit]
Description=llama.cpp server {name}, launched by tsuku-llm
StartLimitIntervalSec=300
StartLimitBurst=3

[Service]
Type=exec
WorkingDirectory={folder}
{environment}ExecStart={line}
Restart=on-failure
RestartSec=5
# Not repaired by a restart: usage, nothing that fits, trust, store, launch, no GPU.
RestartPreventExitStatus=2 3 5 6 7 8
TimeoutStopSec=15

UMask=0077
LimitCORE=0
# This also keeps nvidia-modprobe from making /dev/nvidia-uvm when CUDA is first used;
# nvidia-persistenced makes it at boot.
NoNewPrivileges=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""

_PLAIN = re.compile(r"[A-Za-z0-9_@:/.,=+-]+")
"""Texts that need no quotes."""


def unit_text(
    name: str, line: Sequence[str], given: Handover, folder: Path, credentials: Path | None
) -> str:
    """Return the unit that runs ``line`` and the server's arguments in ``folder``.

    ``credentials`` is the file with the variables that the unit must not show, None without any.
    """
    variables = "".join(
        f"Environment={_quoted(f'{each}={value}')}\n" for each, value in given.told.items()
    )
    if credentials:
        variables += f"EnvironmentFile={_path(credentials)}\n"
    # systemd replaces $NAME in arguments; in the program's path, which comes first, "$" is
    # not special.
    argv = [_quoted(line[0]), *(_quoted(each).replace("$", "$$") for each in line[1:])]
    for place, each in enumerate(given.argv):
        # systemd fills in the value from the file of credentials when it starts the server.
        secret = f"${{{given.variable(place)}}}"
        argv.append(secret if each is None else _quoted(each).replace("$", "$$"))
    return _TEMPLATE.format(
        unit="tsuku-llm" if name == "default" else f"tsuku-llm-{name}",
        name=name,
        folder=_path(folder),
        environment=variables,
        line=" ".join(argv),
    )


def environment_file(variables: Mapping[str, str]) -> str:
    """Return the text of a file for ``EnvironmentFile=``, in the syntax of systemd.exec(5)."""
    return "".join(
        f'{name}="' + re.sub(r'[\\"$`]', r"\\\g<0>", value) + '"\n'
        for name, value in variables.items()
    )


def _path(path: Path) -> str:
    """Return a path for options that take one whole line: only ``%`` is special there."""
    return str(path).replace("%", "%%")


def _quoted(text: str) -> str:
    """Return a text as systemd.syntax(7) and systemd.unit(5) want it: quoted, ``%`` doubled."""
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", _escape, escaped) + '"'


def _escape(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"
