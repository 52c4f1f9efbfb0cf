"""Supervision of one server in the foreground, from its start to its end.

The threads: the main one starts the server and waits for it (``SignalForwarder``).
``PipeReader`` copies its stderr. The observer follows the start in another thread. Any thread
may stop the server (``StopHandle``); a timer then kills a server that ignores SIGTERM.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from tsuku_llm.ground.foreign import kernel_text
from tsuku_llm.launch.ask.child import ChildEnd, PipeReader, start_apart
from tsuku_llm.launch.ask.health import Readiness
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.run.forwarding import SignalForwarder
from tsuku_llm.launch.run.replace_process import flush_output

if TYPE_CHECKING:  # a server that ends well needs no diagnosis
    from tsuku_llm.launch.failed.diagnosis import Diagnosis

GRACE = 10.0
"""Seconds that a server gets to finish its current requests and exit."""

_SIGNAL_EXIT = 128
_VMSTAT = "/proc/vmstat"


class Observer(Protocol):
    """A follower of a start; both methods are called in the supervisor's thread.

    ``oom_kills`` is a count of ``oom_kills`` at which the server still lived; 0 at first.
    """

    oom_kills: int

    def on_started(self, pid: int, readiness: Readiness) -> None:
        """Take note that the server runs; ``readiness`` reads its log from now on."""

    def on_ended(self) -> None:
        """Take note that the server has ended."""


class StopHandle:
    """The handle that stops one server: ``end`` stops it now, or as soon as it runs.

    The supervisor sends the server SIGTERM, and SIGKILL if it still runs after ``GRACE`` seconds.
    Then ``supervise`` returns as for any other end.
    """

    def __init__(self) -> None:
        self.signalled: int | None = None
        """The last signal that the supervisor forwarded; None for none."""
        # Guards the two fields below: ``end`` and ``attach`` run in different threads.
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._stop: Callable[[], None] | None = None

    @property
    def reason(self) -> str | None:
        """The reason for which the server was asked to end; None if it was not."""
        return self._reason

    @property
    def is_ending(self) -> bool:
        """True if the server was told to end, by ``end`` or by a signal of the user."""
        return self._reason is not None or self.signalled is not None

    def hang_up(self) -> None:
        """End our own request to a server that is to end: it waits until we are gone.

        Raises ConnectionAbortedError then. A request that is under way holds upstream's server up
        until its client hangs up (seen with b10068, and on two H200s).
        """
        if self.is_ending:
            raise ConnectionAbortedError("the server is to end")

    def end(self, reason: str) -> None:
        """Ask the server to end, once: the first reason counts. Safe from any thread."""
        with self._lock:
            # Another thread may have called before us: then it ends the server.
            if self._reason is not None:
                return
            self._reason = reason
            # None: ``attach`` was not called yet. It takes the lock after us, sees the
            # reason, and ends the server itself.
            stop = self._stop
        # Outside the lock: ``stop`` takes locks of the supervisor or of another handle.
        if stop:
            stop()

    def renew(self) -> bool:
        """Tell whether ``end`` was called, and forget it: the next server is another one."""
        with self._lock:
            asked, self._reason = self._reason is not None, None
            return asked

    def attach(self, stop: Callable[[], None]) -> None:
        """Set the function that ends the server; call it now if ``end`` was called before.

        The supervisor calls this once the server runs. A handle that outlives several starts
        is attached to each of them in turn.
        """
        with self._lock:
            # Both in one step: an ``end`` in another thread either sees ``stop``, or was
            # here before and left its reason. So ``stop`` is called by exactly one of us.
            self._stop = stop
            asked = self._reason is not None
        # Outside the lock, as in ``end``.
        if asked:
            stop()


def supervise(
    plan: LaunchPlan,
    *,
    keep: Collection[int] = (),
    stop_handle: StopHandle | None = None,
    observer: Observer | None = None,
    one_stream: bool = False,
    serves: bool = True,
    on_signal: Callable[[int], None] | None = None,
) -> tuple[int, Diagnosis | None]:
    """Run the server to its end; return its exit code, or 128 + n for signal n, and the cause.

    The cause is that of a server which has served, ended with an error, and was not told to end.

    The server inherits the descriptors in ``keep``, and no others except its streams.
    ``stop_handle`` ends it from another thread. ``observer`` follows it. ``on_signal`` is called
    in this thread with each signal, before the server gets it.

    The server's stdout is ours; with ``one_stream`` it is copied together with its stderr.
    The stderr is copied to ours as it arrives, and its end is kept to explain a failed start.
    Raises LaunchError if the server cannot be started, or ends before it serves, also with exit
    code 0. Once it serves, or when it was told to end, its exit code is returned as it is; so is
    a tool's, which never serves (``serves`` is False).
    """
    stop_handle = stop_handle or StopHandle()
    readiness = Readiness(plan)
    # Before the start: a count that rises later points at this server.
    killed = oom_kills()

    def on_each(number: int) -> None:
        # Before the server gets it: our own questions to it end, which it would wait for.
        stop_handle.signalled = number
        if on_signal:
            on_signal(number)

    def on_output(data: bytes) -> None:
        # In the copying thread. Ignore a closed stderr of ours: without a reader the pipe fills
        # up, and the server blocks in its next log line.
        with suppress(OSError):
            view = memoryview(data)
            # A write to a pipe or terminal may take only a part.
            while view:
                view = view[os.write(2, view) :]
        readiness.on_stderr(data)

    # Handlers first: a signal from here on is kept for the server and does not end us alone.
    with SignalForwarder(on_signal=on_each) as forwarder:
        # Before any thread of ours: the kernel ties the server to us only while this process
        # has one thread (``tied_to_us``).
        child = _start(plan, keep, one_stream=one_stream)
        # At once, as the server runs: a signal that came during the fork is forwarded now.
        forwarder.attach(child)
        child_end = ChildEnd(child)
        # The first thread of ours. The server may write already; the pipe keeps it until then.
        pipe = child.stdout if one_stream else child.stderr
        assert pipe
        stderr = PipeReader(pipe, on_output)
        try:
            # Another thread may have called ``stop_handle.end`` before: then this ends the
            # server. Later calls come from any thread, until ``finish`` below.
            stop_handle.attach(lambda: child_end.ask(GRACE))
            # Starts the observer's thread, which may use the stop handle from now on.
            if observer:
                observer.on_started(child.pid, readiness)
            if serves:
                code = forwarder.wait(child, readiness.missed, GRACE)
            else:
                # A tool may take a signal in another sense: Ctrl-C ends what llama-cli writes.
                code = forwarder.wait(child)
        finally:
            # The order matters. First kill what is left of the server's group: it may hold
            # the pipe open, and the reader waits for the end of the pipe. From here on a late
            # call of the stop handle in another thread does nothing.
            child_end.finish()
            # The last words are complete after this, and ``on_stderr`` is not called any more,
            # unless the copying thread had to be left behind.
            stderr.finish()
            # Last: the observer's thread could read the whole stderr.
            if observer:
                observer.on_ended()
    # A server may live for months, and the count is the machine's: only what came since counts.
    killed = max(killed, observer.oom_kills if observer else 0)
    # Read only after the server has ended, so it does not change any more.
    told_to_end = stop_handle.is_ending
    death: Diagnosis | None = None
    if serves and not (readiness.served or told_to_end):
        from tsuku_llm.launch.failed.failure import explain

        # The counter is read after the end, for the same reason.
        explain(plan, code, stderr.text(), oom_killed=oom_kills() > killed)
    # An exit code of 0 is the server's own choice.
    elif code and serves and not told_to_end:
        from tsuku_llm.launch.failed.failure import why_ended

        death = why_ended(code, stderr.text(), oom_killed=oom_kills() > killed)
    return (_SIGNAL_EXIT - code if code < 0 else code), death


def _start(plan: LaunchPlan, keep: Collection[int], *, one_stream: bool) -> subprocess.Popen[bytes]:
    """Start the server, with its output where ours goes. Raises LaunchError."""
    # The pipe hides our terminal from the server: ask for colours if only stderr is one. If
    # stdout is a terminal too, the server sees that itself.
    if os.isatty(2) and not os.isatty(1):
        plan = plan._replace(env={"LLAMA_ARG_LOG_COLORS": "on", **plan.env})
    # Our own lines come before the server's.
    flush_output()
    try:
        if one_stream:
            return start_apart(plan, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, keep=keep)
        return start_apart(plan, stdout=None, keep=keep)
    except OSError as exc:
        from tsuku_llm.launch.failed.failure import refuse

        refuse(plan, exc)


def oom_kills() -> int:
    """Count the processes that the kernel has killed since boot because memory ran out.

    0 on systems without the counter.
    """
    with suppress(OSError, ValueError):
        lines = kernel_text(_VMSTAT).splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    return 0
