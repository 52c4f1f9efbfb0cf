"""The judgement of a new build by how it serves on this machine. Pure.

Unattended updates judge every server and every trial start with this, and so does the simulation in
``ci/rings``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tsuku_llm.launch.compute.canary_answer import OTHER, what_is_wrong
from tsuku_llm.launch.plan.report import Performance, Verdict

ENOUGH: Final = 0.8
"""Part of the former speed that a new build must reach."""

ARGUMENTS: Final = "arguments"
FAILED: Final = "failed"
NOT_ON_GPU: Final = "not-on-gpu"
SLOW: Final = "slow"


class Shortcoming(NamedTuple):
    """Why a new build is refused: ``kind`` is ``failed``, ``not-on-gpu`` or ``slow``.

    It is ``arguments`` for a build that does not take those of a server; the release is right.
    """

    kind: str
    reason: str


def shortcoming(
    backends: tuple[str, str],
    before: Performance | None,
    after: Performance | None,
    failure: str = "",
    bench: float | None = None,
) -> Shortcoming | None:
    """Return why a new build on trial is refused; None if it may stay.

    ``backends`` are those of the former and of the new build. ``before`` is the same server on the
    former build, None if none ran. ``after`` is None if it does not serve, because of ``failure``.
    ``bench`` is the speed of the last benchmark, None without one.
    """
    if after is None:
        return Shortcoming(FAILED, failure or "its server does not run")
    # A key that only the clients know, or TLS, kept the former build from an answer, too.
    if after.answered is False and (before is None or before.answered is not False):
        return Shortcoming(FAILED, f"it computes no token: {after.problem}")
    # The same model with the same arguments: two right builds say nearly the same.
    if wrong := what_is_wrong(after.answer, before.answer if before else (), OTHER):
        return Shortcoming(FAILED, f"it answers wrongly: {wrong}")
    if reason := _off_gpu(backends, before, after):
        return Shortcoming(NOT_ON_GPU, reason)
    needed = needed_speed(bench, before.speed if before else None)
    if needed is not None and after.speed is not None and after.speed < needed:
        return Shortcoming(
            SLOW, f"it generates {after.speed:.1f} tokens per second, {needed:.1f} were expected"
        )
    return None


def _off_gpu(backends: tuple[str, str], before: Performance | None, after: Performance) -> str:
    """Return in words that a server is less on the GPU than it was or should be, else ""."""
    former, new = backends
    shown = before.verdict if before else Verdict.UNKNOWN
    # A server that computed on the processor has no GPU to lose: its user may want it so.
    if former != "cpu" and shown is Verdict.ON_CPU:
        return ""
    if new == "cpu":
        return "" if former == "cpu" else f"it is a build for the CPU in place of one for {former}"
    if after.verdict is Verdict.ON_CPU:
        return "it runs on the CPU"
    if shown is Verdict.ON_GPU and after.verdict is Verdict.PARTLY:
        return "it runs only partly on the GPU"
    if shown in (Verdict.ON_GPU, Verdict.PARTLY) and after.verdict is Verdict.UNKNOWN:
        return "nothing shows any more that it runs on the GPU"
    return ""


def needed_speed(bench: float | None, before: float | None) -> float | None:
    """Return the speed that a build must reach, None if nothing is known to compare with.

    Arguments such as ``-ngl`` make a server slower than its benchmark, so the less of the two
    counts. Without a benchmark no speed is demanded.
    """
    if bench is None:
        return None
    return ENOUGH * min(bench, before if before is not None else bench)
