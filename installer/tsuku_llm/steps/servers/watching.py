"""The supervisor of a server that has a name: in the background, or as a service of systemd.

It serves, and keeps the server's record and log. While the model loads it ends a server that makes
no progress; later it ends one that gets no requests. A ``Listener`` is told how the server is.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType

from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import LaunchError, NoProgress, StoreError, TsukuError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.processes.process import Process
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.idle import BUSY_SECONDS, IdleWatch, sample_activity
from tsuku_llm.instances.loading import LoadSample, LoadWatch, sample_loading
from tsuku_llm.instances.log import open_log, rotate_log
from tsuku_llm.instances.record import Record, checked_name
from tsuku_llm.launch.ask.health import is_healthy
from tsuku_llm.launch.plan.addresses import address_of
from tsuku_llm.launch.plan.report import DIED, StartReport
from tsuku_llm.launch.plan.secret_arguments import masked
from tsuku_llm.launch.plan.wishes import wishes_in
from tsuku_llm.launch.run.supervise import StopHandle
from tsuku_llm.steps.choosing.which import told_to
from tsuku_llm.steps.drivers.speed_notes import keep_served
from tsuku_llm.steps.serve.serve import serve
from tsuku_llm.steps.serve.version_start import Serving
from tsuku_llm.steps.servers.background import RELOAD
from tsuku_llm.steps.session import Session, working_folder

_INTERRUPTED = 130
"""The exit code in the record of a server that was stopped while it waited for a restart."""

_LOOK = 1.0
"""Seconds between two looks at a server: at its log, and at its progress while it loads."""


class Listener:
    """A listener to the life of one server; this one does nothing.

    The methods are called in different threads, but never two at once, except ``on_stopping`` and
    ``on_changed``. They must not raise.
    """

    pulse: float | None = None
    """Seconds between two calls of ``on_alive``; None for none."""

    def on_loading(self, seconds: float, sample: LoadSample) -> None:
        """Take note of how far the load is, about once a second."""

    def on_compiling(self, seconds: float) -> None:
        """Take note that the loaded server is warmed up, once a second."""

    def on_giving_up(self, error: LaunchError) -> None:
        """Take note that the server is ended because it made no progress."""

    def on_ready(self, record: Record) -> None:
        """Take note that the server answers; its record is on the disk."""

    def on_changed(self, record: Record) -> None:
        """Take note of a server that serves or has served: where it computes, what is wrong."""

    def on_alive(self) -> None:
        """Take note that the server answers or works."""

    def on_stopping(self, reason: str) -> None:
        """Take note that the server ends or is being ended; this may be called several times."""


def watch_over(
    session: Session,
    arguments: Sequence[str],
    how: Serving,
    listener: Listener,
    *,
    own_log: bool,
) -> int:
    """Serve as the server called ``how.name`` until it ends; return its exit code.

    With ``own_log`` all output goes into the server's log once the name is claimed; otherwise it
    stays as it is. Raises AlreadyRunning, and the errors of ``serve``.
    """
    keeper = _ServerKeeper(session, arguments, how, listener, own_log=own_log)
    log = keeper.log
    if RELOAD is not None:
        # Before the record, by which others find this process: the signal would end it otherwise.
        signal.signal(RELOAD, keeper.on_reload)
    # From here on no second supervisor can take this name, so the log below is ours alone.
    keeper.instances.claim(keeper.record)
    try:
        if log:
            with disk_errors("opening the log", log.parent):
                # limit=0: an earlier server's log counts as full, and is kept once.
                rotate_log(log, (), limit=0)
                descriptor = open_log(log)
                # On the level of descriptors, so that libraries and child processes write there
                # as well.
                os.dup2(descriptor, 1)
                os.dup2(descriptor, 2)
                os.close(descriptor)
        # one_stream: the server writes to a pipe, never to the log itself. Otherwise it would go on
        # writing to the old file after ``rotate_log``.
        how = how._replace(
            sink=keeper.on_report,
            stop_handle=keeper.stop_handle,
            one_stream=own_log,
            on_loading=keeper.on_loading,
            on_compiling=keeper.on_compiling,
            on_signal=keeper.on_signal,
            reload=keeper.reload,
        )
        code = serve(session, arguments, how)
    except BaseException as error:
        # The starting command shows this error, and cannot show what else the server said.
        if log and isinstance(error, TsukuError):
            error.facts += (f"its log: {log}",)
        # Also on KeyboardInterrupt: the record must not say that a server runs here.
        if isinstance(error, KeyboardInterrupt):
            # A signal in the pause before a restart, when there is no server that could get it.
            keeper.ended(_INTERRUPTED, "stopped on request", stopped=True)
        else:
            keeper.ended(error.exit_code if isinstance(error, TsukuError) else 1, str(error))
        raise
    keeper.ended(code, keeper.stop_handle.reason or "")
    return code


class _ServerKeeper:
    """The keeper of one server's record and log; it also ends a server that hangs or is idle.

    Three threads meet here. The main thread waits for the server and calls ``on_signal`` and
    ``ended``. The thread of a ``StartMonitor`` calls ``on_loading`` and ``on_report``. The ticker
    thread looks at the log and at the activity.
    """

    def __init__(
        self,
        session: Session,
        arguments: Sequence[str],
        how: Serving,
        listener: Listener,
        *,
        own_log: bool,
    ) -> None:
        ourselves = Process.of(os.getpid())
        if ourselves is None:
            # Without our start time a later ``stop`` could not tell us from a process with the
            # same pid.
            raise StoreError("the system does not show this process", hint="is /proc mounted?")
        environ = told_to(session)
        self._address = address_of(arguments, environ)
        self.instances = Instances(session.paths.state)
        self.record = Record(
            name=checked_name(how.name),
            supervisor=ourselves,
            host=self._address.host,
            port=None if self._address.is_unix else self._address.port,
            idle_timeout=session.settings.idle_timeout,
            in_journal=not own_log,
            arguments=masked(arguments),
        )
        self.log = self.instances.log(how.name) if own_log else None
        self.stop_handle = StopHandle()
        self._listener = listener
        self._start_timeout = how.start_timeout
        # These are as the server reads them: in the user's folder, which this process leaves once
        # the server serves.
        folder, wishes = working_folder(), wishes_in(arguments, environ)
        self._sockets = tuple(os.path.join(folder, path) for path in self._address.sockets)
        model = folder / wishes.model if wishes.model else None
        self._served = ("-m", str(model)) if model else wishes.hub
        keys = folder / wishes.key_file if wishes.key_file else None
        self._wishes = wishes._replace(key_file=str(keys) if keys else None)
        self.reload = StopHandle()
        # A signal handler sets it, which may take no lock; the ticker clears it.
        self._reload_is_asked = False
        # These four belong to the thread of the StartMonitor.
        self._loading = 0
        self._compiling = False
        self._load = LoadWatch(self._start_timeout)
        self._next_look = 0.0
        # These two belong to the ticker: when the listener hears next that the server is alive, and
        # the processor time of the last look.
        self._next_pulse = 0.0
        self._worked = 0.0
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def on_loading(self, pid: int, log: int) -> None:
        """Look at a server that does not serve yet and has logged ``log`` bytes.

        Raises NoProgress if it has made none for too long.
        """
        # The thread of a StartMonitor calls this, several times a second at first.
        now = time.monotonic()
        # After a fallback another server loads, whose counts begin again. Most servers are ready
        # within the first second: they are not looked at.
        if pid != self._loading:
            self._loading, self._load = pid, LoadWatch(self._start_timeout)
            self._compiling = False
            self._next_look = now + _LOOK
        if now < self._next_look:
            return
        self._next_look = now + _LOOK
        sample = sample_loading(pid, log)
        is_over = self._load.is_over(now, sample)
        # A server that is warmed up has loaded: ``on_compiling`` tells how far it is.
        if sample and not self._compiling:
            self._listener.on_loading(self._load.seconds, sample)
        if is_over:
            error = NoProgress(
                f"the server made no progress for {self._start_timeout} seconds while it loaded",
                facts=("it logged nothing, read and wrote nothing, and took no more memory",),
                hint="for a longer limit: --start-timeout TIME; the GPU's driver: "
                f"{TSUKU} doctor; its last words: {self.record.log_command}",
            )
            # Now, since the end may take long: the StartMonitor ends the server after this.
            self._listener.on_giving_up(error)
            raise error

    def on_compiling(self, seconds: float) -> None:
        """Tell that the server is warmed up; ``on_loading`` goes on watching its progress."""
        # The same thread as that of ``on_loading``, just before it.
        self._compiling = True
        self._listener.on_compiling(seconds)

    def on_report(self, report: StartReport) -> None:
        """Write the new state of the start into the record."""
        # The thread of a StartMonitor calls this. With a fallback there are several starts, each
        # with a thread; only the first one that becomes ready starts the ticker. A server that is
        # started again after the loss of its GPU becomes ready a second time.
        first = report.ready and self._ticker.ident is None
        self._write(
            replace(
                self.record,
                host=report.host if report.ready else self.record.host,
                port=report.port if report.ready else self.record.port,
                server=Process.of(report.pid),
                report=report,
            )
        )
        if first:
            keep_served(self.instances.folder.parent, self._served)
            os.chdir(self.instances.folder)  # a process in the user's folder blocks an unmount
            # Last, as the starting command returns now: the record must be on the disk already.
            # Before the ticker starts, so that the listener hears one thing at a time.
            self._listener.on_ready(self.record)
            self._ticker.start()
        # While it is started again, ``on_loading`` tells more than this.
        elif self._ticker.ident is not None and (report.ready or report.trouble):
            self._listener.on_changed(self.record)

    def on_signal(self, _number: int) -> None:
        """Take note that a signal asks the server to end."""
        # In the main thread, in the middle of whatever it does: only tell.
        self._listener.on_stopping("")

    def on_reload(self, _number: int, _frame: FrameType | None) -> None:
        """Take note that a signal asks for the active version; the ticker sees to it."""
        self._reload_is_asked = True

    def ended(self, code: int, reason: str, *, stopped: bool = False) -> None:
        """Write the end into the record, or remove it.

        It is removed if the server was never ready, or if it is a service and a signal ended it,
        also one that came when there was no server (``stopped``).
        """
        # The main thread calls this after the end of the server, when ``serve`` has closed the way
        # to ``on_report``.
        self._over.set()
        self._listener.on_stopping(reason)
        # A thread has an ident once it was started, here: once the server was ready.
        served = self._ticker.ident is not None
        trouble = self.record.report.trouble if self.record.report else None
        if not reason and trouble and trouble.kind == DIED:
            reason = trouble.text
        if served:
            # Wait for the ticker: it must not rotate the log of the next server of this name.
            self._ticker.join()
        # systemd itself shows a service that it was asked to stop.
        if served and (self.log or not (stopped or self.stop_handle.signalled)):
            self._write(replace(self.record, exit_code=code, reason=reason))
        else:
            self.instances.forget(self.record.name)

    def _write(self, record: Record) -> None:
        # The ticker only reads this attribute, and records are immutable: no lock is needed.
        self.record = record
        with suppress(StoreError):  # a full disk must not end a server
            self.instances.write(record)

    def _tick(self) -> None:
        """Look after a server that serves, until it ends.

        Start a new log when the log is full, say that the server is alive, and end it when it was
        idle for too long.
        """
        idle = IdleWatch(self.record.idle_timeout) if self.record.idle_timeout else None
        pause = min(idle.pause if idle else _LOOK, _LOOK)
        next_idle = 0.0
        while not self._over.wait(pause):
            if self.log:
                # Descriptors 1 and 2 are the log in this process; this points them to the new file.
                rotate_log(self.log, (1, 2))
            server, now = self.record.server, time.monotonic()
            report = self.record.report
            if report and not report.ready:
                # It has lost its GPU, or another build takes its place: it is or will be started
                # again, and nobody can ask it for anything. The counts of the next process begin
                # again.
                self._beat(now, None)
                idle = idle and IdleWatch(self.record.idle_timeout)
                continue
            if self._reload_is_asked:
                # A server that still loads is exchanged when it is ready: see above.
                self._reload_is_asked = False
                self.reload.end("the active build is to serve")
            if server is None:
                continue
            self._beat(now, server)
            # Half a pause of room: the wait above may end a little early.
            if idle is None or now < next_idle - pause / 2:
                continue
            next_idle = now + idle.pause
            # None if it cannot be looked at
            sample = sample_activity(server.pid, self._sockets)
            if sample is not None and idle.is_over(now, sample):
                reason = f"no request for {self.record.idle_timeout} seconds"
                self._listener.on_stopping(reason)
                # This sends SIGTERM at once, in this thread. Then return: the main thread sees the
                # end, calls ``ended`` and joins us.
                self.stop_handle.end(reason)
                return

    def _beat(self, now: float, server: Process | None) -> None:
        """Say that a server is alive if that is due and true; None is one that is started again."""
        if self._listener.pulse is None or now < self._next_pulse:
            return
        self._next_pulse = now + self._listener.pulse
        if server is None:
            self._worked = 0.0
            self._listener.on_alive()
            return
        activity = sample_activity(server.pid)
        # A server whose threads are all busy does not answer, but it works.
        works = activity is None or activity.processor - self._worked >= BUSY_SECONDS
        self._worked = activity.processor if activity else self._worked
        # Its port is known only since it serves.
        if works or is_healthy(self.record.listening(self._address), self._wishes):
            self._listener.on_alive()
