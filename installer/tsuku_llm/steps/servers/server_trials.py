"""The trial of a build by the servers in the background: asked of their supervisors, one by one."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from tsuku_llm.ground.errors import StoreError
from tsuku_llm.ground.files import unique
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record, ServerState
from tsuku_llm.instances.swap import SwapAnswer, SwapKind, SwapRequest, SwapState
from tsuku_llm.steps.choosing.acceptance import FAILED, Shortcoming, Trial, shortcoming
from tsuku_llm.store.records.installed import Installed


class ServerOutcome(str, Enum):
    """What became of one server.

    ``BACK``: it runs the former build again. ``DOWN``: it does not run. ``STOPPED``: a user
    stopped it meanwhile. ``LEFT``: it was not touched, and keeps its build.
    """

    UPDATED = "updated"
    BACK = "back"
    DOWN = "down"
    STOPPED = "stopped"
    LEFT = "left"


_PAUSE = 0.1
"""Seconds between two looks for an answer."""

_DEAF = 30.0
"""Seconds without an answer after which a supervisor counts as one that knows no swaps."""


_STOPPED_CODES = (0, 129, 130, 143)
"""Exit codes of a supervisor that was told to end."""


@dataclass(frozen=True, slots=True)
class ServerResult:
    """One server, what became of it, and why."""

    name: str
    outcome: ServerOutcome
    detail: str = ""


def swap(
    instances: Instances, record: Record, kind: SwapKind, version: Installed
) -> SwapAnswer | None:
    """Ask a supervisor for a version, and wait for its answer; None if it gives none."""
    request = SwapRequest(unique(), kind, version.id)
    instances.ask_swap(record.name, request)
    deadline = time.monotonic() + _DEAF
    while True:
        answer = instances.swap_answer(record.name, request.number)
        if answer and answer.state is not SwapState.WORKING:
            return answer
        # A server that still loads looks for requests when it is ready. A start that makes no
        # progress is given up, so this ends.
        if answer or record.state is ServerState.STARTING:
            deadline = time.monotonic() + _DEAF
        if not record.supervisor.is_alive:
            # It may have written its answer, and ended, since we looked.
            last = instances.swap_answer(record.name, request.number)
            return last if last and last.state is not SwapState.WORKING else None
        if time.monotonic() >= deadline:
            return None
        time.sleep(_PAUSE)
        with suppress(StoreError):
            record = instances.find(record.name) or record


def judged_server(
    instances: Instances,
    record: Record,
    former: Installed,
    new: Installed,
    answer: SwapAnswer | None,
) -> tuple[ServerResult, Shortcoming | None]:
    """Return what became of a server on trial, and why the new build is refused, if it is."""
    if answer is None:
        return without_answer(instances, record)
    if answer.state is SwapState.REFUSED:
        return ServerResult(record.name, ServerOutcome.LEFT, answer.reason), None
    backends = (former.receipt.backend, new.receipt.backend)
    serving = answer.state is SwapState.SERVING
    after = answer.after if serving else None
    failure = shortcoming(Trial(backends, answer.before, after, answer.reason, answer.bench))
    if failure is None:
        return ServerResult(record.name, ServerOutcome.UPDATED), None
    outcome = ServerOutcome.BACK if answer.state is SwapState.RETURNED else ServerOutcome.DOWN
    # A server that serves goes back with the others.
    result = ServerResult(
        record.name, ServerOutcome.UPDATED if serving else outcome, failure.reason
    )
    return result, failure._replace(reason=f"{record.name}: {failure.reason}")


def without_answer(instances: Instances, record: Record) -> tuple[ServerResult, Shortcoming | None]:
    """Return what became of a server whose supervisor did not answer."""
    now: Record | None = None
    with suppress(StoreError):
        now = instances.find(record.name)
    if now is None or now.supervisor != record.supervisor:
        # ``stop`` removes the record; the name may be another server's by now.
        return ServerResult(record.name, ServerOutcome.STOPPED, "it was stopped meanwhile"), None
    if now.state.is_up:
        words = "its supervisor does not answer: it may be of an older tsuku-llm"
        detail = f"{words}; to have it run the new build, stop it and start it again"
        return ServerResult(record.name, ServerOutcome.LEFT, detail), None
    if now.state is ServerState.ENDED and now.exit_code in _STOPPED_CODES:
        # A build on trial that ends by itself is followed by the former one.
        return ServerResult(record.name, ServerOutcome.STOPPED, "it was stopped meanwhile"), None
    how = now.reason or ("it ended" if now.state is ServerState.ENDED else "it was killed")
    failure = Shortcoming(FAILED, f"{record.name}: {how}")
    return ServerResult(record.name, ServerOutcome.DOWN, how), failure
