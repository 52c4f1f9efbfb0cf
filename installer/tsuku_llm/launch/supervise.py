"""Supervision of one server in the foreground, from its start to its end.

The threads: the main one starts the server and waits for it (``Relay``). ``Passage`` copies
its stderr. The observer follows the start in another thread. A timer (``_Ending``) kills a
server that ignores SIGTERM, at the request of any thread (``Leash``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import IO, Protocol

from tsuku_llm.launch.child import Tail, end
from tsuku_llm.launch.forwarding import SignalForwarder
from tsuku_llm.launch.planning import LaunchPlan
from tsuku_llm.launch.replace_process import flush

_PR_SET_PDEATHSIG = 1
_SIGNAL_EXIT = 128


class Observer(Protocol):
    """A follower of a start; ``ready`` is true once the server has served."""

    ready: bool

    def started(self, pid: int) -> None:
        """Take note that the server runs; called in the supervisor's thread."""

    def heard(self, data: bytes) -> None:
        """Read what the server wrote to its stderr; called in the thread that copies it."""

    def ended(self) -> None:
        """Take note that the server has ended; called in the supervisor's thread."""


class Nobody:
    """The observer that does nothing."""

    ready = False

    def started(self, pid: int) -> None:
        """Do nothing."""

    def heard(self, data: bytes) -> None:
        """Do nothing."""

    def ended(self) -> None:
        """Do nothing."""


def supervise(
    plan: LaunchPlan,
    *,
    keep: Collection[int] = (),
    leash: StopHandle | None = None,
    observer: Observer | None = None,
    one_stream: bool = False,
) -> int:
    """Run the server to its end; return its exit code, or 128 + n for signal n.

    The server inherits the descriptors in ``keep``, and no others except its streams.
    ``leash`` ends it from another thread. ``observer`` is told what it does.

    The server's stdout is ours; with ``one_stream`` it is copied together with its stderr.
    The stderr is copied to ours as it arrives, and its end is kept to explain a failed start.
    Raises LaunchError if the server cannot be started, or fails before it serves and the
    cause is known. Once it serves, or when it was told to end, its exit code is returned as
    it is.
    """
    leash, observer = leash or StopHandle(), observer or Nobody()
    # Before the start: a count that rises later points at this server.
    killed, ending = _oom_kills(), _Ending()
    # Handlers first: a signal from here on is kept for the server and does not end us alone.
    with SignalForwarder() as relay:
        # Before any thread of ours: the kernel ties the server to us only while this process
        # has one thread (``_tied_to_us``).
        child = _start(plan, keep, one_stream=one_stream)
        # At once, as the server runs: a signal that came during the fork is forwarded now.
        relay.attach(child)
        # The first thread of ours. The server may write already; the pipe keeps it until then.
        stderr = StderrTee(child.stdout if one_stream else child.stderr, observer.heard)
        try:
            # Another thread may have called ``leash.end`` before: then this ends the server.
            leash.attach(lambda: ending.begin(child, leash.grace))
            # Starts the observer's thread, which may call ``leash.end`` from now on.
            observer.started(child.pid)
            code = relay.wait(child)
        finally:
            # The order matters. First kill what is left of the server's group: it may hold
            # the pipe open, and ``finish`` waits for the end of the pipe.
            end(child)
            # From here on a late ``leash.end`` in another thread does nothing.
            ending.over()
            # The tail is complete after this, and ``heard`` is not called any more, unless
            # the copying thread had to be left behind.
            stderr.finish()
            # Last: the observer has received the whole stderr.
            observer.ended()
    # Both are read only after the server has ended, so they do not change any more.
    leash.signalled = relay.passed_on
    told_to_end = relay.passed_on or leash.reason is not None
    if code != 0 and not (stderr.ready or observer.ready or told_to_end):
        from tsuku_llm.launch.failure import explain  # noqa: PLC0415 - only then

        explain(plan, code, stderr.tail.text(), oom_killed=_oom_kills() > killed)
    return _SIGNAL_EXIT - code if code < 0 else code


class _Ending:
    """The end of a server on request: SIGTERM now, SIGKILL later if it still runs.

    ``over`` joins the timer thread: PR_SET_PDEATHSIG is only set for the next server while
    this process has one thread.
    """

    def __init__(self) -> None:
        # Any thread may call ``begin``, while the supervisor calls ``over``.
        self._lock = threading.Lock()
        self._over = False
        self._killer: threading.Timer | None = None

    def begin(self, child: subprocess.Popen[bytes], grace: float) -> None:
        with self._lock:
            # The server was reaped before this request came: start no timer, as ``over``
            # would not join it.
            if self._over:
                return
            # Safe if the child has just ended: Popen sends nothing to a reaped process.
            child.terminate()
            self._killer = threading.Timer(grace, child.kill)
            # Daemon: a timer must not keep this process alive if the supervisor raises.
            self._killer.daemon = True
            self._killer.start()

    def over(self) -> None:
        with self._lock:
            self._over = True
        # No ``begin`` sets a timer any more, so it is read without the lock. If the timer is
        # at its ``kill`` right now, that finds a reaped child and the join takes no time.
        if self._killer:
            self._killer.cancel()
            self._killer.join()


def _start(plan: LaunchPlan, keep: Collection[int], *, one_stream: bool) -> subprocess.Popen[bytes]:
    """Start the server in a new session: signals reach it only through us, and only once."""
    # Our own lines come before the server's.
    flush()
    try:
        return subprocess.Popen(
            plan.argv,
            cwd=plan.cwd,
            env=_coloured(plan),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if one_stream else None,
            stderr=subprocess.STDOUT if one_stream else subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(keep),
            preexec_fn=_tied_to_us(),  # noqa: PLW1509
        )
    except OSError as exc:
        from tsuku_llm.launch.failure import refuse  # noqa: PLC0415 - only then

        refuse(plan, exc)


def _coloured(plan: LaunchPlan) -> dict[str, str]:
    """Turn the server's log colours on if our stderr is a terminal behind the pipe."""
    env = dict(plan.env)
    # If stdout is a terminal too, the server sees that itself.
    if os.isatty(2) and not os.isatty(1):
        env.setdefault("LLAMA_ARG_LOG_COLORS", "on")
    return env


def _tied_to_us() -> Callable[[], None] | None:
    """Return the function that makes the kernel kill the child when we are killed.

    None on other systems than Linux, and while this process has several threads: between
    fork and exec the child would wait forever for a lock that another thread held.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return None
    import ctypes  # noqa: PLC0415

    # Load before the fork: after it, the child calls only what is ready.
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def tie() -> None:
        # Runs in the child between fork and exec. The setting survives the exec.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # We may have died between the fork and the call: then no signal will come.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return tie


def _oom_kills() -> int:
    """Count the processes that the kernel has killed since boot because memory ran out.

    0 on systems without the counter.
    """
    with suppress(OSError, ValueError), open("/proc/vmstat", encoding="utf-8") as file:  # noqa: PTH123
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    return 0


# --- the stop handle ---


GRACE = 10.0
"""Seconds that a server gets to finish its current requests and exit."""


class StopHandle:
    """The stop handle of one server: ``end`` stops it now, or as soon as it runs.

    The supervisor sends the server SIGTERM, and SIGKILL if it still runs after
    ``grace`` seconds. Then ``supervise`` returns as for any other end.
    """

    def __init__(self, grace: float = GRACE) -> None:
        self.grace = grace
        self.signalled: int | None = None
        """The last signal that the supervisor forwarded; None for none. Set after the end."""
        # Guards the two fields below: ``end`` and ``attach`` run in different threads.
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._pull: Callable[[], None] | None = None

    @property
    def reason(self) -> str | None:
        """The reason for which the server was asked to end; None if it was not."""
        return self._reason

    def end(self, reason: str) -> None:
        """Ask the server to end, once: the first reason counts. Safe from any thread."""
        with self._lock:
            # Another thread may have called before us: then it ends the server.
            if self._reason is not None:
                return
            self._reason = reason
            # None: ``attach`` was not called yet. It takes the lock after us, sees the
            # reason, and ends the server itself.
            pull = self._pull
        # Outside the lock: ``pull`` takes locks of the supervisor or of another leash.
        if pull:
            pull()

    def attach(self, pull: Callable[[], None]) -> None:
        """Set the function that ends the server; call it now if ``end`` was called before.

        The supervisor calls this once the server runs. A leash that outlives several starts
        is attached to each of them in turn.
        """
        with self._lock:
            # Both in one step: an ``end`` in another thread either sees ``pull``, or was
            # here before and left its reason. So ``pull`` is called by exactly one of us.
            self._pull = pull
            asked = self._reason is not None
        # Outside the lock, as in ``end``.
        if asked:
            pull()


# --- the copy of stderr ---


_READY = (b"model loaded", b"listening on")
"""What the server logs once it serves; every version so far logs one of the two."""

_CHUNK = 64 * 1024
_LIMIT = 5.0
"""Seconds to wait for the thread when the reader of our stderr has stopped reading."""


class StderrTee(threading.Thread):
    """The thread that copies the child's stderr to ours as it arrives, and keeps its end.

    It goes on reading when our stderr is closed: a closed terminal must not end a server
    that never wrote to it. ``heard`` gets a copy of everything, in this thread.
    """

    def __init__(self, source: IO[bytes] | None, heard: Callable[[bytes], None]) -> None:
        # Daemon: a write to a stopped terminal can block forever and must not keep us alive.
        super().__init__(daemon=True)
        # Only this thread writes these two. The supervisor reads them after ``finish``; a
        # thread that is still alive then costs at most the newest bytes.
        self.tail = Tail()
        self.ready = False
        self._source = source
        self._heard = heard
        self.start()

    def run(self) -> None:
        """Copy until the child and every process that it started have closed the pipe."""
        if self._source is None:
            return
        # Unbuffered: a line reaches the terminal when the server writes it, not 64 KiB later.
        while data := os.read(self._source.fileno(), _CHUNK):
            # Ignore a closed stderr of ours: without a reader the pipe fills up, and the
            # server blocks in its next log line.
            with suppress(OSError):
                _write_all(2, data)
            self.tail.feed(data)
            self.ready = self.ready or self.tail.has_late(_READY, len(data))
            # The observer's code runs in this thread: nothing is copied until it returns.
            self._heard(data)

    def finish(self) -> None:
        """Wait until everything is copied, for 5 seconds at most."""
        # The child has ended, so the pipe usually ends too. The thread stays alive if the
        # reader of our stderr has stopped, or if a grandchild still holds the pipe open.
        self.join(_LIMIT)
        # Close only what the thread no longer reads: the number of a closed descriptor can
        # be given to another file, which the thread would then read.
        if self._source is not None and not self.is_alive():
            self._source.close()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    # A write to a pipe or terminal may take only a part.
    while view:
        view = view[os.write(descriptor, view) :]
