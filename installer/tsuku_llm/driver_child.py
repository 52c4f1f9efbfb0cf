"""Questions to a short-lived child process, which may crash or hang without harm.

One child answers many questions, as starting one for each would cost more than the answers. It
writes JSON lines to its own pipe:

    {"ask": Q, "before": CALL}    it is about to make a call that may never return
    {"ask": Q, "call": ..., ...}  an answer, as raw as it came
    {"ask": Q, "end": "done"}     it goes on to the next question

If a question breaks the child, that question is blamed and a new child gets the rest. A question
that crashed after others is asked once more alone: two drivers in one process can break each other
(for example with two copies of LLVM).

Threads: the caller's; one per ``Asking`` that starts the children and talks to them; one per child
that reads its pipe. Only the ``Asking`` thread changes the state of a ``Child``, except that
``cancel`` may come from the caller's thread at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, cast

_OUTPUT_LIMIT = 4 << 20  # bytes: a driver that writes to our pipe cannot fill the memory
_START_SECONDS = 30.0  # enough on a loaded machine; the child loads no driver before it greets
_REAP_SECONDS = 1.0

StartProcess = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]
"""A function that starts a child with these questions. May raise ``OSError``."""


@dataclass(frozen=True, slots=True)
class DriverAnswer:
    """A child's answer to one question.

    ``end`` tells how the answer ended: ``done``, ``timed-out``, ``signal 11``, ``exit 1``,
    ``not-started``, or ``absent`` for a question that was never asked. ``during`` is the call that
    was in progress when it ended badly.
    """

    lines: tuple[Mapping[str, Any], ...] = ()
    end: str = "absent"
    during: str | None = None


ABSENT = DriverAnswer()


@dataclass(slots=True)
class _Talk:
    """The lines and answers that one child has sent so far."""

    lines: list[Mapping[str, Any]] = field(default_factory=list)
    current: str | None = None
    during: str | None = None
    started: bool = False
    answers: dict[str, DriverAnswer] = field(default_factory=dict)

    def hear(self, line: Mapping[str, Any]) -> None:
        if line["ask"] != self.current:
            self.current, self.lines = line["ask"], []
        self.during = None
        if "end" in line:
            self.answers[line["ask"]] = DriverAnswer(tuple(self.lines), "done")
            self.current, self.lines = None, []
        elif "before" in line:
            self.during = str(line["before"])
        else:
            self.lines.append({key: value for key, value in line.items() if key != "ask"})


class Child:
    """A conversation with one child process after another; ``limit`` is in seconds, per question.

    ``first`` is a child that was already started with all of them.
    """

    def __init__(
        self, start: StartProcess, limit: float, first: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._start = start
        self._limit = limit
        self._first = first
        self._process = first
        self._cancelled = False

    def ask_all(self, questions: Sequence[str]) -> dict[str, DriverAnswer]:
        """Ask every question, in this order, with as few children as possible."""
        answers: dict[str, DriverAnswer] = {}
        left = list(questions)
        while left and not self._cancelled:
            answered, blamed = self._converse(left)
            answers |= answered
            left = [question for question in left if question not in answers]
            # Ask a crashed question again alone, if the child had answered others before it:
            # another driver in the same process may have caused the crash. A timeout is not
            # repeated, as it costs its full limit.
            if blamed and answers[blamed].end != "timed-out" and len(answered) > 1:
                answers |= self._converse([blamed])[0]
        return {question: answers.get(question, ABSENT) for question in questions}

    def cancel(self) -> None:
        """Kill the running child and start no other; may be called from any thread."""
        # Set the flag before reading the process: a child that the other thread is starting right
        # now is not stored yet, and ``_converse`` checks the flag after it has stored it.
        self._cancelled = True
        if self._process and self._process.poll() is None:
            _kill(self._process)

    def _converse(self, questions: Sequence[str]) -> tuple[dict[str, DriverAnswer], str | None]:
        """Talk to one child; return its answers and the question that broke it."""
        try:
            process = self._process = self._first or self._start(questions)
        except OSError:
            return dict.fromkeys(questions, DriverAnswer(end="not-started")), None
        # The child that was started ahead serves once; the next one is started here.
        self._first = None
        # ``cancel`` may have run while the child was being started, and found no process to kill.
        if self._cancelled:
            _kill(process)
        talk = _Talk()
        in_time = self._listen(process, talk, questions)
        # A child that closed its pipe is about to exit by itself: wait for its real exit status.
        # One that used up its time is killed at once.
        end = _stop(process, patience=_REAP_SECONDS if in_time else 0.0)
        if not talk.started:
            return dict.fromkeys(questions, DriverAnswer(end="not-started")), None
        open_ = [question for question in questions if question not in talk.answers]
        if not open_:
            return talk.answers, None
        # The child answers in order, so it was busy with the first open question.
        blamed = open_[0]
        end = end if in_time else "timed-out"
        talk.answers[blamed] = DriverAnswer(tuple(talk.lines), end, talk.during)
        return talk.answers, blamed

    def _listen(self, process: subprocess.Popen[bytes], talk: _Talk, known: Sequence[str]) -> bool:
        """Read until the child closes its pipe; return False if a question used up its time."""
        # Another thread reads the pipe, so that this one can wait with a deadline on every system.
        lines = _read_in_background(cast("IO[bytes]", process.stdout))
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return False
            if line is None:
                return True
            message = _message(line, known)
            if message is None:
                continue
            talk.started = True
            # The greeting or the first line of another question starts that question's time.
            if message["ask"] != talk.current:
                deadline = time.monotonic() + self._limit
            if message["ask"] is not None:  # None is the greeting
                talk.hear(message)


class Asking:
    """Questions that a thread asks in the background, while the caller does something else."""

    def __init__(self, child: Child, put: Callable[[], dict[str, DriverAnswer]]) -> None:
        self._child = child
        self._put = put
        self._answers: dict[str, DriverAnswer] = {}
        self._error: BaseException | None = None
        # A daemon, so that a thread blocked by a stuck child does not keep the program from
        # exiting.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __call__(self) -> Mapping[str, DriverAnswer]:
        """Wait for the answers; if the caller is interrupted, kill the child."""
        try:
            while self._thread.is_alive():
                # On Windows Ctrl-C interrupts no endless wait, so wait in steps of a second.
                self._thread.join(1.0)
        except BaseException:
            self._child.cancel()
            raise
        # The thread has ended: its results are complete, and reading them needs no lock.
        if self._error:
            raise self._error
        return self._answers

    def end(self) -> None:
        """End the child if it still runs, as its answers are no longer needed."""
        self._child.cancel()
        # Wait for the thread, which also removes the child's scratch folder.
        self._thread.join()

    def _run(self) -> None:
        try:
            self._answers = self._put()
        except BaseException as error:  # noqa: BLE001 - __call__ raises it in the caller's thread
            self._error = error


def _message(line: bytes, known: Sequence[str]) -> Mapping[str, Any] | None:
    """Read one line of the protocol; return None for other output, which a driver wrote there."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or "ask" not in message:
        return None
    return message if message["ask"] is None or message["ask"] in known else None


def _read_in_background(pipe: IO[bytes]) -> queue.Queue[bytes | None]:
    """Put lines in a queue as they arrive, then None.

    A thread reads them, as Windows cannot wait for a pipe with a timeout.
    """
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        room = _OUTPUT_LIMIT
        # This thread alone reads the pipe and closes it. The read ends when the child's side is
        # closed, by its exit or by our SIGKILL, or when the output limit is used up.
        with pipe, contextlib.suppress(OSError):
            while room > 0 and (line := pipe.readline(room)):
                room -= len(line)
                lines.put(line)
        # Always sent, so that the listener never waits for a reader that has stopped.
        lines.put(None)

    # A daemon: a child that was left behind keeps the pipe open, and this thread with it.
    threading.Thread(target=read, daemon=True).start()
    return lines


def _stop(process: subprocess.Popen[bytes], patience: float) -> str:
    """Wait ``patience`` seconds for the child to end, kill it, and return how it ended.

    A child that waits inside the kernel for a wedged device survives SIGKILL until the device
    answers. It is left behind, as waiting for it could take forever.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        return _end(process.wait(patience))
    _kill(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return _end(process.wait(_REAP_SECONDS))
    return "timed-out"


def _kill(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # The child leads its own session (see ``local_host``), so the group includes what drivers
        # have started. The group may already be gone: then there is nothing to kill.
        os.killpg(process.pid, signal.SIGKILL)


def _end(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit {code}"
