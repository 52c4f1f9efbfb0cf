"""``service launchd`` and ``service windows``: a start at login, printed or written.

The keys are those of launchd.plist(5), and the elements those of Microsoft's task schema 1.2. No
test runs them on their systems so far.
"""

from __future__ import annotations

import plistlib
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tsuku_llm.cli.services.command_line import serve_again, this_program
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.safe_text import shell_word
from tsuku_llm.instances.record import checked_name, unit_name
from tsuku_llm.launch.plan.addresses import expected_addresses
from tsuku_llm.steps.servers.service import handover, write_units
from tsuku_llm.steps.session import Session, working_folder

_AGENTS = "~/Library/LaunchAgents"
_TASKS = "http://schemas.microsoft.com/windows/2004/02/mit/task"


# XML 1.0 has no such characters, and a reader takes a CR for a line end.
_NOT_IN_XML = re.compile(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# The Task Scheduler replaces both, and knows no way to write them as they are.
_VARIABLE = re.compile(r"%[^%]+%|\$\(Arg")


def login_file(
    session: Session, name: str, argv: Sequence[str], *, windows: bool, output: Path | None
) -> CommandResult:
    """Return the file that serves with these arguments at login.

    Raises ``UsageError`` for a secret: other programs of the user can read such a file.
    """
    at = argv.index("--") + 1 if "--" in argv else len(argv)
    given = handover(argv[at:], session.machine.environ)
    if given.secret:
        raise UsageError(
            "a file for the login must not hold a secret",
            facts=tuple(given.secret),
            hint="unset these variables, and let the server read files: -- --api-key-file FILE "
            "--mcp-servers-config FILE",
        )
    label = unit_name(checked_name(name))
    # launchd watches its own process. A task that detaches shows no window after the start.
    options = ["--detach"] if windows else []
    words = serve_again(argv, without=(), without_values=("--output",), options=options)
    line = [*this_program(), *words]
    folder = working_folder()
    if windows:
        file, text = f"{label}.xml", windows_task(line, folder)
        if given.told:
            session.user.note(
                f"warning: a task has no variables of its own; set them for your user with setx: "
                f"{', '.join(given.told)}"
            )
    else:
        log = Path("~/Library/Logs").expanduser() / f"{label}.log"
        file = f"{label}.plist"
        text = launchd_plist(label, line, folder, given.told, log)
    data = {"unit": text, "units": {file: text}, "credentials": None, "written": ()}
    if output is None:
        return CommandResult(data, tuple(text.rstrip("\n").split("\n")), exact=True)
    (path,) = write_units(output, {file: text}, "utf-16" if windows else "utf-8")
    start = (
        f"schtasks /Create /TN {label} /XML {shell_word(str(path))}"
        if windows
        else f"launchctl bootstrap gui/$(id -u) {_AGENTS}/{file}"
    )
    told = expected_addresses(argv[at:], session.machine.environ)
    lines = (
        f"written: {path}",
        *(f"{what}: {text}" for what, text in told),
        f"start it with: {start}",
    )
    return CommandResult({**data, "written": (path,)}, lines)


def _require_sayable(system: str, texts: Iterable[str], *patterns: re.Pattern[str]) -> None:
    """Refuse a text that the file of a system cannot hold. Raises ``UsageError``."""
    for text in texts:
        for pattern in patterns:
            if found := pattern.search(text):
                raise UsageError(
                    f"{system} cannot be told {text!r}",
                    facts=(f"its file cannot have {found[0]!r}",),
                    hint="use a file or folder of another name",
                )


def launchd_plist(
    label: str, line: Sequence[str], folder: Path, variables: Mapping[str, str], log: Path
) -> str:
    """Return an agent of this user, which runs ``line`` in ``folder`` from each login on.

    Raises ``UsageError`` for what a property list cannot hold.
    """
    _require_sayable(
        "launchd", (label, *line, str(folder), str(log), *variables.values()), _NOT_IN_XML
    )
    agent: dict[str, Any] = {
        "Label": label,
        "ProgramArguments": list(line),
        "WorkingDirectory": str(folder),
        "RunAtLoad": True,
        # Again after an error, once a minute at most; a stop with exit code 0 is wanted.
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 60,
        # Otherwise launchd gives it less processor time and slower disks.
        "ProcessType": "Interactive",
        "StandardOutPath": str(log),
        "StandardErrorPath": str(log),
    }
    if variables:
        agent["EnvironmentVariables"] = dict(variables)
    return plistlib.dumps(agent, sort_keys=False).decode()


def windows_task(line: Sequence[str], folder: Path) -> str:
    """Return a task that runs ``line`` in ``folder`` at each logon of the user who registers it.

    Raises ``UsageError`` for what the Task Scheduler would read as something else.
    """
    _require_sayable("the Task Scheduler", (*line, str(folder)), _NOT_IN_XML, _VARIABLE)
    task = ET.Element("Task", {"version": "1.2", "xmlns": _TASKS})
    trigger = _below(_below(task, "Triggers"), "LogonTrigger")
    _below(trigger, "Enabled", "true")
    principal = _below(_below(task, "Principals"), "Principal", id="Author")
    _below(principal, "LogonType", "InteractiveToken")
    _below(principal, "RunLevel", "LeastPrivilege")
    settings = _below(task, "Settings")
    _below(settings, "MultipleInstancesPolicy", "IgnoreNew")
    _below(settings, "DisallowStartIfOnBatteries", "false")
    _below(settings, "StopIfGoingOnBatteries", "false")
    # No limit: the usual one ends a task after three days.
    _below(settings, "ExecutionTimeLimit", "PT0S")
    command = _below(_below(task, "Actions", Context="Author"), "Exec")
    _below(command, "Command", line[0])
    _below(command, "Arguments", subprocess.list2cmdline(line[1:]))
    _below(command, "WorkingDirectory", str(folder))
    ET.indent(task)
    text = ET.tostring(task, encoding="unicode")
    # schtasks reads UTF-16, as the Task Scheduler writes it.
    return f'<?xml version="1.0" encoding="UTF-16"?>\n{text}\n'


def _below(parent: ET.Element, name: str, text: str | None = None, **attributes: str) -> ET.Element:
    child = ET.SubElement(parent, name, attributes)
    child.text = text
    return child
