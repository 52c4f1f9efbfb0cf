"""``serve`` with a name: in the background, or as a service; and the process that starts it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tsuku_llm.cli.render.services import servers as render
from tsuku_llm.cli.services.command_line import serve_again
from tsuku_llm.cli.terminal import streams
from tsuku_llm.cli.terminal.answer import CommandResult, ReportedError
from tsuku_llm.cli.terminal.browser import open_page, why_none
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.errors import LaunchError
from tsuku_llm.ground.processes import children
from tsuku_llm.instances.notify import Notifier
from tsuku_llm.launch.plan.secret_arguments import handed_over
from tsuku_llm.steps.servers import background
from tsuku_llm.steps.servers.watching import Listener, watch_over

if TYPE_CHECKING:
    from tsuku_llm.instances.loading import LoadSample
    from tsuku_llm.instances.record import Record
    from tsuku_llm.launch.plan.report import StartReport
    from tsuku_llm.steps.serve.version_start import Serving
    from tsuku_llm.steps.session import Session

_OF_THIS_CALL = ("--detach", "--open", "--quiet", "-q")
"""What is not for the supervisor; its log gets every note."""


def detach(
    console: Console, session: Session, name: str, argv: Sequence[str], *, opens_page: bool
) -> CommandResult:
    """Start a supervisor; answer when its server is ready, or when it did not start."""
    at = argv.index("--") if "--" in argv else len(argv)
    # Everybody can read the supervisor's arguments while it lives; only its user its environment.
    server = handed_over(argv[at:])
    options = ("--notify", "starter", "--json")
    words = serve_again((*argv[:at], *server.argv), without=_OF_THIS_CALL, options=options)
    env = server.added_to(session.machine.environ)
    try:
        line = children.this_program(*words)
        said, code = background.start(name, line, console.status.show, env)
    finally:
        console.status.close()
    # The supervisor said that its server is ready, and runs on without us.
    if code is None:
        for warning in said.get("warnings", ()):
            session.user.note(warning)
        record = background.server(session.paths.state, name)
        if opens_page and record.report:
            open_or_tell(console, record.report)

        def undo() -> str:
            # A start that ends with an error leaves no server behind.
            stopped = background.stop(session.paths.state, name)
            return render.stopped_lines((stopped,))[0]

        return CommandResult(record, render.started_lines(record), undo=undo)
    failure = ReportedError(said["code"], said["message"], tuple(said["facts"]), said["hint"])
    return CommandResult(exit_code=code if code > 0 else LaunchError.exit_code, failure=failure)


def open_or_tell(console: Console, report: StartReport) -> None:
    """Open the web page of a server that is ready, or tell why not; the server goes on."""
    if report.page_url is None:
        console.note("warning: --open: this server has no web page")
    elif not open_page(report.page_url):
        console.note(f"warning: --open: {why_none()}; open {report.page_url} yourself")


def supervise(
    console: Console, session: Session, arguments: Sequence[str], how: Serving
) -> CommandResult:
    """Be the supervisor: say how the load goes, and that the server is ready or never was."""
    starter = _Starter(console)

    def note(text: str) -> None:
        # Into the log, and the warnings also to the user who waits for the start.
        session.user.note(text)
        if text.startswith("warning: "):
            starter.warnings.append(text)

    told = session._replace(user=session.user._replace(note=note))
    code = watch_over(told, arguments, how, starter, own_log=True)
    return _ended(code)


def notify(
    console: Console, session: Session, arguments: Sequence[str], how: Serving
) -> CommandResult:
    """Be the supervisor of a service: tell systemd how the server is; the journal has the log."""
    # Before the server starts, which gets what is left of the environment.
    service = _Service(Notifier.from_environ(os.environ))
    code = watch_over(session, arguments, how, service, own_log=False)
    # The journal has the server's own words; only a program needs more.
    return _ended(code) if console.json else CommandResult(exit_code=code)


def _ended(code: int) -> CommandResult:
    failure = ReportedError("server-exit", f"the server ended with exit code {code}")
    return CommandResult(
        {"server_exit_code": code}, exit_code=code, failure=failure if code else None
    )


class _Starter(Listener):
    """The process that waits for this server; ``background.start`` reads these lines there."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.warnings: list[str] = []

    def on_loading(self, seconds: float, sample: LoadSample) -> None:
        self._say({"loading": render.loading_line(seconds, sample)})

    def on_compiling(self, seconds: float) -> None:
        self._say({"loading": render.compiling_line(seconds)})

    def on_giving_up(self, error: LaunchError) -> None:
        self._say({"gave_up": {"error": ReportedError.of(error)._asdict()}})

    def on_ready(self, record: Record) -> None:
        # At once: where it computes is known 0.6 s later (on an H100), and ``status`` says it.
        self._say({"ready": record.name, "warnings": self.warnings})

    def _say(self, document: Mapping[str, Any]) -> None:
        # The thread that follows the start calls this, while the main thread waits for the server:
        # only this thread writes to stdout now.
        streams.say(self._console.stdout, json.dumps(document) + "\n")


class _Service(Listener):
    """The service manager of this process."""

    def __init__(self, notifier: Notifier) -> None:
        self.pulse = notifier.pulse
        self._notifier = notifier
        self._status = ""

    def on_loading(self, seconds: float, sample: LoadSample) -> None:
        self._status = render.loading_line(seconds, sample)
        self._notifier.send(status=self._status)

    def on_compiling(self, seconds: float) -> None:
        self._notifier.send(status=render.compiling_line(seconds))

    def on_giving_up(self, error: LaunchError) -> None:
        self._notifier.send(status=error.message)

    def on_ready(self, record: Record) -> None:
        self._status = render.status_line(record)
        self._notifier.send(ready="1", status=self._status)

    def on_changed(self, record: Record) -> None:
        # Most changes are of the memory, which is not in the status.
        status = render.status_line(record)
        if status != self._status:
            self._status = status
            self._notifier.send(status=status)

    def on_alive(self) -> None:
        self._notifier.send(watchdog="1")

    def on_stopping(self, reason: str) -> None:
        self._notifier.send(stopping="1", status=reason or None)
