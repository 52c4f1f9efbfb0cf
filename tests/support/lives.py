"""The whole life of a server, as a user of ``serve`` in the foreground sees it."""

import http.client
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.servers import NOW
from support.sessions import make_session

from tsuku_llm.launch.plan.report import StartReport
from tsuku_llm.launch.run.supervise import StopHandle
from tsuku_llm.machine.host import LocalHost
from tsuku_llm.steps.serve.serve import serve
from tsuku_llm.steps.serve.version_start import Serving
from tsuku_llm.steps.session import Machine


@dataclass
class Run:
    """One ``serve`` of what is installed; ``on_ready`` is called each time that it serves.

    The server inherits PATH and the variables called ``inherited``.
    """

    data: Path
    on_ready: Callable[["Run"], None]
    notes: list[str] = field(default_factory=list)
    reports: list[StartReport] = field(default_factory=list)
    served: int = 0
    inherited: tuple[str, ...] = ()
    on_note: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.stop_handle = StopHandle()

    def make(self, *arguments: str, **settings: object) -> int:
        environ = {name: os.environ[name] for name in ("PATH", *self.inherited)}
        machine = Machine(LocalHost(None, environ), NOW, environ)
        wanted = {"fallback": "off", "canary": False, **settings}
        session = make_session(self.data, machine, note=self._note, **wanted)
        how = Serving(sink=self._on_report, stop_handle=self.stop_handle)
        return serve(session, ("--port", "0", "-m", "/none.gguf", *arguments), how)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.on_note(text)

    def _on_report(self, report: StartReport) -> None:
        again = report.ready and not (self.reports and self.reports[-1].ready)
        self.reports.append(report)
        if again:
            self.served += 1
            self.on_ready(self)

    def request(self) -> None:
        """Ask for a result, as a client of the server does; it may end meanwhile."""
        report = self.reports[-1]
        connection = http.client.HTTPConnection("127.0.0.1", report.port)
        if report.port is None:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(report.host)
        with suppress(OSError, http.client.HTTPException):
            connection.request("POST", "/completion", "{}")
            connection.getresponse().read()
        connection.close()
