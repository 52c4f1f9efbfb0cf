"""Servers in the background: started, watched over, asked for, read and stopped.

A server in the background is one that ``serve`` watches in a process of its own. That process
writes down what becomes of the server, so whoever asks later needs nothing but the folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from tsuku_llm import launch
from tsuku_llm.disk import disk_errors
from tsuku_llm.errors import LaunchError, NotRunning, StillRunning, StoreError, TsukuError
from tsuku_llm.instances import (
    IdleWatch,
    Instances,
    Process,
    Record,
    State,
    checked_name,
    follow_log,
    open_log,
    read_log,
    see,
    turn,
)
from tsuku_llm.operations import vouching
from tsuku_llm.operations.serve import serve
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.start import Serving
from tsuku_llm.operations.vouching import Told

GRACE = 15.0
"""Seconds that a server gets to end on request before it is killed."""

_KILLED_LIMIT = 5.0
_LOOK = 1.0
_READING_PAUSE = 0.1
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Windows knows only this one way."""


# --- the process that watches --------------------------------------------------------------


def watch_over(
    session: Session,
    arguments: Sequence[str],
    how: Serving,
    ready: Callable[[], None],
) -> int:
    """Serve as the server called ``how.name`` until it ends; its exit code.

    From the moment that the name is ours, everything that is said goes into its log.
    ``ready`` is told once that the server answers. Raises AlreadyRunning, and what ``serve``
    raises.
    """
    instances = Instances(session.state)
    address = launch.address_of(arguments, session.environ)
    record = Record(
        name=checked_name(how.name),
        supervisor=_ourselves(),
        host=address.host,
        port=None if address.is_unix else address.port,
        idle_timeout=session.idle_timeout,
    )
    instances.claim(record)
    watch = _Watch(instances, record, ready)
    with disk_errors("opening the log", instances.log(how.name).parent):
        _into(instances.log(how.name))
    try:
        # What the server inherits would keep an old log open when a new one is begun.
        how = how._replace(sink=watch.told, leash=watch.leash, one_stream=True)
        code = serve(session, arguments, how)
    except BaseException as error:
        watch.ended(error.exit_code if isinstance(error, TsukuError) else 1, str(error))
        raise
    watch.ended(code, watch.leash.reason or "")
    return code


def _ourselves() -> Process:
    ourselves = Process.of(os.getpid())
    if ourselves is None:
        raise StoreError("the system does not show this process", hint="is /proc mounted?")
    return ourselves


def _into(log: Path) -> None:
    """Let our output and the server's go into a new log; the one before it is kept once."""
    turn(log, (), limit=0)
    descriptor = open_log(log)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


class _Watch:
    """Keeps the record of one server true, its log bounded, and ends it when it idles."""

    def __init__(self, instances: Instances, record: Record, ready: Callable[[], None]) -> None:
        self.leash = launch.Leash()
        self._instances = instances
        self._record = record
        self._ready = ready
        self._over = threading.Event()
        self._ticks = threading.Thread(target=self._look_now_and_then, daemon=True)

    def told(self, report: launch.StartReport) -> None:
        """Write down a new state of the start."""
        first = report.ready and not (self._record.report and self._record.report.ready)
        self._write(
            replace(
                self._record,
                host=report.host if report.ready else self._record.host,
                port=report.port if report.ready else self._record.port,
                server=Process.of(report.pid),
                report=report,
            )
        )
        if first:
            os.chdir(self._instances.folder)  # not the user's, which may be on a disk to unmount
            self._ticks.start()
            self._ready()

    def ended(self, code: int, reason: str) -> None:
        """Write down the end; a server that never was ready leaves no record."""
        self._over.set()
        if self._ticks.ident is not None:
            self._ticks.join()
            self._write(replace(self._record, exit_code=code, reason=reason))
        else:
            self._instances.forget(self._record.name)

    def _write(self, record: Record) -> None:
        self._record = record
        with suppress(StoreError):  # a full disk must not end a server
            self._instances.write(record)

    def _look_now_and_then(self) -> None:
        """Turn the full log; end the server once it has had nothing to do for too long."""
        log = self._instances.log(self._record.name)
        idle = IdleWatch(self._record.idle_timeout) if self._record.idle_timeout else None
        while not self._over.wait(idle.pause if idle else _LOOK):
            turn(log, (1, 2))
            if idle and self._idles(idle):
                self.leash.end(f"no request for {self._record.idle_timeout} seconds")
                return

    def _idles(self, idle: IdleWatch) -> bool:
        server = self._record.server
        sight = see(server.pid) if server else None
        return sight is not None and idle.is_over(time.monotonic(), sight)


# --- the process that starts it ------------------------------------------------------------


def start(line: Sequence[str]) -> tuple[Mapping[str, Any], int | None]:
    """Start the program ``line`` away from this terminal; what it first says, and its exit code.

    The code is None where it said ``ready`` and goes on alone; nothing was said where it was
    killed. When this process is interrupted meanwhile, the program is ended as well. Raises
    LaunchError where it cannot be started.
    """
    try:
        child = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # until it has its log; what goes wrong it says on stdout
            start_new_session=True,
            creationflags=getattr(subprocess, "DETACHED_PROCESS", 0),
        )
    except OSError as error:
        raise LaunchError("the supervisor cannot be started", facts=(str(error),)) from error
    try:
        said = _first_document(child)
        code = None if "ready" in said else child.wait()
    except BaseException:
        child.terminate()
        child.wait()
        raise
    child.returncode = code or 0  # where it lives on, an object that does not know complains
    return said, code


def _first_document(child: subprocess.Popen[bytes]) -> Mapping[str, Any]:
    with suppress(ValueError):
        if child.stdout:
            with child.stdout as stdout:
                document = json.loads(stdout.readline())
            return document if isinstance(document, dict) else {}
    return {}


# --- everybody else ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers in the background, and why the records of others cannot be read.

    ``told`` has what is known of the release that each runs, by the server's name.
    """

    records: tuple[Record, ...]
    damaged: Mapping[str, StoreError]
    told: Mapping[str, Told]


def servers(session: Session) -> Servers:
    """Everything that is known of servers in the background; no metadata is verified for it."""
    instances = Instances(session.state)
    records = instances.all()
    known = vouching.known(session, verify=False) if records else None
    told: dict[str, Told] = {}
    for record in records:
        with suppress(StoreError):  # a version that was damaged or removed while its server runs
            version = record.report and session.shelf.find(record.report.version)
            if known and version:
                told[record.name] = known.of(version.receipt)
    return Servers(records, instances.damaged(), told)


def server(session: Session, name: str) -> Record:
    """One server. Raises NotRunning where there is none of that name."""
    instances = Instances(session.state)
    return instances.find(checked_name(name)) or _nobody(instances, name)


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a server was stopped: ``outcome`` is ``stopped``, ``killed`` or ``gone`` (before)."""

    name: str
    outcome: str


def stop(session: Session, name: str, *, grace: float = GRACE) -> Stopped:
    """End a server and its supervisor, and forget it; what does not end in time is killed.

    Raises NotRunning where there is none of that name, StillRunning where not even a kill
    helps (a driver call that never returns).
    """
    instances = Instances(session.state)
    record = server(session, name)
    was_up = record.state.is_up
    killed = was_up and not _ended(instances, record, grace)
    instances.forget(name)
    return Stopped(name, "killed" if killed else "stopped" if was_up else "gone")


def stop_all(session: Session, *, grace: float = GRACE) -> tuple[Stopped, ...]:
    """End every server. Raises as ``stop`` does."""
    return tuple(
        stop(session, record.name, grace=grace) for record in Instances(session.state).all()
    )


def log_of(session: Session, name: str, *, follow: bool = False) -> Iterator[bytes]:
    """What a server has said, and with ``follow`` what it says until it ends.

    Raises NotRunning where no server of that name has ever said anything.
    """
    instances = Instances(session.state)
    path = instances.log(checked_name(name))
    if not path.exists():
        _nobody(instances, name)
    return _reading(instances, name, path) if follow else read_log(path)


def _reading(instances: Instances, name: str, path: Path) -> Iterator[bytes]:
    def is_over() -> bool:
        record = instances.find(name)
        return record is None or not record.state.is_up

    return follow_log(path, is_over, lambda: time.sleep(_READING_PAUSE))


def _ended(instances: Instances, record: Record, grace: float) -> bool:
    """End a server that is up, kindly and then not; whether it went by itself."""
    alone = record.server if record.state is State.UNWATCHED else None
    if _goes(alone or record.supervisor, signal.SIGTERM, grace) and not _left(instances, record):
        return True
    for process in _left(instances, record):
        if not _goes(process, _KILL, _KILLED_LIMIT):
            raise StillRunning(
                f"process {process.pid} of the server {record.name} does not end",
                facts=("it was killed, and is still there: a driver call holds it",),
                hint="restart the machine, or its GPU driver",
            )
    return False


def _left(instances: Instances, record: Record) -> list[Process]:
    """What still runs of a server; by now its supervisor may have started it."""
    newest = instances.find(record.name) or record
    found = (newest.server, record.supervisor)
    return [process for process in found if process and process.is_alive]


def _goes(process: Process, number: int, limit: float) -> bool:
    """Send a signal; whether the process is gone within ``limit`` seconds. Raises StillRunning."""
    try:
        process.send(number)
    except OSError as error:
        raise StillRunning(
            f"process {process.pid} cannot be ended",
            facts=(str(error),),
            hint="stop it as the user who started it",
        ) from error
    return process.is_gone_within(limit)


def _nobody(instances: Instances, name: str) -> NoReturn:
    raise NotRunning(
        f"there is no server called {name}",
        facts=tuple(f"server: {record.name}" for record in instances.all()),
        hint="see: tsuku-llm status",
    )
