"""The watch over a server's whole life: its cost, and three troubles that are made for it.

Another process takes memory of the GPU, the server is stopped so that it hangs, and it is killed
as the kernel kills it. Each has to be in ``status`` within a minute.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ci.gpulab.machine import Machine

_NAME, _OTHER = "watched", "other"
_WATCHED = 90.0
"""Seconds over which the cost is measured: six samples."""

_FOUND = 75.0
"""Seconds to wait for a trouble; the docs promise a minute."""

_CHEAP = 0.001
"""Part of a core that the watch may take."""


def watch(machine: Machine, model: Path) -> Mapping[str, object]:
    """Watch a server in the background; return the cost and the seconds until each trouble."""
    started = _serve(machine, _NAME, model)
    report = _status(machine, _NAME)
    if not report:
        return {"shown": False, "start": started}
    supervisor, server = report["supervisor"], report["pid"]
    cost = _cost(supervisor, server)
    after = _status(machine, _NAME)
    _serve(machine, _OTHER, model)
    other = _status(machine, _OTHER).get("pid")
    seen = _until(lambda: any(each["pid"] == other for each in _holders(machine)))
    holders = _holders(machine)
    machine.program("stop", "--name", _OTHER, "--json")
    os.kill(server, signal.SIGSTOP)
    hangs = _until(lambda: _trouble(machine) == "hangs")
    os.kill(server, signal.SIGCONT)
    over = _until(lambda: _trouble(machine) is None)
    os.kill(server, signal.SIGKILL)
    ended = _until(lambda: _trouble(machine) == "ended")
    last = _status(machine, _NAME)
    machine.program("stop", "--name", _NAME, "--json")
    found = {"holder": seen, "hangs": hangs, "answers again": over, "ended": ended}
    return {
        "shown": cost < _CHEAP and all(each is not None for each in found.values()),
        "part of a core": round(cost, 6),
        "seconds until": found,
        "memory at the start": report.get("memory_used"),
        "memory after": after.get("memory_used"),
        "holders": holders,
        "trouble at the end": last.get("trouble"),
    }


def _serve(machine: Machine, name: str, model: Path) -> Mapping[str, object]:
    words = ("serve", "--detach", "--name", name, "--json", "--", "-m", str(model), "--port", "0")
    return machine.program(*words).told


def _status(machine: Machine, name: str) -> Mapping[str, Any]:
    servers = machine.program("status", "--json").data.get("servers", ())
    return next((each["report"] or {} for each in servers if each["name"] == name), {})


def _holders(machine: Machine) -> list[Mapping[str, Any]]:
    return list(_status(machine, _NAME).get("holders") or ())


def _trouble(machine: Machine) -> str | None:
    trouble = _status(machine, _NAME).get("trouble")
    return trouble["kind"] if trouble else None


def _cost(supervisor: int, server: int) -> float:
    """Return the part of a core that the supervisor and its children take, without the server."""
    # The first sample imports modules; from then on the cost is what lasts.
    time.sleep(20)
    watching = [supervisor, *_children(supervisor, server)]
    before = _ticks(watching)
    time.sleep(_WATCHED)
    return (_ticks(watching) - before) / os.sysconf("SC_CLK_TCK") / _WATCHED


def _children(supervisor: int, server: int) -> list[int]:
    text = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text("utf-8")
    # The thread that watches starts the child that asks the driver.
    for task in Path(f"/proc/{supervisor}/task").iterdir():
        text += " " + (task / "children").read_text("utf-8")
    return sorted({int(each) for each in text.split()} - {server})


def _ticks(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        # The children's own time too: a child that asks for one sample ends after it.
        total += sum(map(int, fields[11:15]))
    return total


def _until(holds: Callable[[], bool]) -> float | None:
    """Wait until the condition holds; return the seconds, None if it does not in time."""
    began = time.monotonic()
    while time.monotonic() - began < _FOUND:
        if holds():
            return round(time.monotonic() - began, 1)
        time.sleep(0.5)
    return None
