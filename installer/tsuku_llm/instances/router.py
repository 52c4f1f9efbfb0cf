"""The servers that upstream's router starts for its models, by what the system says of them.

``server_models::load`` in upstream's tools/server/server-models.cpp starts each with the model's
name as ``--alias``, in the router's session, and with the port that the router was told in its
environment. It ends when the pipe to the router breaks; one that hangs then stays, and keeps its
memory.
"""

from __future__ import annotations

import os
import sys
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
            if process and alias and port is not None and _belongs(each, port, record):
                memory = each.memory_info().rss
                found.append(RouterChild(process, alias[1], argv, environ, memory))
    return tuple(sorted(found, key=lambda child: child.model))


def _belongs(child: psutil.Process, port: str, record: Record) -> bool:
    """Tell whether a server that a router with this port has started is this record's."""
    import psutil

    assert record.report
    if record.server is None:
        return False
    if record.server.is_alive:
        return child.ppid() == record.server.pid
    # Another router may have the pid or the port now: then its servers still have it as parent.
    with suppress(psutil.Error, OSError):
        if _is_of(psutil.Process(child.ppid()), record.report.id):
            return False
    # Windows has no sessions. With ``--port 0`` and a Unix socket the port names no router.
    if sys.platform == "win32":
        return port == str(record.port)
    # ``supervise`` starts a router as the leader of a session. No other process gets its pid while
    # the session has a member.
    return os.getsid(child.pid) == record.server.pid


def _is_of(process: psutil.Process, build: str) -> bool:
    """Tell whether a process runs a program of an installed version."""
    program = process.exe()
    return bool(program) and build in Path(os.path.dirname(program)).parts
