"""Questions put to a short-lived child, which may crash or hang without harm.

One child answers many questions, as starting one for each would cost more than the
answers. It writes JSON lines to its own pipe:

    {"ask": Q, "before": CALL}    it is about to make a call that may never return
    {"ask": Q, "call": ..., ...}  an answer, as raw as it came
    {"ask": Q, "end": "done"}     it goes on to the next question

A question that breaks the child is blamed, and the rest is put to a new child. One that
crashed behind others is asked once more alone: two drivers in one process can break
each other (two copies of LLVM, for one).
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

_OUTPUT_LIMIT = 4 << 20  # a driver that found our pipe cannot fill the memory
_START_SECONDS = 30.0  # of a loaded machine; no driver is loaded before the greeting
_REAP_SECONDS = 1.0

Start = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]
"""How to start a child with these questions. May raise ``OSError``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child said about one question.

    ``end`` is how the saying ended: ``done``, ``timed-out``, ``signal 11``, ``exit 1``,
    ``not-started``, or ``absent`` for a question that was never asked. ``during`` is
    the call that was in progress when it ended badly.
    """

    lines: tuple[Mapping[str, Any], ...] = ()
    end: str = "absent"
    during: str | None = None


ABSENT = Answer()


@dataclass(slots=True)
class _Talk:
    """What one child has said so far."""

    lines: list[Mapping[str, Any]] = field(default_factory=list)
    current: str | None = None
    during: str | None = None
    started: bool = False
    answers: dict[str, Answer] = field(default_factory=dict)

    def hear(self, line: Mapping[str, Any]) -> None:
        if line["ask"] != self.current:
            self.current, self.lines = line["ask"], []
        self.during = None
        if "end" in line:
            self.answers[line["ask"]] = Answer(tuple(self.lines), "done")
            self.current, self.lines = None, []
        elif "before" in line:
            self.during = str(line["before"])
        else:
            self.lines.append({key: value for key, value in line.items() if key != "ask"})


class Child:
    """Puts questions to one child after another; ``limit`` is in seconds, per question.

    ``first`` is a child that was already started with all of them.
    """

    def __init__(
        self, start: Start, limit: float, first: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._start = start
        self._limit = limit
        self._first = first
        self._process = first
        self._cancelled = False

    def ask_all(self, questions: Sequence[str]) -> dict[str, Answer]:
        """Put every question, in this order, to as few children as it takes."""
        answers: dict[str, Answer] = {}
        left = list(questions)
        while left and not self._cancelled:
            answered, blamed = self._converse(left)
            answers |= answered
            left = [question for question in left if question not in answers]
            if blamed and answers[blamed].end != "timed-out" and len(answered) > 1:
                answers |= self._converse([blamed])[0]
        return {question: answers.get(question, ABSENT) for question in questions}

    def cancel(self) -> None:
        """End the child that runs, and start no other."""
        self._cancelled = True
        if self._process and self._process.poll() is None:
            _kill(self._process)

    def _converse(self, questions: Sequence[str]) -> tuple[dict[str, Answer], str | None]:
        """One child: what it answered, and the question that it did not survive."""
        try:
            process = self._process = self._first or self._start(questions)
        except OSError:
            return dict.fromkeys(questions, Answer(end="not-started")), None
        self._first = None
        if self._cancelled:  # while it was being started
            _kill(process)
        talk = _Talk()
        in_time = self._listen(process, talk, questions)
        end = _stop(process, patience=_REAP_SECONDS if in_time else 0.0)
        if not talk.started:
            return dict.fromkeys(questions, Answer(end="not-started")), None
        open_ = [question for question in questions if question not in talk.answers]
        if not open_:
            return talk.answers, None
        blamed = open_[0]  # they are answered in their order
        end = end if in_time else "timed-out"
        talk.answers[blamed] = Answer(tuple(talk.lines), end, talk.during)
        return talk.answers, blamed

    def _listen(self, process: subprocess.Popen[bytes], talk: _Talk, known: Sequence[str]) -> bool:
        """Read until the child is done; False if one question used up its time."""
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
            if message["ask"] != talk.current:
                deadline = time.monotonic() + self._limit
            if message["ask"] is not None:  # else it is the greeting
                talk.hear(message)


class Asking:
    """Questions that are put in the background, while the caller does something else."""

    def __init__(self, child: Child, put: Callable[[], dict[str, Answer]]) -> None:
        self._child = child
        self._put = put
        self._answers: dict[str, Answer] = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __call__(self) -> Mapping[str, Answer]:
        """Wait for the answers; a caller who is interrupted leaves no child behind."""
        try:
            while self._thread.is_alive():
                self._thread.join(1.0)  # on Windows only a wait that ends can be interrupted
        except BaseException:
            self._child.cancel()
            raise
        if self._error:
            raise self._error
        return self._answers

    def end(self) -> None:
        """End the child if it still runs: nobody waits for the answers any more."""
        self._child.cancel()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._answers = self._put()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error


def _message(line: bytes, known: Sequence[str]) -> Mapping[str, Any] | None:
    """One line of the protocol; None for anything else that a driver wrote there."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or "ask" not in message:
        return None
    return message if message["ask"] is None or message["ask"] in known else None


def _read_in_background(pipe: IO[bytes]) -> queue.Queue[bytes | None]:
    """Lines as they come, then None. A thread, as Windows cannot wait for a pipe."""
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        room = _OUTPUT_LIMIT
        with pipe, contextlib.suppress(OSError):
            while room > 0 and (line := pipe.readline(room)):
                room -= len(line)
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _stop(process: subprocess.Popen[bytes], patience: float) -> str:
    """Give the child ``patience`` seconds to end, end it, and say how it ended.

    A child that waits inside the kernel for a wedged device survives SIGKILL until the
    device answers: it is left behind rather than waited for.
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
        os.killpg(process.pid, signal.SIGKILL)


def _end(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit {code}"
