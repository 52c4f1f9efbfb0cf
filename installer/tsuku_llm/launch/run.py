"""Run a server in the foreground, or become it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, NoReturn

from tsuku_llm.errors import LaunchError
from tsuku_llm.launch.child import Tail, end, why_not_started
from tsuku_llm.launch.diagnosis import diagnose
from tsuku_llm.launch.planning import Plan

_READY = (b"model loaded", b"listening on")
"""What the server logs once it serves; one of the two in every version so far."""

_CHUNK = 64 * 1024
_SAME_EVENT = 0.2
"""Seconds: `timeout` and some supervisors signal a process and then its whole group, and
a second interrupt makes the server leave without cleaning up."""

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
_PR_SET_PDEATHSIG = 1
_SIGNAL_EXIT = 128
_PUMP_LIMIT = 5.0


def supervise(plan: Plan, *, keep: Collection[int] = ()) -> int:
    """Run the server to its end; gives its exit code, or 128 + n for signal n.

    It inherits the descriptors in ``keep``, and no others but its streams.

    Its stdout is ours; its stderr passes through byte by byte while the last of it is
    kept, so that a start that fails is explained: then LaunchError is raised. So it is
    when it cannot be started at all. Once it serves, or when a signal was passed on to
    it, its exit code is its own affair.
    """
    with Relay() as relay:
        child = _start(plan, keep)
        relay.attach(child)
        stderr = _Passage(child.stderr)
        try:
            code = relay.wait(child)
        finally:
            end(child)
            stderr.finish()
    if code != 0 and not stderr.ready and not relay.passed_on:
        _explain(plan, code, stderr.tail.text())
    return _SIGNAL_EXIT - code if code < 0 else code


def replace(plan: Plan, *, keep: Collection[int] = ()) -> int:
    """Become the server, which keeps the descriptors in ``keep``, and so never return.

    On Windows exec gives the terminal back at once: there the server is waited for, and
    its exit code returned. Raises LaunchError where it cannot be started.
    """
    if sys.platform == "win32":
        return supervise(plan, keep=keep)
    _flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and exec would keep that
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        for descriptor in keep:
            os.set_inheritable(descriptor, True)  # noqa: FBT003
        os.chdir(plan.cwd)
        os.execve(plan.argv[0], plan.argv, plan.env)  # noqa: S606
    except OSError as exc:
        _refuse(plan, exc)


class Relay:
    """Passes signals on to the child, once each; what comes before there is one, waits.

    A signal that is ignored when we start (nohup) stays ignored. On Windows the console
    itself tells the child, so there the signal only must not end us first. Outside the
    main thread Python hears no signals, and there is nothing to pass on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.passed_on = False
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
        self.passed_on = True
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


class _Passage(threading.Thread):
    """Copies the child's stderr to ours as it comes, and keeps its end.

    When ours is gone, it goes on reading: a server must not die of a closed terminal
    that it never wrote to.
    """

    def __init__(self, source: IO[bytes] | None) -> None:
        super().__init__(daemon=True)
        self.tail = Tail()
        self.ready = False
        self._source = source
        self.start()

    def run(self) -> None:
        if self._source is None:
            return
        while data := os.read(self._source.fileno(), _CHUNK):
            with suppress(OSError):
                _write_all(2, data)
            self.tail.feed(data)
            self.ready = self.ready or self.tail.has_late(_READY, len(data))

    def finish(self) -> None:
        """Wait until everything has passed; not for a reader of ours that has stopped."""
        self.join(_PUMP_LIMIT)
        if self._source is not None and not self.is_alive():
            self._source.close()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _start(plan: Plan, keep: Collection[int]) -> subprocess.Popen[bytes]:
    """Start the server in a session of its own: signals reach it through us, and only once."""
    _flush()
    try:
        return subprocess.Popen(
            plan.argv,
            cwd=plan.cwd,
            env=_coloured(plan),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(keep),
            preexec_fn=_tied_to_us(),  # noqa: PLW1509
        )
    except OSError as exc:
        _refuse(plan, exc)


def _flush() -> None:
    """Send off what we printed, so that the server's output comes after it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


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


def _explain(plan: Plan, code: int, tail: str) -> None:
    diagnosis = diagnose(code, tail)
    if diagnosis is None:
        return
    raise LaunchError(
        f"the server did not start: {diagnosis.cause}", hint=diagnosis.hint(plan.backend)
    )


def _refuse(plan: Plan, error: OSError) -> NoReturn:
    diagnosis = why_not_started(error, Path(plan.argv[0]))
    raise LaunchError(
        f"the server cannot be started: {diagnosis.cause}",
        facts=(str(error),),
        hint=diagnosis.hint(plan.backend),
    ) from error
