"""A start of one version for a moment: to measure it, or to see whether it serves at all."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import IO

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import LaunchError, TsukuError
from tsuku_llm.ground.foreign import read_answer
from tsuku_llm.launch.ask.speed import SPEED_CONTEXT
from tsuku_llm.launch.plan.fingerprint import driver_fingerprint
from tsuku_llm.launch.plan.report import StartReport
from tsuku_llm.launch.run.supervise import StopHandle
from tsuku_llm.steps.drivers.state_notes import StateNotes
from tsuku_llm.steps.serve.version_start import Serving, VersionStart
from tsuku_llm.steps.session import Session, working_folder
from tsuku_llm.store.records.installed import Installed

_TAIL = 2000
"""Bytes at the end of a server's output in which an error is looked for."""
_LAST_LINES = 3
_BEFORE = ("-c", str(SPEED_CONTEXT), "-np", "1")
"""Put before the user's arguments, so that these can override them."""
_AFTER = ("--host", "127.0.0.1", "--port", "0")
"""Put after the user's arguments, as the server must listen here and on a free port."""
_OURS = ("LLAMA_ARG_", "LLAMA_API_KEY")
"""Prefixes of variables that are removed from the environment. The user's settings for a real
server would make the builds incomparable."""


def short_start(
    session: Session,
    installed: Installed,
    arguments: Sequence[str],
    on_ready: Callable[[StartReport, Callable[[], None]], None],
    *,
    name: str,
    require_gpu: bool,
    on_loading: Callable[[], None] = lambda: None,
) -> TsukuError | None:
    """Start a version, call ``on_ready`` once it is judged, and end it; return why it was not.

    ``on_ready`` gets the report, and what its requests call while they wait: it ends them once the
    server is to end. ``on_loading`` is called again and again before that. A LaunchError that
    ``on_ready`` raises is returned, too. Raises KeyboardInterrupt.
    """
    stop_handle = StopHandle()
    failures: list[TsukuError] = []

    # Runs in the thread that follows the start, while the main thread waits for the server.
    def on_report(report: StartReport) -> None:
        # Before the verdict a promise about the GPU may still fail, and the report comes again.
        if not (report.ready and report.is_judged) or report.port is None:
            return
        try:
            on_ready(report, stop_handle.hang_up)
        except LaunchError as error:
            failures.append(error)
        # This sends SIGTERM to the server; then ``make`` returns in the main thread.
        stop_handle.end("seen")

    # 0: also where the drivers tell nothing about a process, there is something to see.
    how = Serving(
        name=name,
        require_gpu=require_gpu,
        min_gpu_share=0,
        sink=on_report,
        on_loading=lambda _pid, _log: on_loading(),
        stop_handle=stop_handle,
        own_folder=True,
    )
    notes = StateNotes(session.paths.state, driver_fingerprint(session.machine.environ))
    # Leave out the settings that would reach one variant and not another.
    environ = {
        name: value for name, value in session.machine.environ.items() if not name.startswith(_OURS)
    }
    alike = session.with_settings(update_check=False, canary=False)._replace(
        machine=session.machine._replace(environ=environ),
        user=session.user._replace(note=lambda _: None),
    )
    start = VersionStart(
        alike, (*_BEFORE, *arguments, *_AFTER), how, installed, notes, working_folder(), ()
    )
    with tempfile.TemporaryFile() as said:
        try:
            with _stderr_into(said):
                code = start.make()
        except TsukuError as error:
            failures.append(error)
        else:
            # The server ended before it was seen.
            if stop_handle.reason is None:
                with disk_errors("reading what the server said", Path(tempfile.gettempdir())):
                    said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL))
                    lines = read_answer(said).decode("utf-8", "replace").splitlines()
                ended = f"the server ended with exit code {code}"
                failures.append(LaunchError(ended, facts=tuple(lines[-_LAST_LINES:])))
    if stop_handle.signalled:
        signal.raise_signal(stop_handle.signalled)  # only the server got it: end the command, too
    return failures[-1] if failures else None


@contextmanager
def _stderr_into(said: IO[bytes]) -> Iterator[None]:
    """Redirect stderr to a file for the block: the servers' logs would bury the figures.

    What this program says itself, to ``sys.stderr``, goes where it went before.
    """
    # On the level of descriptors: the server's stderr is passed on to descriptor 2.
    kept = os.dup(2)
    encoding = getattr(sys.stderr, "encoding", None)
    # A line at a time: closing the file must not write more than what was meant to be seen.
    with open(kept, "w", 1, encoding=encoding, errors="backslashreplace") as ours:
        try:
            os.dup2(said.fileno(), 2)
            with redirect_stderr(ours):
                yield
        finally:
            os.dup2(kept, 2)
