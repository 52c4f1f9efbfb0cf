"""Questions to a short-lived child process, which may crash or hang without harm.

One child answers many questions, as starting one for each would cost more than the answers. It
writes JSON lines to its own pipe:

    {"ask": null}                 it runs; with "lacking": "thread" it can start no thread, and ends
    {"ask": Q, "before": CALL}    it is about to make a call that may never return
    {"ask": Q, "call": ..., ...}  an answer, as raw as it came
    {"ask": Q, "end": "done"}     it goes on to the next question

If a question breaks the child, that question is blamed and a new child gets the rest. A question
that crashed after others is asked once more alone: two drivers in one process can break each other
(for example with two copies of LLVM).

A slow driver may be healthy, so a question has a long limit. But several drivers may wait for the
same wedged GPU. So after ``PATIENCE`` seconds another child gets the questions that follow, and the
slow ones use up their limits side by side.

Threads: the caller's; one per ``Asking`` that starts the children and talks to them; one per child
that reads its pipe. Only the ``Asking`` thread changes the state of a ``Child``, except that
``cancel`` may come from the caller's thread at any time.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, cast

from tsuku_llm.ground import system_limits
from tsuku_llm.ground.foreign import parse_object

PATIENCE = 3.0
"""Seconds after which a question is slow: the user is told, and other children go on."""

_OUTPUT_LIMIT = 4 << 20  # bytes: a driver that writes to our pipe cannot fill the memory
_START_SECONDS = 30.0  # enough on a loaded machine; the child loads no driver before it greets
_REAP_SECONDS = 1.0

StartProcess = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]
"""A function that starts a child with these questions. May raise ``OSError``."""

Tell = Callable[[str, float], None]
"""A function that tells the user of a slow question: its name, and its limit in seconds."""


@dataclass(frozen=True, slots=True)
class DriverAnswer:
    """A child's answer to one question.

    ``end`` tells how the answer ended: ``done``, ``timed-out``, ``signal 11``, ``exit 1``,
    ``not-started``, or ``absent`` for a question that was never asked. ``during`` is the call that
    was in progress when it ended badly, or the reason why no child could be started. ``limit`` is
    the time in seconds that an answer with ``timed-out`` had.
    """

    lines: tuple[Mapping[str, Any], ...] = ()
    end: str = "absent"
    during: str | None = None
    limit: float | None = None


ABSENT = DriverAnswer()


@dataclass(slots=True, eq=False)
class _Talk:
    """A conversation with one child process; ``questions`` are those that it is to answer.

    ``deadline`` and ``slow_at`` are moments of the monotonic clock, for the question in progress.
    """

    process: subprocess.Popen[bytes]
    questions: list[str]
    deadline: float
    slow_at: float | None = None
    lines: list[Mapping[str, Any]] = field(default_factory=list)
    current: str | None = None
    during: str | None = None
    started: bool = False
    lacking: object = None
    alone: bool = False
    timed_out: bool = False
    answers: dict[str, DriverAnswer] = field(default_factory=dict)

    def hear(self, line: Mapping[str, Any], limit: float, patience: float) -> None:
        """Take in one message; a question's time, in seconds, starts with its first one."""
        if line["ask"] is None:  # the greeting
            self.lacking = line.get("lacking")
            self.started = self.lacking is None
            return
        self.started = True
        if line["ask"] != self.current:
            self.current, self.lines = line["ask"], []
            now = time.monotonic()
            self.deadline, self.slow_at = now + limit, now + min(patience, limit)
        self.during = None
        if "end" in line:
            self.answers[line["ask"]] = DriverAnswer(tuple(self.lines), "done")
            self.current, self.lines, self.slow_at = None, [], None
        elif "before" in line:
            self.during = str(line["before"])
        else:
            self.lines.append({key: value for key, value in line.items() if key != "ask"})

    @property
    def open(self) -> list[str]:
        """The questions that are not answered yet, in order."""
        return [question for question in self.questions if question not in self.answers]


_Heard = tuple[_Talk | None, bytes | None]
"""A line of one conversation, None at its end; no conversation after ``cancel``."""


class Child:
    """Conversations with child processes; ``limit`` and ``patience`` are in seconds, per question.

    ``first`` is a child that was already started with all of them. ``slow`` collects the questions
    that took longer than ``patience``; any thread may read it.
    """

    def __init__(
        self,
        start: StartProcess,
        limit: float,
        first: subprocess.Popen[bytes] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.limit = limit
        self.slow: list[str] = []
        self._patience = patience
        self._start = start
        self._first = first
        self._processes = [first] if first else []
        # All readers write to it, and only the asking thread reads it.
        self._heard: queue.Queue[_Heard] = queue.Queue()
        self._cancelled = False

    def ask_all(self, questions: Sequence[str]) -> dict[str, DriverAnswer]:
        """Ask every question, in this order, with as few children as possible."""
        answers: dict[str, DriverAnswer] = {}
        # Each batch is for one child. Conversations whose question is slow are ``alone``: they
        # have only that question left, and no longer hold up the next batch.
        batches = deque([list(questions)] if questions else [])
        talks: list[_Talk] = []
        while (batches or talks) and not self._cancelled:
            if batches and all(talk.alone for talk in talks):
                talk = self._begin(batches[0], answers)
                batches.popleft()
                talks += [talk] if talk else []
            elif ended := self._listen(talks, batches):
                talks.remove(ended)
                again = self._finish(ended, answers)
                batches.extendleft(reversed(again))
        # After ``cancel`` no answer is needed any more; else every conversation has ended by now.
        if self._cancelled:
            for process in self._processes:
                _stop(process, patience=0.0)
            _close(self._first)  # no reader has its pipe, if it is still the first
        return {question: answers.get(question, ABSENT) for question in questions}

    def cancel(self) -> None:
        """Kill the running children and start no other; may be called from any thread."""
        # Set the flag before reading the list: a child that the other thread is starting right
        # now is not in it yet, and ``_begin`` checks the flag after it has added it.
        self._cancelled = True
        for process in tuple(self._processes):
            if process.poll() is None:
                _kill(process)
        # Wake the other thread: a child that is stuck in the kernel keeps its pipe open.
        self._heard.put((None, None))

    def _begin(self, questions: list[str], answers: dict[str, DriverAnswer]) -> _Talk | None:
        """Start a conversation; without a child, note the reason as each question's answer."""
        process = None
        try:
            process = self._first or self._start(questions)
            # The child that was started ahead serves once; the next one is started here.
            if not self._first:
                self._processes.append(process)
            self._first = None
            # ``cancel`` may have run while the child was being started, and found no process.
            if self._cancelled:
                _kill(process)
            talk = _Talk(process, questions, time.monotonic() + _START_SECONDS)
            self._read_in_background(talk)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            if process:
                _stop(process, patience=0.0)
                _close(process)
            answers |= _not_started(questions, _reason(error))
            return None
        return talk

    def _listen(self, talks: list[_Talk], batches: deque[list[str]]) -> _Talk | None:
        """Wait for the next event; return a conversation that has ended or used up its time."""
        moments = [talk.deadline for talk in talks]
        moments += [talk.slow_at for talk in talks if talk.slow_at is not None]
        try:
            talk, line = self._heard.get(timeout=max(0.0, min(moments) - time.monotonic()))
        except queue.Empty:
            return self._at_time(talks, batches)
        # A conversation that was ended may still have lines in the queue.
        if talk is None or talk not in talks:
            return None
        if line is None:
            return talk
        message = _message(line, talk.questions)
        if message is None:
            return None
        talk.hear(message, self.limit, self._patience)
        return None if talk.open else talk

    def _at_time(self, talks: list[_Talk], batches: deque[list[str]]) -> _Talk | None:
        """Give the questions behind a slow one to another child; return what used up its time."""
        now = time.monotonic()
        for talk in talks:
            if talk.deadline <= now:
                talk.timed_out = True
                return talk
            if talk.slow_at is not None and talk.slow_at <= now and talk.current:
                talk.slow_at = None
                self.slow.append(talk.current)
                behind = [question for question in talk.open if question != talk.current]
                # From here on this child's answers to them are not heard: see ``_message``.
                talk.questions = [each for each in talk.questions if each not in behind]
                talk.alone = True
                if behind:
                    batches.appendleft(behind)
        return None

    def _finish(self, talk: _Talk, answers: dict[str, DriverAnswer]) -> list[list[str]]:
        """End a conversation, keep its answers, and return the batches that are still to ask."""
        # A child that closed its pipe or has answered is about to exit by itself: wait for its
        # real exit status. One that used up its time, or would go on with questions that another
        # child has, is killed at once.
        leaves = not talk.timed_out and not (talk.alone and not talk.open)
        end = _stop(talk.process, patience=_REAP_SECONDS if leaves else 0.0)
        if not talk.started:
            reason = f"the child process ended before it could ask ({end})"
            if talk.lacking == "thread":
                reason = _reason(RuntimeError("can't start new thread"))
            answers |= _not_started(talk.questions, reason)
            return []
        answers |= talk.answers
        if not talk.open:
            return []
        # The child answers in order, so it was busy with the first open question.
        blamed, *rest = talk.open
        if talk.timed_out:
            late = DriverAnswer(tuple(talk.lines), "timed-out", talk.during, self.limit)
            answers[blamed] = late
            return [rest] if rest else []
        answers[blamed] = DriverAnswer(tuple(talk.lines), end, talk.during)
        # Ask a crashed question again alone, if the child had answered others before it: another
        # driver in the same process may have caused the crash. A timeout is not repeated, as it
        # costs its full limit.
        again = [[blamed]] if end != "timed-out" and talk.answers else []
        return [batch for batch in (*again, rest) if batch]

    def _read_in_background(self, talk: _Talk) -> None:
        """Put a child's lines in the queue as they arrive, then None.

        A thread reads them, as Windows cannot wait for a pipe with a timeout. Raises
        ``RuntimeError`` if the system allows no other thread.
        """
        pipe = cast("IO[bytes]", talk.process.stdout)

        def read() -> None:
            room = _OUTPUT_LIMIT
            # This thread alone reads the pipe and closes it. The read ends when the child's side
            # is closed, by its exit or by our SIGKILL, or when the output limit is used up.
            with pipe, contextlib.suppress(OSError):
                while room > 0 and (line := pipe.readline(room)):
                    room -= len(line)
                    self._heard.put((talk, line))
            # Always sent, so that the listener never waits for a reader that has stopped.
            self._heard.put((talk, None))

        # A daemon: a child that was left behind keeps the pipe open, and this thread with it.
        threading.Thread(target=read, daemon=True).start()


class Asking:
    """Questions that a thread asks in the background, while the caller does something else."""

    def __init__(
        self, child: Child, put: Callable[[], dict[str, DriverAnswer]], tell: Tell | None = None
    ) -> None:
        self._child = child
        self._put = put
        self._tell = tell
        self._told = 0
        self._answers: dict[str, DriverAnswer] = {}
        self._error: BaseException | None = None
        # Not ``Thread.join``: in Python 3.11 a signal during it makes the thread look ended.
        self._ended = threading.Event()
        try:
            # A daemon, so that a thread blocked by a stuck child does not keep the program from
            # exiting.
            threading.Thread(target=self._run, daemon=True).start()
        except RuntimeError:
            # The system allows no other thread: ask here, which ends in answers that say so.
            self._run()

    def __call__(self) -> Mapping[str, DriverAnswer]:
        """Wait for the answers; if the caller is interrupted, kill the child."""
        try:
            # On Windows Ctrl-C interrupts no endless wait, so wait in steps of a second.
            while not self._ended.wait(1.0):
                # Tell the user of each slow question, once: only the caller's thread prints. The
                # other thread only appends to the list.
                for question in self._child.slow[self._told :]:
                    self._told += 1
                    if self._tell:
                        self._tell(question, self._child.limit)
        except BaseException:
            self.end()
            raise
        # The thread has ended: its results are complete, and reading them needs no lock.
        if self._error:
            raise self._error
        return self._answers

    def end(self) -> None:
        """End the child if it still runs, as its answers are no longer needed."""
        self._child.cancel()
        # Wait for the thread, which also removes the child's scratch folder.
        self._ended.wait()

    def _run(self) -> None:
        try:
            self._answers = self._put()
        except BaseException as error:  # noqa: BLE001 - __call__ raises it in the caller's thread
            self._error = error
        finally:
            self._ended.set()


def _reason(error: Exception) -> str:
    """Say why no child can ask: the limit of the system that the error shows, or its own words."""
    return system_limits.reached(error) or str(error)


def _not_started(questions: Sequence[str], reason: str) -> dict[str, DriverAnswer]:
    return dict.fromkeys(questions, DriverAnswer(end="not-started", during=reason))


def _message(line: bytes, known: Sequence[str]) -> Mapping[str, Any] | None:
    """Read one line of the protocol; return None for other output, which a driver wrote there."""
    try:
        message = parse_object(line, ours=True)
    except ValueError:
        return None
    if "ask" not in message:
        return None
    return message if message["ask"] is None or message["ask"] in known else None


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


def _close(process: subprocess.Popen[bytes] | None) -> None:
    """Close the pipe of a child that no thread reads."""
    if process and process.stdout:
        process.stdout.close()


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
