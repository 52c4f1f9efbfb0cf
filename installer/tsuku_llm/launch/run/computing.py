"""The second half of the gate: a staged server computes, and its answers are compared.

A device that is listed can still fail at its first kernel, or compute wrongly.
"""

from __future__ import annotations

import math
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

from tsuku_llm.ground import system_limits
from tsuku_llm.ground.errors import GateFailed
from tsuku_llm.ground.files import FOLDER_MODE, drop_tree
from tsuku_llm.launch.ask.child import ChildEnd, PipeReader, start_apart
from tsuku_llm.launch.ask.health import Readiness, exchange
from tsuku_llm.launch.ask.last_words import last_lines
from tsuku_llm.launch.compute.judging import (
    Continuation,
    NotTold,
    Reference,
    deviation,
    parse_answer,
    references,
)
from tsuku_llm.launch.compute.reference_models import CONTEXT, MODELS, VOCABULARY
from tsuku_llm.launch.failed.diagnosis import CPU_OVERRIDE, diagnose, ending, signal_name
from tsuku_llm.launch.failed.failure import distribution
from tsuku_llm.launch.plan.planning import Build, LaunchPlan, plan_question

LIMIT = 300.0
"""Seconds for one model on a GPU: a driver may compile first (CUDA's took 45 on an H200)."""

CPU_LIMIT = 60.0
"""Seconds for one model on the processor, which compiles nothing."""

_SLOW = 2.0
"""Seconds after which the user is told what is waited for."""

_ENDING = 5.0
"""Seconds that a server gets to end whose connection broke."""

_LAST_LINES = 8

_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
"""Signals that no build sends itself: the user, the system, or its lack of memory did."""

_HOST = "127.0.0.1"


class Computation(NamedTuple):
    """The largest deviation from the right answers; None if nothing could be compared.

    ``not_computed`` is why a model could not be tried, empty if all were.
    """

    deviation: float | None
    not_computed: str = ""


class _NotComputed(Exception):
    """The reason why a build cannot be judged, such as a server that is too old."""


class _Failed(Exception):
    """What is wrong with a build that was asked to compute, and the lines that show it.

    ``excuse``: the processor of the same build may show that the build is right: it answers the
    same, or it does not load the model either.
    """

    def __init__(
        self,
        problem: str,
        facts: tuple[str, ...] = (),
        *,
        excuse: Literal["", "same", "no-load"] = "",
        hint: str = "",
        deviation: float | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.facts = facts
        self.excuse = excuse
        self.hint = hint
        self.deviation = deviation


def compute(
    build: Build,
    environ: Mapping[str, str],
    device: str | None,
    folder: Path,
    *,
    on_slow: Callable[[], None] = lambda: None,
    limit: float | None = None,
) -> Computation:
    """Let a build compute the reference models on its device, and compare its answers.

    ``folder`` is made for the models, and removed. ``on_slow`` is called once, if it takes more
    than a moment. A build that cannot be judged is not refused; the result has the reason. Raises
    ``GateFailed`` if it computes wrongly, ends, or does not answer within ``limit`` seconds.
    """
    gpu = build.backend != "cpu"
    seconds = limit or (LIMIT if gpu else CPU_LIMIT)
    patience = _Patience(on_slow)
    largest: float | None = None
    problems: list[str] = []
    try:
        folder.mkdir(FOLDER_MODE)
    except OSError as error:
        return Computation(None, str(error))
    # Only a folder that was made here is removed.
    try:
        for name, reference in references().items():
            path = folder / f"{name}.gguf"
            # The context is the models' own. Else one of upstream's config.ini would count.
            words = (*build.arguments, "-m", str(path), "-c", str(CONTEXT), "--no-warmup")
            plan = plan_question(build, words, environ)
            # Not an argument: older servers do not know it. It would look for a place first.
            env = {**plan.env, "LLAMA_ARG_FIT": "off"}
            plan = plan._replace(env=env, reinstall=build.reinstall)
            try:
                path.write_bytes(MODELS[name]())
                largest = max(largest or 0.0, _judged(plan, device, reference, patience, seconds))
            except OSError as error:
                # A limit of the system says nothing about the build: no other variant is tried.
                system_limits.refuse(error, f"starting the {build.backend} build")
                problems.append(f"{name}: {error}")
            except _NotComputed as error:
                problems.append(f"{name}: {error}")
            except _Failed as error:
                hint = "install another release"
                if gpu:
                    hint = f"update the driver, or {hint}; or run on the CPU: {CPU_OVERRIDE}"
                refused = GateFailed(
                    f"the {build.backend} build does not compute here: {error.problem}",
                    facts=(f"reference model: {name}", *error.facts),
                    hint=error.hint or hint,
                )
                refused.deviation = error.deviation
                raise refused from error
    finally:
        drop_tree(folder)
    return Computation(largest, "; ".join(problems))


class _Patience:
    """The one call of ``on_slow``, by whichever thread waits longest."""

    def __init__(self, on_slow: Callable[[], None]) -> None:
        self._on_slow = on_slow
        self._begun = time.monotonic()
        # Several requests wait at the same time: only one of their threads may tell.
        self._lock = threading.Lock()
        self._told = False

    def look(self) -> None:
        """Call ``on_slow`` if it is time for it."""
        with self._lock:
            if self._told or time.monotonic() - self._begun < _SLOW:
                return
            self._told = True
        self._on_slow()


def _judged(
    plan: LaunchPlan, device: str | None, reference: Reference, patience: _Patience, limit: float
) -> float:
    """Return a build's largest deviation for one model.

    Raises ``_NotComputed``, ``_Failed`` and ``OSError``.
    """
    if plan.backend == "cpu":
        return _compared(_answers(plan, (), reference, patience, limit), reference)
    on_gpu = ("-ngl", "99", *(("--device", device) if device else ()))
    answers: list[Continuation] = []
    try:
        answers = _answers(plan, on_gpu, reference, patience, limit)
        return _compared(answers, reference)
    except _Failed as error:
        if not error.excuse:
            raise
        # Upstream may have changed what such a model means, or take it no longer. Then the
        # processor has the same answers, or none either.
        try:
            on_cpu = _answers(plan, ("--device", "none"), reference, patience, CPU_LIMIT)
            if answers:
                right = on_cpu[: len(reference.answers)]
                return _compared(answers, reference._replace(answers=tuple(right)))
        except _Failed as second:
            if second.excuse == "no-load":
                raise _NotComputed(error.problem) from None
        except (_NotComputed, OSError):
            pass
        raise


def _compared(answers: Sequence[Continuation], reference: Reference) -> float:
    """Return the largest deviation of these answers. Raises ``_Failed`` beyond the tolerance."""
    prompts, right, at_once = reference.prompts, reference.answers, reference.at_once
    apart = [
        (len(prompt), deviation(answer, each))
        for prompt, answer, each in zip(
            (*prompts, *prompts[:at_once]), answers, (*right, *right[:at_once]), strict=True
        )
    ]
    worst, tolerance = max(each for _, each in apart), reference.tolerance
    if worst <= tolerance:
        return worst
    wrong = map(str, sorted({size for size, each in apart if each > tolerance}))
    far = f"by {worst:.1%}" if worst < 10 else "completely"
    said = f"its answers are wrong {far}, after prompts of {', '.join(wrong)} tokens"
    bound = f"a right build differs by at most {tolerance:.1%}"
    told = worst if math.isfinite(worst) else None
    raise _Failed(said, (bound,), excuse="same", deviation=told)


def _answers(
    plan: LaunchPlan,
    placed: Sequence[str],
    reference: Reference,
    patience: _Patience,
    limit: float,
) -> list[Continuation]:
    """Start the server, and ask each prompt alone, then the first ones at the same time."""
    with socket.socket() as probe:
        # A port that is free now: not every server says which one it took for port 0.
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
    plan = plan._replace(argv=(*plan.argv, *placed, "--host", _HOST, "--port", str(port)))
    prompts = reference.prompts
    # The pool is the outer one: a server that ends breaks what its threads wait for.
    with (
        ThreadPoolExecutor(len(prompts)) as pool,
        closing(_Server(plan, patience, limit)) as server,
    ):
        server.wait_until_ready()
        alone = [server.answer(prompt) for prompt in prompts]
        return [*alone, *pool.map(server.answer, prompts[: reference.at_once])]


class _Server:
    """A server that was started for this; ``limit`` are the seconds for all that it is asked."""

    def __init__(self, plan: LaunchPlan, patience: _Patience, limit: float) -> None:
        self._plan = plan
        self._patience = patience
        self._limit = limit
        self._readiness = Readiness(plan)
        self._child = start_apart(plan)
        self._deadline = time.monotonic() + limit
        assert self._child.stderr
        self._stderr = PipeReader(self._child.stderr, self._readiness.on_stderr)

    def close(self) -> None:
        """Kill it. First the kill: the reader ends when the last writer is gone."""
        ChildEnd(self._child).finish()
        self._stderr.finish()

    def wait_until_ready(self) -> None:
        """Wait until it has loaded the model."""

        def look() -> None:
            self._patience.look()
            if self._child.poll() is not None:
                self._fail("when it loaded", loading=True)
            if time.monotonic() > self._deadline:
                raise self._hung("it did not load")

        self._readiness.wait(threading.Event(), look)

    def answer(self, prompt: Sequence[int]) -> Continuation:
        """Let it continue a prompt."""
        body = {
            "prompt": list(prompt),
            "n_predict": 2,
            "temperature": 0,
            "n_probs": VOCABULARY,
            "post_sampling_probs": False,
            "cache_prompt": False,
        }
        size = f"a prompt of {len(prompt)} token{'s' * (len(prompt) > 1)}"
        try:
            status, content = exchange(
                self._readiness.address,
                "/completion",
                body,
                limit=max(0.001, self._deadline - time.monotonic()),
                on_wait=self._patience.look,
            )
        except TimeoutError:
            raise self._hung(f"{size} was not answered") from None
        except (OSError, ValueError) as error:
            try:
                self._child.wait(_ENDING)
            except subprocess.TimeoutExpired:
                raise _NotComputed(f"{size} was not answered: {error}") from None
            self._fail(f"at {size}", loading=False)
        try:
            if status == 500:
                # Upstream's answer if a batch could not be computed (server_context, b11434).
                facts = last_lines(self._stderr.text(), _LAST_LINES)
                raise _Failed(f"{size} was answered with an error", facts)
            if status != 200:
                raise _NotComputed(f"{size} was answered with HTTP status {status}")
            return parse_answer(content)
        except NotTold as error:
            raise _NotComputed(str(error)) from None

    def _hung(self, what: str) -> _Failed:
        return _Failed(f"{what} within {self._limit:g} seconds")

    def _fail(self, when: str, *, loading: bool) -> NoReturn:
        """Raise what the end of the server means."""
        code, text = self._child.returncode, self._stderr.finish()
        known = diagnose(code, text, distribution=distribution())
        cause = f": {known.cause}" if known and known.slug != "crashed" else ""
        name = signal_name(code)
        said = f"it {ending(code)} {when}{cause}"
        # A server that does not know the kind of model, or an argument, ends by itself. Windows has
        # codes of more than 16 bits for what are signals elsewhere.
        by_itself = loading and 0 <= code < 1 << 16 and not (known and known.fault == "backend")
        # Too little memory is the model's fault.
        if by_itself or name in _FROM_OUTSIDE or (known and known.fault == "model"):
            words = last_lines(text, 1)
            raise _NotComputed(f"{said} ({words[0]})" if words and not cause else said)
        hint = known.hint(self._plan.backend, self._plan.reinstall) if known else ""
        facts = last_lines(text, _LAST_LINES)
        raise _Failed(said, facts, excuse="no-load" if loading else "", hint=hint)
