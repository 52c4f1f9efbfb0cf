"""The servers that upstream's router starts for its models, by what the system says of them.

``server_models::load`` in upstream's tools/server/server-models.cpp starts each with the model's
name as ``--alias``, and with the router's port in its environment. It ends when the pipe to the
router breaks; one that hangs then stays, and keeps its memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.ground.processes.process import Process
from tsuku_llm.instances.record import Record
from tsuku_llm.launch.plan.wishes import last_value, wishes_in

if TYPE_CHECKING:
    import psutil

_ROUTER_PORT = "LLAMA_SERVER_ROUTER_PORT"
_ALIAS = ("--alias",)


class RouterChild(NamedTuple):
    """A server of a router for one ``model``; ``memory`` is its main memory, in bytes."""

    process: Process
    model: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    memory: int


def children_of(record: Record) -> tuple[RouterChild, ...]:
    """Return the servers that a router has started, also after its own end.

    Those that this user may not look at are missing.
    """
    # Most servers are none, and the list of all processes takes some milliseconds.
    if record.report is None or wishes_in(record.arguments or (), {}).names_model:
        return ()
    import psutil

    build = record.report.id
    mine = psutil.Process().username()
    found: list[RouterChild] = []
    for each in psutil.process_iter():
        # A process may end between two of these steps.
        with suppress(psutil.Error, OSError):
            if not _is_of(each, build) or each.username() != mine:
                continue
            argv, environ, process = tuple(each.cmdline()), each.environ(), Process.of(each.pid)
            alias = last_value(argv, {}, _ALIAS)
            port = environ.get(_ROUTER_PORT)
            if process and alias and port is not None and _belongs(each.ppid(), port, record):
                memory = each.memory_info().rss
                found.append(RouterChild(process, alias[1], argv, environ, memory))
    return tuple(sorted(found, key=lambda child: child.model))


def _belongs(parent: int, port: str, record: Record) -> bool:
    """Tell whether a server that was started by a router at this port is this record's."""
    import psutil

    assert record.report
    if record.server and record.server.is_alive:
        return parent == record.server.pid
    # Another router may have taken the port since: then its servers still have it as parent.
    with suppress(psutil.Error, OSError):
        if _is_of(psutil.Process(parent), record.report.id):
            return False
    return port == str(record.port)


def _is_of(process: psutil.Process, build: str) -> bool:
    """Tell whether a process runs a program of an installed version."""
    program = process.exe()
    return bool(program) and build in Path(os.path.dirname(program)).parts
