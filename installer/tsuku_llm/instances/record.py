"""The record of a server in the background, for the commands that show or stop it later."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from enum import Enum

from tsuku_llm.ground import records
from tsuku_llm.ground.errors import CorruptStore, UsageError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.processes.process import Process
from tsuku_llm.launch.plan.addresses import ServerAddress, ServerUrls, is_everywhere
from tsuku_llm.launch.plan.report import READ_REPORT, StartReport

FORMAT = 1

# A name is also the name of two files.
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TEXT_LIMIT = 4096


class ServerState(str, Enum):
    """The state of a server in the background.

    ``STARTING``: it does not answer ``/health`` yet. ``UNWATCHED``: it runs although its
    supervisor was killed. ``ENDED``: it ended by itself, and its record says how. ``LOST``:
    it was killed together with its supervisor, or the machine was restarted.
    """

    STARTING = "starting"
    RUNNING = "running"
    UNWATCHED = "unwatched"
    ENDED = "ended"
    LOST = "lost"

    @property
    def is_up(self) -> bool:
        """True if there is a process to stop."""
        return self in (ServerState.STARTING, ServerState.RUNNING, ServerState.UNWATCHED)


@records.documented(
    *("name", "state", "host", "port", "*urls", "supervisor", "pid", "idle_timeout", "arguments"),
    *("exit_code", "reason", "report"),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record of one server: ``supervisor`` watches ``server``, None until that runs.

    ``host`` and ``port`` are where it listens, or was told to listen. Port 0: it chooses
    one. Port None: ``host`` is a Unix socket. ``idle_timeout`` is in seconds, 0 for none.
    ``report`` is the launcher's last one. ``exit_code`` and ``reason`` say how the server
    ended by itself. A server ``in_journal`` is a service, and has no log here. ``arguments`` are
    the server's, without secrets; None in the record of an older version.
    """

    name: str
    supervisor: Process
    host: str
    port: int | None
    idle_timeout: int = 0
    server: Process | None = None
    report: StartReport | None = None
    exit_code: int | None = None
    reason: str = ""
    in_journal: bool = False
    arguments: tuple[str, ...] | None = None

    @property
    def state(self) -> ServerState:
        """The state, by what the system says about the processes now."""
        # Only the supervisor writes an exit code, as the last thing that it does.
        if self.exit_code is not None:
            return ServerState.ENDED
        # A process is known by its number and its start time. So an old record never means a
        # later process that got the same number.
        if self.supervisor.is_alive:
            return (
                ServerState.RUNNING if self.report and self.report.ready else ServerState.STARTING
            )
        return ServerState.UNWATCHED if self.server and self.server.is_alive else ServerState.LOST

    @property
    def urls(self) -> ServerUrls:
        """The URLs of a server that can be reached now; none of any other one."""
        report = self.report if self.state.is_up else None
        if report is None or not report.ready:
            return ServerUrls()
        return ServerUrls(report.page_url, report.base_url, report.curl)

    @property
    def pid(self) -> int | None:
        """The number of the server's process; None without one."""
        return self.server.pid if self.server else None

    @property
    def address(self) -> str:
        """The address where it listens, as text."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.host if self.port is None else f"{host}:{self.port}"

    def listening(self, told: ServerAddress) -> ServerAddress:
        """Return the address that it was told, with the host and the port that it has now."""
        address = told._replace(host=self.host)
        return address if self.port is None else address._replace(port=self.port)

    @property
    def log_command(self) -> str:
        """The command that shows what the server has said."""
        if self.in_journal:
            # The record does not tell the user's services from the system's.
            unit = unit_name(self.name)
            return f"journalctl --user -u {unit} (without --user for a service of the system)"
        return f"{TSUKU} logs --name {self.name}"

    def occupies(self, host: str, port: int | None) -> bool:
        """Tell whether this server prevents another one from listening at this address."""
        # With port 0 each server gets a free port.
        if self.port != port or port == 0:
            return False
        anywhere = is_everywhere(host) or is_everywhere(self.host)
        return host == self.host or (port is not None and anywhere)

    def to_json(self) -> bytes:
        """Return the record as it is stored."""
        report = self.report and self.report.document()
        return records.encode({"format": FORMAT, **asdict(self), "report": report})

    @classmethod
    def from_json(cls, data: bytes) -> Record:
        """Parse a stored record. Raises CorruptStore for anything that is not one."""
        try:
            return records.parse(data, _READ)
        except ValueError as error:
            raise CorruptStore(
                "the record of a server is not readable", facts=(str(error),)
            ) from error


def checked_name(name: str) -> str:
    """Return the name if it can also be a file's name. Raises ``UsageError``."""
    if NAME.fullmatch(name):
        return name
    raise UsageError(
        f"{name!r} cannot be a server's name",
        hint="use up to 64 lower-case letters, digits, _ and -",
    )


def unit_name(name: str) -> str:
    """Return the name of a server's systemd unit, without its kind."""
    return "tsuku-llm" if name == "default" else f"tsuku-llm-{name}"


_text = records.checked(str, lambda text: len(text) <= _TEXT_LIMIT)
_process = records.record(
    Process, {"pid": records.checked(int, lambda pid: 0 < pid < 1 << 31), "started": _text}
)

_READ = records.record(
    Record,
    {
        "name": _text,
        "supervisor": _process,
        "host": _text,
        "server": records.optional(_process),
        "report": records.optional(READ_REPORT),
        "reason": _text,
        "arguments": records.optional(records.many(records.text)),
    },
    format=FORMAT,
    since={"idle_timeout": 0, "in_journal": False},
)
