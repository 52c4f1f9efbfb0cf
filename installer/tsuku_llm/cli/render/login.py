"""The files that start a server at login on macOS (launchd) and on Windows (Task Scheduler).

The keys are those of launchd.plist(5), and the elements those of Microsoft's task schema 1.2. No
test runs them on their systems so far.
"""

from __future__ import annotations

import plistlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

AGENTS = "~/Library/LaunchAgents"
_TASKS = "http://schemas.microsoft.com/windows/2004/02/mit/task"


def launchd_plist(
    label: str, line: Sequence[str], folder: Path, variables: Mapping[str, str], log: Path
) -> str:
    """Return an agent of this user, which runs ``line`` in ``folder`` from each login on."""
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
    """Return a task that runs ``line`` in ``folder`` at each logon of the user who registers it."""
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
