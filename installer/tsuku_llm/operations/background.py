"""Servers in the background: start, watch, list, read the log, stop.

A background server is one that ``serve`` watches in a separate process, the supervisor. The
supervisor writes the server's state into a record. So every later command needs only the folder of
these records.
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

from tsuku_llm.disk import disk_errors
from tsuku_llm.errors import (
    CorruptStore,
    LaunchError,
    NotRunning,
    StillRunning,
    StoreError,
    TsukuError,
)
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.idle import IdleWatch, sample_activity
from tsuku_llm.instances.log import follow_log, open_log, read_log, rotate_log
from tsuku_llm.instances.record import Record, ServerState, checked_name
from tsuku_llm.launch.health import address_of
from tsuku_llm.launch.report import StartReport
from tsuku_llm.launch.supervise import StopHandle
from tsuku_llm.operations import revocation
from tsuku_llm.operations.revocation import ReleaseStatus
from tsuku_llm.operations.serve import Serving, serve
from tsuku_llm.operations.session import Session
from tsuku_llm.process import Process

GRACE = 15.0
"""Seconds that a server gets to end after SIGTERM before it is killed."""

_KILLED_LIMIT = 5.0
"""Seconds to wait for the end of a process after SIGKILL."""
_LOOK = 1.0
"""Seconds between two looks at the size of the log."""
_READING_PAUSE = 0.1
"""Seconds between two looks for new lines in a log that is followed."""
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Windows has only SIGTERM, which kills at once."""


# --- the process that watches --------------------------------------------------------------


def watch_over(
    session: Session,
    arguments: Sequence[str],
    how: Serving,
    ready: Callable[[], None],
) -> int:
    """Serve as the server called ``how.name`` until it ends; return its exit code.

    This runs in the supervisor. Once the name is claimed, all output goes into the server's log.
    Calls ``ready`` once, when the server answers. Raises AlreadyRunning, and the errors of
    ``serve``.
    """
    instances = Instances(session.paths.state)
    address = address_of(arguments, session.machine.environ)
    record = Record(
        name=checked_name(how.name),
        supervisor=_ourselves(),
        host=address.host,
        port=None if address.is_unix else address.port,
        idle_timeout=session.settings.idle_timeout,
    )
    # From here on no second supervisor can take this name, so the log below is ours alone.
    instances.claim(record)
    keeper = _ServerKeeper(instances, record, ready)
    with disk_errors("opening the log", instances.log(how.name).parent):
        _into(instances.log(how.name))
    try:
        # one_stream: the server writes to a pipe, never to the log itself. Otherwise it would go on
        # writing to the old file after ``rotate_log``.
        how = how._replace(sink=keeper.on_report, stop_handle=keeper.stop_handle, one_stream=True)
        code = serve(session, arguments, how)
    except BaseException as error:
        # The starting command shows this error, and cannot show what else the server said.
        if isinstance(error, TsukuError):
            error.facts += (f"its log: {instances.log(how.name)}",)
        # Also on KeyboardInterrupt: the record must not say that a server runs here.
        keeper.ended(error.exit_code if isinstance(error, TsukuError) else 1, str(error))
        raise
    keeper.ended(code, keeper.stop_handle.reason or "")
    return code


def _ourselves() -> Process:
    ourselves = Process.of(os.getpid())
    if ourselves is None:
        # Without our start time a later ``stop`` could not tell us from a process with the same
        # pid.
        raise StoreError("the system does not show this process", hint="is /proc mounted?")
    return ourselves


def _into(log: Path) -> None:
    """Redirect our output and the server's into a new log; keep the log before it once."""
    # limit=0: an earlier server's log counts as full.
    rotate_log(log, (), limit=0)
    descriptor = open_log(log)
    # On the level of descriptors, so that libraries and child processes write there as well.
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


class _ServerKeeper:
    """The keeper of one server's record and log; it also ends the server when it is idle.

    Three threads meet here. The main thread waits for the server and calls ``ended``. The thread of
    a ``StartMonitor`` calls ``on_report``. The ticker thread looks at the log and at the activity.
    """

    def __init__(self, instances: Instances, record: Record, ready: Callable[[], None]) -> None:
        self.stop_handle = StopHandle()
        self._instances = instances
        self._record = record
        self._ready = ready
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def on_report(self, report: StartReport) -> None:
        """Write the new state of the start into the record."""
        # The thread of a StartMonitor calls this. With a fallback there are several starts, each
        # with a thread; only the start that becomes ready starts the ticker.
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
            os.chdir(self._instances.folder)  # a process in the user's folder blocks an unmount
            self._ticker.start()
            # Last, as the starting command returns now: the record must be on the disk already.
            self._ready()

    def ended(self, code: int, reason: str) -> None:
        """Write the end into the record; remove the record of a server that was never ready."""
        # The main thread calls this after the end of the server, and after the StartMonitor has
        # joined the thread that calls ``on_report``.
        self._over.set()
        # A thread has an ident once it was started, here: once the server was ready.
        if self._ticker.ident is not None:
            # Wait for the ticker: it must not rotate the log of the next server of this name.
            self._ticker.join()
            self._write(replace(self._record, exit_code=code, reason=reason))
        else:
            self._instances.forget(self._record.name)

    def _write(self, record: Record) -> None:
        # The ticker only reads this attribute, and records are immutable: no lock is needed.
        self._record = record
        with suppress(StoreError):  # a full disk must not end a server
            self._instances.write(record)

    def _tick(self) -> None:
        """Start a new log when the log is full; end the server when it was idle for too long."""
        log = self._instances.log(self._record.name)
        idle = IdleWatch(self._record.idle_timeout) if self._record.idle_timeout else None
        while not self._over.wait(idle.pause if idle else _LOOK):
            # Descriptors 1 and 2 are the log in this process; this points them to the new file.
            rotate_log(log, (1, 2))
            server = self._record.server
            if idle is None or server is None:
                continue
            # Without a port it listens at a Unix socket, whose path is the host.
            socket = self._record.host if self._record.port is None else None
            sample = sample_activity(server.pid, socket)  # None if it cannot be looked at
            if sample is not None and idle.is_over(time.monotonic(), sample):
                # This sends SIGTERM at once, in this thread. Then return: the main thread sees the
                # end, calls ``ended`` and joins us.
                self.stop_handle.end(f"no request for {self._record.idle_timeout} seconds")
                return


# --- the process that starts it ------------------------------------------------------------


def start(line: Sequence[str]) -> tuple[Mapping[str, Any], int | None]:
    """Start the program ``line`` detached; return its first output line and its exit code.

    The line is a JSON object, empty if the program was killed before it wrote one. The code is None
    if the line has ``ready``: then the program runs on alone. If this process is interrupted
    meanwhile, it ends the program too. Raises LaunchError if the program cannot be started.
    """
    try:
        child = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # until it has its log; it reports errors on stdout
            # A new session: Ctrl-C and the end of the terminal do not reach the supervisor.
            start_new_session=True,
            creationflags=getattr(subprocess, "DETACHED_PROCESS", 0),
        )
    except OSError as error:
        raise LaunchError("the supervisor cannot be started", facts=(str(error),)) from error
    try:
        # The pipe closes without a line if the supervisor dies: this never waits for good.
        said = _first_document(child)
        code = None if "ready" in said else child.wait()
    except BaseException:
        # The supervisor ends its server when it gets SIGTERM.
        child.terminate()
        child.wait()
        raise
    child.returncode = code or 0  # else Popen warns when it is deleted: the child lives on
    return said, code


def _first_document(child: subprocess.Popen[bytes]) -> Mapping[str, Any]:
    """Return the first line of the child's stdout as JSON; empty if it is not a JSON object."""
    with suppress(ValueError):
        if child.stdout:
            with child.stdout as stdout:
                document = json.loads(stdout.readline())
            return document if isinstance(document, dict) else {}
    return {}


# --- the other processes -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers in the background; ``damaged`` says why the other records cannot be read.

    ``told`` holds what is known of the release that each server runs, by the server's name.
    """

    records: tuple[Record, ...]
    damaged: Mapping[str, StoreError]
    told: Mapping[str, ReleaseStatus]


def servers(session: Session) -> Servers:
    """Return everything that is known of background servers, without verifying any metadata."""
    instances = Instances(session.paths.state)
    records = instances.all()
    known = revocation.signed_status(session, verify=False) if records else None
    told: dict[str, ReleaseStatus] = {}
    for record in records:
        with suppress(StoreError):  # the version was damaged or removed while its server runs
            version = record.report and session.reader.find(record.report.version)
            if known and version:
                told[record.name] = known.of(version.receipt)
    return Servers(records, instances.damaged(), told)


def server(session: Session, name: str) -> Record:
    """Return the record of one server. Raises NotRunning if that name has no record."""
    instances = Instances(session.paths.state)
    return instances.find(checked_name(name)) or _raise_not_running(instances, name)


@dataclass(frozen=True, slots=True)
class StoppedServer:
    """The way a server was stopped.

    ``outcome`` is ``stopped``, ``killed``, ``gone`` (it had ended before), or ``unreadable``: its
    record was damaged and is removed, and its processes are not known.
    """

    name: str
    outcome: str


def stop(session: Session, name: str, *, grace: float = GRACE) -> StoppedServer:
    """End a server and its supervisor, and remove its record.

    A process that does not end within ``grace`` seconds is killed. Raises NotRunning if that name
    has no record, and StillRunning if a process survives even a kill (in a driver call that never
    returns).
    """
    instances = Instances(session.paths.state)
    try:
        record = server(session, name)
    except CorruptStore:
        # Only its name is left. While the file is there, every ``status`` complains about it.
        instances.forget(name)
        return StoppedServer(name, "unreadable")
    was_up = record.state.is_up
    killed = was_up and not _ended(instances, record, grace)
    # Only now: a supervisor that still runs would write its record again.
    instances.forget(name)
    return StoppedServer(name, "killed" if killed else "stopped" if was_up else "gone")


def stop_all(session: Session, *, grace: float = GRACE) -> tuple[StoppedServer, ...]:
    """End every server. Raises the errors of ``stop``."""
    return tuple(
        stop(session, record.name, grace=grace) for record in Instances(session.paths.state).all()
    )


def log_of(session: Session, name: str, *, follow: bool = False) -> Iterator[bytes]:
    """Return a server's output so far, and with ``follow`` also what it writes until it ends.

    Raises NotRunning if that name has no log.
    """
    instances = Instances(session.paths.state)
    path = instances.log(checked_name(name))
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists may raise
        _raise_not_running(instances, name)
    if not follow:
        return read_log(path)

    def is_over() -> bool:
        record = instances.find(name)
        return record is None or not record.state.is_up

    return follow_log(path, is_over, lambda: time.sleep(_READING_PAUSE))


def _ended(instances: Instances, record: Record, grace: float) -> bool:
    """End a server that is up; return True if it ended without a kill."""
    # Signal the supervisor, which ends its server in order; only without one signal the server.
    alone = record.server if record.state is ServerState.UNWATCHED else None
    if _goes(alone or record.supervisor, signal.SIGTERM, grace) and not _left(instances, record):
        return True
    # The supervisor did not end its server in time, or is gone: kill what is left.
    for process in _left(instances, record):
        if not _goes(process, _KILL, _KILLED_LIMIT):
            raise StillRunning(
                f"process {process.pid} of the server {record.name} does not end",
                facts=("it was killed, but still exists: a driver call blocks it",),
                hint="restart the machine, or its GPU driver",
            )
    return False


def _left(instances: Instances, record: Record) -> list[Process]:
    """Return the processes of a server that still run."""
    # Read the record again: since our last look the supervisor may have started its server.
    newest = instances.find(record.name) or record
    found = (newest.server, record.supervisor)
    return [process for process in found if process and process.is_alive]


def _goes(process: Process, number: int, limit: float) -> bool:
    """Send a signal; return whether the process ends within ``limit`` seconds.

    Raises StillRunning.
    """
    try:
        process.send(number)
    except OSError as error:
        raise StillRunning(
            f"process {process.pid} cannot be ended",
            facts=(str(error),),
            hint="stop it as the user who started it",
        ) from error
    return process.is_gone_within(limit)


def _raise_not_running(instances: Instances, name: str) -> NoReturn:
    """Raise NotRunning, and list the servers that exist."""
    raise NotRunning(
        f"there is no server called {name}",
        facts=tuple(f"server: {record.name}" for record in instances.all()),
        hint="see: tsuku-llm status",
    )
