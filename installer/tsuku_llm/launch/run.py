"""Run a server in the foreground, and stay with it to its end."""

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
    """Somebody who follows a start; ``ready`` is true once the server has served."""

    ready: bool

    def started(self, pid: int) -> None:
        """The server runs."""

    def heard(self, data: bytes) -> None:
        """It wrote this to its stderr; called from a thread."""

    def ended(self) -> None:
        """It is gone."""


class Nobody:
    """Follows nothing."""

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
    """Run the server to its end; gives its exit code, or 128 + n for signal n.

    It inherits the descriptors in ``keep``, and no others but its streams. ``leash`` ends it
    from another thread, ``observer`` is told what it does.

    Its stdout is ours, or with ``one_stream`` goes the way of its stderr. That passes through
    byte by byte while the last of it is kept, so that a start that fails is explained: then
    LaunchError is raised. So it is when it cannot be started at all. Once it serves, or when
    it was told to end, its exit code is its own affair.
    """
    leash, observer = leash or Leash(), observer or Nobody()
    killed, ending = _oom_kills(), _Ending()
    with Relay() as relay:
        child = _start(plan, keep, one_stream=one_stream)
        relay.attach(child)
        stderr = Passage(child.stdout if one_stream else child.stderr, observer.heard)
        try:
            leash.attach(lambda: ending.begin(child, leash.grace))
            observer.started(child.pid)
            code = relay.wait(child)
        finally:
            end(child)
            ending.over()
            stderr.finish()
            observer.ended()
    leash.signalled = relay.passed_on
    told_to_end = relay.passed_on or leash.reason is not None
    if code != 0 and not (stderr.ready or observer.ready or told_to_end):
        from tsuku_llm.launch.failure import explain  # noqa: PLC0415 - only then

        explain(plan, code, stderr.tail.text(), oom_killed=_oom_kills() > killed)
    return _SIGNAL_EXIT - code if code < 0 else code


class _Ending:
    """SIGTERM now, SIGKILL later, unless the child is gone by then.

    Its thread is gone with the child: only a single thread ties the next one to us.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = False
        self._killer: threading.Timer | None = None

    def begin(self, child: subprocess.Popen[bytes], grace: float) -> None:
        with self._lock:
            if self._over:
                return
            child.terminate()
            self._killer = threading.Timer(grace, child.kill)
            self._killer.daemon = True
            self._killer.start()

    def over(self) -> None:
        with self._lock:
            self._over = True
        if self._killer:
            self._killer.cancel()
            self._killer.join()


def _start(plan: Plan, keep: Collection[int], *, one_stream: bool) -> subprocess.Popen[bytes]:
    """Start the server in a session of its own: signals reach it through us, and only once."""
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
    """Tell the server that its stderr is a terminal's where a pipe of ours hides that."""
    env = dict(plan.env)
    if os.isatty(2) and not os.isatty(1):
        env.setdefault("LLAMA_ARG_LOG_COLORS", "on")
    return env


def _tied_to_us() -> Callable[[], None] | None:
    """Give what makes the kernel kill the child when we are killed ourselves.

    Linux only, and only while we are one thread: between fork and exec nothing may wait
    for a lock that another thread held.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return None
    import ctypes  # noqa: PLC0415

    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return tie


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    with suppress(OSError, ValueError), open("/proc/vmstat", encoding="utf-8") as file:  # noqa: PTH123
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    return 0
