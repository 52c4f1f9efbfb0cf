"""A child process of the launcher: its end, its last words, and one question to a build."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import IO, NamedTuple

from tsuku_llm.ground.processes import children
from tsuku_llm.ground.processes.inherited import no_core_dumps
from tsuku_llm.launch.plan.planning import LaunchPlan

_PR_SET_PDEATHSIG = 1
_CHUNK = 64 * 1024
_WINDOW = 64 * 1024
"""Bytes of an output's end that are kept as they are."""
_MOST_OLDER = 1000
"""Lines from before the window that are kept: only complaints."""
_KILLED_LIMIT = 5.0
"""Seconds that a killed process gets to end: one that is stuck in a driver call never ends."""


class ProcessResult(NamedTuple):
    """The child's end and output: ``code`` is negative for a signal, None after a timeout."""

    code: int | None
    stdout: str
    stderr: str


def tied_to_us() -> Callable[[], None] | None:
    """Return the function that makes the kernel kill the child when we are killed.

    None on other systems than Linux, and while this process has several threads: between
    fork and exec the child would wait forever for a lock that another thread held.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return None
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


def start_apart(
    plan: LaunchPlan,
    *,
    stdout: int | None = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
    keep: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Start ``plan`` with a pipe for its output. Raises OSError if it cannot start.

    It inherits the descriptors in ``keep``. The child leads a new session, so that we can kill it
    together with every process that it started. It also means that Ctrl-C at the terminal reaches
    only us, and a signal of ours reaches it only once.
    """
    with no_core_dumps():
        return children.start(
            plan.argv,
            cwd=plan.cwd,
            env=plan.own_env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=tuple(keep),
            preexec_fn=tied_to_us(),
        )


def ask(plan: LaunchPlan, limit: float) -> ProcessResult:
    """Run ``plan`` to its end, or for ``limit`` seconds. Raises OSError if it cannot start."""
    child = start_apart(plan, stdout=subprocess.PIPE)
    # One thread for each pipe, before the wait: a full pipe that is not read blocks the child.
    readers = [PipeReader(stream) for stream in (child.stdout, child.stderr) if stream]
    code: int | None = None
    try:
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(limit)
    finally:
        # Kill first, on every way out: the readers end when the last writer is gone.
        ChildEnd(child).finish()
        stdout, stderr = (reader.finish() for reader in readers)
    return ProcessResult(code, stdout, stderr)


class ChildEnd:
    """The end of one child that leads its own session; the launcher ends children only here.

    Any thread may ask the child to end. The thread that started it finishes: it kills what is
    left, and leaves no timer thread behind.
    """

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        # Guards the two fields below: ``ask`` runs in any thread, ``finish`` in the owner's.
        self._lock = threading.Lock()
        self._finished = False
        self._killer: threading.Timer | None = None

    def ask(self, grace: float) -> None:
        """Send SIGTERM now, and SIGKILL in ``grace`` seconds; call it once. Any thread may."""
        with self._lock:
            # ``finish`` came first. Start no timer, as nobody would join it.
            if self._finished:
                return
            # Popen sends nothing to a child that has been reaped, so this cannot hit a
            # process that got its number since. The same holds for ``kill`` in the timer.
            self._child.terminate()
            self._killer = threading.Timer(grace, self._child.kill)
            # Daemon: the timer must not keep this process alive if its owner raises.
            self._killer.daemon = True
            self._killer.start()

    def finish(self) -> None:
        """Kill the child and what is left of its process group, reap it, and end the timer."""
        if sys.platform == "win32":
            self._child.kill()
        else:
            # The child may have been reaped already. Its group lives on while it has a member,
            # and until then the kernel gives the child's number to no other process.
            with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a zombie's group
                os.killpg(self._child.pid, signal.SIGKILL)
        # A driver call in the kernel can delay even SIGKILL: do not wait for it without a limit.
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_KILLED_LIMIT)
        with self._lock:
            self._finished = True
        # Read without the lock: ``ask`` sets no timer any more. A timer that runs its ``kill``
        # right now finds a reaped child, so the join takes no time. Join it: PR_SET_PDEATHSIG
        # is only set for the next server while this process has one thread.
        if self._killer:
            self._killer.cancel()
            self._killer.join()


class LastWords:
    """The end of an output, and the complaints before it: a long backtrace hides no cause.

    Keeps the last 64 KiB at least, and at most 1,000 lines of what was said before. One thread
    feeds it; another one reads it after the end of the output.
    """

    def __init__(self) -> None:
        self._window = bytearray()
        self._older: list[str] = []

    def feed(self, data: bytes) -> None:
        """Add ``data``; of what leaves the window, keep the complaints."""
        self._window += data
        # Twice the window, so that each byte is moved and read once, not at every call.
        if len(self._window) < 2 * _WINDOW:
            return
        # Most servers never say that much: their start does without these patterns.
        from tsuku_llm.launch.ask.last_words import own_words  # noqa: PLC0415 - only for a failure

        # Cut behind a line; a single endless line is cut anywhere.
        end = len(self._window) - _WINDOW
        cut = self._window.rfind(b"\n", 0, end) + 1 or end
        leaving = self._window[:cut].decode("utf-8", "replace")
        del self._window[:cut]
        self._older += own_words(leaving.split("\n"))
        del self._older[:-_MOST_OLDER]

    def text(self) -> str:
        """Decode what is kept; U+FFFD replaces what is not UTF-8."""
        older = "".join(f"{line}\n" for line in self._older)
        return older + self._window.decode("utf-8", "replace")


class PipeReader(threading.Thread):
    """The thread that empties one pipe, so that the child never blocks on it.

    ``on_data`` gets a copy of everything, in this thread.
    """

    def __init__(
        self, stream: IO[bytes], on_data: Callable[[bytes], None] = lambda _: None
    ) -> None:
        # Daemon: a process that left the group can hold the pipe open for as long as it runs, and
        # ``on_data`` may block in a write to a stopped terminal.
        super().__init__(daemon=True)
        self._stream = stream
        self._on_data = on_data
        # Written by this thread only. ``finish`` reads it after the join; a thread that is
        # still alive then costs at most the newest bytes.
        self._words = LastWords()
        self.start()

    def run(self) -> None:
        """Read until every process that holds the other end of the pipe has closed it."""
        while data := os.read(self._stream.fileno(), _CHUNK):
            self._words.feed(data)
            self._on_data(data)

    def finish(self) -> str:
        """Return the text; leave the pipe to the thread if a grandchild still holds it open."""
        # The child has ended, so the pipe usually ends too.
        self.join(_KILLED_LIMIT)
        # Close only what the thread no longer reads: the descriptor's number may be reused.
        if not self.is_alive():
            self._stream.close()
        return self.text()

    def text(self) -> str:
        """Return what was said so far."""
        return self._words.text()
