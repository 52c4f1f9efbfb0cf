"""Signals on their way to a server: each reaches it, and once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType

_CHUNK = 64 * 1024
_SAME_EVENT = 0.2
"""Seconds: `timeout` and some supervisors signal a process and then its whole group, and
a second interrupt makes the server leave without cleaning up."""

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


class Relay:
    """Passes signals on to the child, once each; what comes before there is one, waits.

    A signal that is ignored when we start (nohup) stays ignored. On Windows the console
    itself tells the child, so there the signal only must not end us first. Outside the
    main thread Python hears no signals, and there is nothing to pass on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.passed_on: int | None = None
        """The signal that the child was last given."""
        self._clock = clock
        self._child: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []
        self._last: dict[int, float] = {}
        self._wake: _Wake | None = None
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Relay:  # noqa: PYI034 (typing.Self is 3.11's)
        if threading.current_thread() is threading.main_thread():
            if sys.platform != "win32":
                self._wake = _Wake()
                self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _only_wake)
            for name in _FORWARDED:
                self._listen(name, self._on_signal)
            self._listen("SIGTSTP", self._on_suspend)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before or signal.SIG_DFL)
        if self._wake:
            self._wake.close()

    def wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the child; a signal that comes just before the waiting begins counts too.

        Python runs handlers between its own steps, so a signal between the last step and
        a blocking waitpid would be heard only when the server ends.
        """
        while self._wake and child.poll() is None:
            self._wake.sleep()
        return child.wait()

    def attach(self, child: subprocess.Popen[bytes]) -> None:
        """Pass on what has waited, and from now on everything at once."""
        self._child = child
        for number in self._waiting:
            self._pass_on(number)

    def _listen(self, name: str, handler: Callable[[int, FrameType | None], None]) -> None:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            self._before[number] = signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        now = self._clock()
        if now - self._last.get(number, float("-inf")) < _SAME_EVENT:
            return
        self._last[number] = now
        self.passed_on = number
        if self._child is None:
            self._waiting.append(number)
        else:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        if self._child is not None and sys.platform != "win32":
            self._child.send_signal(number)

    def _on_suspend(self, _number: int, _frame: FrameType | None) -> None:
        """Stop and go on together with the child (Ctrl-Z, fg)."""
        if sys.platform != "win32":
            self._pass_on(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._pass_on(signal.SIGCONT)


class _Wake:
    """A pipe that the interpreter writes to when a signal arrives."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        if sys.platform != "win32":  # where there is no such pipe at all
            os.set_blocking(write, False)
        self._write = write
        self._before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def sleep(self) -> None:
        """Wait for a signal; not at all if one has come since the last time."""
        os.read(self._read, _CHUNK)

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        os.close(self._read)
        os.close(self._write)


def _only_wake(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: that the signal is handled at all is what wakes us."""
