"""The request to a supervisor to swap the build of its server, and the supervisor's answer.

Each is a file next to the server's record. Only the command that updates writes the request, and
only the supervisor the answer; both are replaced by a rename. The answer has the number of its
request, so an old one is never taken for a new one.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tsuku_llm.ground import records
from tsuku_llm.launch.plan.report import READ_PERFORMANCE, Performance

FORMAT = 1


class SwapKind(str, Enum):
    """What is asked of a supervisor.

    ``TRY``: run this version, judge it, and return to the present one if it fails or ends.
    ``KEEP``: the version is no longer on trial. ``BACK``: run this version for good.
    """

    TRY = "try"
    KEEP = "keep"
    BACK = "back"


class SwapState(str, Enum):
    """How a swap went.

    ``WORKING``: the supervisor is at it. ``SERVING``: the wanted version serves. ``RETURNED``: it
    failed, and the version before serves again. ``DOWN``: no version serves. ``REFUSED``: nothing
    was done.
    """

    WORKING = "working"
    SERVING = "serving"
    RETURNED = "returned"
    DOWN = "down"
    REFUSED = "refused"


class SwapRequest(NamedTuple):
    """A request: ``number`` tells it from every other one; ``version`` is an installed id."""

    number: str
    kind: SwapKind
    version: str


class SwapAnswer(NamedTuple):
    """The answer to the request of this number.

    ``reason`` says why a version failed. ``before`` and ``after`` are how the server did on the
    present and on the wanted version; ``bench`` is the speed of the last benchmark of its model.
    """

    number: str
    state: SwapState
    reason: str = ""
    before: Performance | None = None
    after: Performance | None = None
    bench: float | None = None


def as_bytes(document: SwapRequest | SwapAnswer) -> bytes:
    """Return a request or an answer as it is stored."""
    return records.encode({"format": FORMAT, **document._asdict()})


READ_REQUEST = records.record(
    SwapRequest,
    {
        "number": records.text,
        "kind": records.one_of(SwapKind),
        "version": records.text,
    },
    format=FORMAT,
)
_performance = records.optional(READ_PERFORMANCE)
READ_ANSWER = records.record(
    SwapAnswer,
    {
        "number": records.text,
        "state": records.one_of(SwapState),
        "reason": records.text,
        "before": _performance,
        "after": _performance,
        "bench": records.optional(records.speed),
    },
    format=FORMAT,
)
