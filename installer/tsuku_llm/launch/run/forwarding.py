"""The forwarding of our signals to the server, and the wait for its end.

Each signal reaches the server, and only once, unless the server missed it. As process 1 (the first
process of a container) the wait also collects the orphans of the system.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from tsuku_llm.ground.foreign import read_kernel

_CHUNK = 64 * 1024
_SAME_EVENT = 0.2
"""Seconds within which the same signal again counts as one event.

`timeout` and some supervisors signal a process and then its whole group, and a second
interrupt makes the server exit without cleaning up.
"""

_HEARD = 3.0
"""Seconds after which a server that is to end is asked whether it has missed the signal."""

_TO_END = (signal.SIGINT, signal.SIGTERM)
"""The signals that upstream's server takes as a wish to end."""

_LOOK_AGAIN_MS = 1000
"""The longest sleep between two looks at the child.

While another thread asks for the child (``ChildEnd.ask`` does), ``Popen.poll`` says None also of a
child that has ended. If that is the answer to its SIGCHLD, no other signal comes.
"""

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


class SignalForwarder:
    """A context that forwards signals to the child, once each.

    A signal that arrives before the child exists is kept until ``attach``. A signal that is
    ignored when we start (nohup) stays ignored. ``on_signal`` is called with each of them first;
    it must be short and must not raise. On Windows the console itself tells the
    child: there we only make sure that the signal does not end us first. Python delivers
    signals to the main thread only, so in another thread nothing is forwarded.

    All handlers run in the main thread, between two steps of its Python code. They may
    interrupt ``attach`` and ``wait``. No other thread uses these fields, so they need no lock.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_signal: Callable[[int], None] | None = None,
    ) -> None:
        self._clock = clock
        self._told = on_signal or (lambda _number: None)
        self._child: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []
        self._last: dict[int, float] = {}
        self._unheard: tuple[int, float] | None = None
        """The last signal, and when it came; None once it is known whether it was heard."""
        self._told_to_end: list[float] = []
        """When each of these signals came."""
        self._wake: _Wake | None = None
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> SignalForwarder:
        if threading.current_thread() is threading.main_thread():
            if sys.platform != "win32":
                # The pipe before the handlers: from the first handled signal on, each one
                # leaves a byte in it. SIGCHLD needs a handler, as Python writes a byte only
                # for signals that it handles.
                self._wake = _Wake()
                before = signal.signal(signal.SIGCHLD, lambda *_: None)
                # It stays in place of the default, which does nothing either: for a child that ends
                # while the default is put back Python prints an error ("race condition").
                if before is not signal.SIG_DFL:
                    self._before[signal.SIGCHLD] = before
            for name in _FORWARDED:
                self._listen(name, self._on_signal)
            self._listen("SIGTSTP", self._on_suspend)
        return self

    def __exit__(self, *_: object) -> None:
        # The handlers before the pipe, so that no handler runs without it. None stands for
        # a handler that was not installed by Python; it cannot be put back.
        for number, before in self._before.items():
            signal.signal(number, before or signal.SIG_DFL)
        if self._wake:
            self._wake.close()

    def wait(
        self,
        child: subprocess.Popen[bytes],
        missed: Callable[[float], bool] = lambda _since: False,
        patience: float = float("inf"),
    ) -> int:
        """Wait for the child and return its exit code; handle every signal meanwhile.

        ``missed`` is asked once, some seconds after a signal, with these seconds: True sends the
        same signal again. A child that was told twice to end is killed ``patience`` seconds after
        the second time: upstream's server then calls exit() (``signal_handler`` in
        tools/server/server.cpp, b11434), which was seen to hang (canonical/inference-snaps 225).

        A signal just before the wait begins counts too. Python runs handlers between its
        own steps: a signal between the last step and a blocking waitpid would be handled
        only when the server ends.
        """
        # If the child ends, or a signal arrives, between ``poll`` and ``sleep``, its byte is
        # in the pipe already and ``sleep`` returns at once. Any byte leads to a new poll.
        while self._wake and child.poll() is None:
            # An orphan that ended has sent SIGCHLD, too. Only process 1 gets orphans as children.
            if self._wake.sleep() and os.getpid() == 1:
                collect_orphans()
            self._send_again(missed)
            if self._told_to_end[1:] and self._clock() - self._told_to_end[1] >= patience:
                child.kill()
        # Reaped by now, or without a pipe (Windows, another thread): then this call waits.
        return child.wait()

    def attach(self, child: subprocess.Popen[bytes]) -> None:
        """Forward the signals that were kept, and from now on each one at once."""
        # First: a signal during the loop is then forwarded by its own handler, and the list
        # does not grow while we walk through it.
        self._child = child
        for number in self._waiting:
            self._forward(number)

    def _send_again(self, missed: Callable[[float], bool]) -> None:
        if self._unheard is None:
            return
        number, at = self._unheard
        since = self._clock() - at
        if since >= _HEARD:
            self._unheard = None
            if missed(since):
                self._forward(number)

    def _listen(self, name: str, handler: Callable[[int, FrameType | None], None]) -> None:
        # Windows has only some of the names. SIG_IGN was set by our parent (nohup): keep it.
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            self._before[number] = signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # Runs in the main thread, maybe in the middle of ``attach`` or before it.
        now = self._clock()
        if now - self._last.get(number, float("-inf")) < _SAME_EVENT:
            return
        self._last[number] = now
        self._unheard = number, now
        if number in _TO_END:
            self._told_to_end.append(now)
        self._told(number)
        if self._child is None:
            # The fork may be under way: ``attach`` forwards it.
            self._waiting.append(number)
        else:
            self._forward(number)

    def _forward(self, number: int) -> None:
        if self._child is not None and sys.platform != "win32":
            # ``send_signal`` sends nothing to a child that has been reaped, so the signal
            # cannot hit a process that got its number since.
            self._child.send_signal(number)

    def _on_suspend(self, _number: int, _frame: FrameType | None) -> None:
        """Stop and continue together with the child (Ctrl-Z, fg)."""
        if sys.platform != "win32":
            # The child is in another session: the terminal's SIGTSTP and the shell's
            # SIGCONT reach only us. Stop it first, as we do nothing once we are stopped.
            self._forward(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            # We are here again only after a SIGCONT.
            self._forward(signal.SIGCONT)


def collect_orphans() -> None:
    """Reap the ended children of this process that it did not start itself.

    The kernel makes process 1 the parent of every process whose own parent has ended. Without this
    they would stay as zombies, and fill the container's table of processes.
    """
    if sys.platform != "linux":
        return
    ours = os.getpid()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        # Suppressed: it has ended meanwhile, or its parent has collected it.
        with suppress(OSError):
            stat = read_kernel(f"/proc/{name}/stat")
            # The program's name, in parentheses, may contain anything (proc_pid_stat(5)).
            state, parent, _, session, *_ = stat.rpartition(b")")[2].split()
            # Every process that we start leads a session: the server, a question to a driver.
            # Another thread may wait for such a one, and needs its exit code. So leave them.
            if state == b"Z" and int(parent) == ours and session != name.encode():
                os.waitpid(int(name), os.WNOHANG)


class _Wake:
    """A pipe into which the interpreter writes a byte when a signal arrives."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        if sys.platform != "win32":  # on Windows this class is not used
            # The C handler writes to it and must not block. A byte that does not fit is
            # not needed: a full pipe wakes us as well.
            os.set_blocking(write, False)
            self._poll = select.poll()
            self._poll.register(self._read, select.POLLIN)
        self._write = write
        self._before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def sleep(self) -> bool:
        """Wait for a signal, for a second at most; return whether there was one since last time."""
        if not self._poll.poll(_LOOK_AGAIN_MS):
            return False
        # Empty the pipe: several signals since the last call need only one look.
        os.read(self._read, _CHUNK)
        return True

    def close(self) -> None:
        # Before the pipe is closed: its number may be reused, and a signal would write there.
        signal.set_wakeup_fd(self._before)
        os.close(self._read)
        os.close(self._write)
