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
from typing import Protocol

from tsuku_llm.launch.becoming import flush
from tsuku_llm.launch.child import end
from tsuku_llm.launch.leash import Leash
from tsuku_llm.launch.passage import Passage
from tsuku_llm.launch.planning import Plan
from tsuku_llm.launch.relay import Relay

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
    plan: Plan,
    *,
    keep: Collection[int] = (),
    leash: Leash | None = None,
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
    leash, observer = leash or Leash(), observer or Nobody()
    # Before the start: a count that rises later points at this server.
    killed, ending = _oom_kills(), _Ending()
    # Handlers first: a signal from here on is kept for the server and does not end us alone.
    with Relay() as relay:
        # Before any thread of ours: the kernel ties the server to us only while this process
        # has one thread (``_tied_to_us``).
        child = _start(plan, keep, one_stream=one_stream)
        # At once, as the server runs: a signal that came during the fork is forwarded now.
        relay.attach(child)
        # The first thread of ours. The server may write already; the pipe keeps it until then.
        stderr = Passage(child.stdout if one_stream else child.stderr, observer.heard)
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


def _start(plan: Plan, keep: Collection[int], *, one_stream: bool) -> subprocess.Popen[bytes]:
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


def _coloured(plan: Plan) -> dict[str, str]:
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
