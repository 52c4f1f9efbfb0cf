"""Servers in the background: start, list, read the log, stop.

A background server is one that ``serve`` watches in a separate process, the supervisor
(``watching``). The supervisor writes the server's state into a record. So every later command needs
only the folder of these records.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import (
    CorruptStore,
    LaunchError,
    NotRunning,
    StillRunning,
    StoreError,
    did_you_mean,
)
from tsuku_llm.ground.foreign import LARGEST, parse_object
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.processes import children
from tsuku_llm.ground.processes.process import Process
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.log import read_log
from tsuku_llm.instances.record import Record, ServerState, checked_name
from tsuku_llm.instances.router import RouterChild, children_of
from tsuku_llm.launch.gpu import nvml
from tsuku_llm.launch.gpu.observation import look_without_log
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.report import Verdict
from tsuku_llm.steps.choosing import revocation
from tsuku_llm.steps.choosing.revocation import ReleaseStatus
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed

GRACE = 15.0
"""Seconds that a server gets to end after SIGTERM before it is killed."""

_KILLED_LIMIT = 5.0
"""Seconds to wait for the end of a process after SIGKILL."""
_GIVING_UP = 20.0
"""Seconds that a supervisor gets to end a server that makes no progress, which it may kill."""
RELOAD = getattr(signal, "SIGUSR1", None)
"""The signal that asks a supervisor to start its server again, with the active version.

None on Windows, which has none to send.
"""

_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Windows has only SIGTERM, which kills at once."""


# --- the process that starts it ------------------------------------------------------------


def start(
    name: str,
    line: Sequence[str],
    on_loading: Callable[[str], None],
    env: Mapping[str, str],
) -> tuple[Mapping[str, Any], int | None]:
    """Start the supervisor of the server ``name`` detached; return what it said, and its exit code.

    ``line`` is its program, ``env`` its environment. It writes a JSON object in each line.
    ``loading`` is a text for ``on_loading``. The last line has ``ready``, or it is the document of
    an error, of which the error is returned; a general one if it was killed before it wrote one.
    The code is None after ``ready``: then the program runs on alone. After ``gave_up``, which has
    such a document, the program gets 20 seconds to end. If this process is interrupted meanwhile,
    it ends the program too. Raises LaunchError if the program cannot be started.
    """
    try:
        child = children.start(
            line,
            cwd=children.CALLERS_FOLDER,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # until it has its log; it reports errors on stdout
            # A new session: Ctrl-C and the end of the terminal do not reach the supervisor.
            start_new_session=True,
            creationflags=getattr(subprocess, "DETACHED_PROCESS", 0),
        )
    except OSError as error:
        raise LaunchError("the supervisor cannot be started", facts=(str(error),)) from error
    said: Mapping[str, Any] = {}
    try:
        assert child.stdout
        with child.stdout as stdout:
            # This never waits for good: the pipe closes if the supervisor dies, and one whose
            # server hangs gives up after ``--start-timeout``.
            while text := stdout.readline(LARGEST):
                said = {}
                with suppress(ValueError):
                    said = parse_object(text, ours=True)
                if "loading" not in said:
                    break
                on_loading(said["loading"])
            if "ready" in said:
                child.returncode = 0  # else Popen warns when it is deleted: the child lives on
                return said, None
            # One that gave up ends its server now, and then writes the error as any other. A server
            # that a driver keeps in the kernel cannot be killed: then do not wait for that.
            limit = _GIVING_UP if "gave_up" in said else None
            said = said.get("gave_up", said)
            try:
                code = child.wait(limit)
            except subprocess.TimeoutExpired:
                code = child.returncode = LaunchError.exit_code
    except BaseException:
        # The supervisor ends its server when it gets SIGTERM.
        child.terminate()
        child.wait()
        raise
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    general = {
        "code": LaunchError.slug,
        "message": f"the supervisor {how} before the server was ready",
        "facts": (),
        "hint": f"see: {TSUKU} logs --name {name}",
    }
    return said.get("error") or general, code


# --- the other processes -------------------------------------------------------------------


class LoadedModel(NamedTuple):
    """A model that a router has loaded, and its server: in main memory and on GPUs, in bytes.

    None is not known. After the end of the router it is a server that was left behind.
    """

    name: str
    pid: int
    memory: int
    gpu_memory: int | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers in the background, and what is known of the release that each runs.

    ``damaged`` says why the other records cannot be read. ``models`` are those that routers have
    loaded. All three are by the servers' names.
    """

    servers: tuple[Record, ...]
    releases: Mapping[str, ReleaseStatus]
    damaged: Mapping[str, StoreError]
    models: Mapping[str, tuple[LoadedModel, ...]] = field(default_factory=dict)


def servers(session: Session, name: str | None = None) -> Servers:
    """Return what is known of the background servers, or of one; no metadata is verified.

    Raises NotRunning or CorruptStore if that one has no record, or one that cannot be read.
    """
    instances = Instances(session.paths.state)
    records = instances.all() if name is None else (server(session.paths.state, name),)
    known = revocation.signed_status(session, verify=False) if records else None
    told: dict[str, ReleaseStatus] = {}
    loaded: dict[str, tuple[LoadedModel, ...]] = {}
    for record in records:
        with suppress(StoreError):  # the version was damaged or removed while its server runs
            version = record.report and session.reader.find(record.report.id)
            if known and version:
                told[record.name] = known.of(version.receipt)
            if version and (children := children_of(record)):
                loaded[record.name] = _loaded(children, version)
    return Servers(records, told, instances.damaged() if name is None else {}, loaded)


def _loaded(children: Sequence[RouterChild], version: Installed) -> tuple[LoadedModel, ...]:
    """Look where the servers of a router compute, without a question to them."""
    backend = version.receipt.backend
    nvidia = nvml.gpu_memory(children[0].environ) if backend != "cpu" else None
    files = tuple(file.path.rpartition("/")[2] for file in version.receipt.files)
    found: list[LoadedModel] = []
    for child in children:
        pid = child.process.pid
        seen: tuple[int | None, Verdict] = (None, Verdict.ON_CPU)
        if backend != "cpu":
            plan = LaunchPlan(child.argv, version.tree, child.environ, backend)
            seen = look_without_log(pid, plan, files, nvidia)
        found.append(LoadedModel(child.model, pid, child.memory, *seen))
    return tuple(found)


def server(state: Path, name: str) -> Record:
    """Return the record of one server. Raises NotRunning if that name has no record."""
    instances = Instances(state)
    return instances.find(checked_name(name)) or _raise_not_running(instances, name)


def page_of(state: Path, name: str) -> str:
    """Return the URL of a server's web page.

    Raises NotRunning, and LaunchError for a server that is not ready or has no page.
    """
    record = server(state, name)
    if not record.state.is_up:
        raise NotRunning(f"the server {name} does not run any more", hint=f"see: {TSUKU} status")
    if record.report is None or not record.report.ready:
        raise LaunchError(
            f"the server {name} is not ready yet", hint=f"see its log: {record.log_command}"
        )
    if record.report.page_url is None:
        raise LaunchError(
            f"the server {name} has no web page",
            facts=(f"it listens at {record.address}",),
            hint="start it at a port, with its web page (--ui) and a build that has one",
        )
    return record.report.page_url


@dataclass(frozen=True, slots=True)
class StoppedServer:
    """The way a server was stopped.

    ``outcome`` is ``stopped``, ``killed``, ``gone`` (it had ended before), ``left`` (the same, and
    servers of its models were left, which are ended now), or ``unreadable``: its record was damaged
    and is removed, and its processes are not known.
    """

    name: str
    outcome: str


def stop(state: Path, name: str) -> StoppedServer:
    """End a server and its supervisor, and remove its record.

    A process that does not end within 15 seconds is killed. Raises NotRunning if that name has no
    record, and StillRunning if a process survives even a kill (in a driver call that never
    returns).
    """
    instances = Instances(state)
    try:
        record = server(state, name)
    except CorruptStore:
        # Only its name is left. While the file is there, every ``status`` complains about it.
        instances.forget(name)
        return StoppedServer(name, "unreadable")
    was_up = record.state.is_up
    # A router ends its servers itself. Look now: they lose their parent, and some may hang.
    children = children_of(record)
    killed = was_up and not _ended(instances, record)
    left = [child.process for child in children if child.process.is_alive]
    for process in left:
        if not _goes(process, signal.SIGTERM, GRACE):
            _kill(process, name)
    # Only now: a supervisor that still runs would write its record again.
    instances.forget(name)
    outcome = "killed" if killed else "stopped" if was_up else "left" if left else "gone"
    return StoppedServer(name, outcome)


def stop_if_there(state: Path, name: str) -> None:
    """End a server as ``stop`` does; a name without a server is no error."""
    with suppress(NotRunning):
        stop(state, name)


def stop_all(state: Path) -> tuple[StoppedServer, ...]:
    """End every server. Raises the errors of ``stop``."""
    return tuple(stop(state, record.name) for record in Instances(state).all())


def log_of(state: Path, name: str, *, follow: bool = False) -> Iterator[bytes]:
    """Return a server's output so far, and with ``follow`` also what it writes until it ends.

    Raises NotRunning if that name has no log, and LaunchError if the server is a service. What it
    returns raises StoreError.
    """
    instances = Instances(state)
    path = instances.log(checked_name(name))
    record = None
    with suppress(StoreError):  # a damaged record hides no log
        record = instances.find(name)
    # An older server of this name may have left a log.
    if record and record.in_journal:
        raise LaunchError(
            f"the server {name} is a service, which has its log in the journal",
            hint=f"see: {record.log_command}",
        )
    if not os.path.exists(path):
        _raise_not_running(instances, name)

    def is_over() -> bool:
        record = instances.find(name)
        return record is None or not record.state.is_up

    def told() -> Iterator[bytes]:
        # Also a link or a pipe in the place of the log is a StoreError.
        with disk_errors(f"reading {path.name}", path.parent):
            yield from read_log(path, is_over if follow else None)

    return told()


def _ended(instances: Instances, record: Record) -> bool:
    """End a server that is up; return True if it ended without a kill."""
    # Signal the supervisor, which ends its server in order; only without one signal the server.
    alone = record.server if record.state is ServerState.UNWATCHED else None
    if _goes(alone or record.supervisor, signal.SIGTERM, GRACE) and not _left(instances, record):
        return True
    # The supervisor did not end its server in time, or is gone: kill what is left.
    for process in _left(instances, record):
        _kill(process, record.name)
    return False


def _kill(process: Process, name: str) -> None:
    """Kill a process of a server. Raises StillRunning."""
    if not _goes(process, _KILL, _KILLED_LIMIT):
        raise StillRunning(
            f"process {process.pid} of the server {name} does not end",
            facts=("it was killed, but still exists: a driver call blocks it",),
            hint="restart the machine, or its GPU driver",
        )


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
    names = [record.name for record in instances.all()]
    otherwise = f"see: {TSUKU} status" if names else f"start one: {TSUKU} serve --detach"
    raise NotRunning(
        f"there is no server called {name}",
        facts=tuple(f"server: {each}" for each in names),
        hint=did_you_mean(name, names, otherwise),
    )
