"""The judgement of a new build: what is refused, and what a machine may not be blamed for."""

import math
import re
from typing import Any

import pytest

from tsuku_llm.launch.compute.canary_answer import Answer, AnswerStep
from tsuku_llm.launch.plan.report import Performance, Verdict
from tsuku_llm.steps.choosing.acceptance import (
    Shortcoming,
    needed_speed,
    shortcoming,
)

GPU, PARTLY, CPU, UNKNOWN = Verdict.ON_GPU, Verdict.PARTLY, Verdict.ON_CPU, Verdict.UNKNOWN
VULKAN = ("vulkan", "vulkan")


def trial(
    before: Verdict | None, after: Verdict | None, backends: tuple[str, str] = VULKAN, **more: Any
) -> Shortcoming | None:
    return shortcoming(
        backends,
        Performance(before, answered=True) if before else None,
        Performance(after, answered=True) if after else None,
        **more,
    )


def kind(refused: Shortcoming | None) -> str | None:
    return refused.kind if refused else None


@pytest.mark.parametrize(
    ("before", "after", "backends", "expected"),
    [
        (GPU, GPU, VULKAN, None),
        (GPU, CPU, VULKAN, "not-on-gpu"),
        (GPU, PARTLY, VULKAN, "not-on-gpu"),
        (GPU, UNKNOWN, VULKAN, "not-on-gpu"),
        (PARTLY, PARTLY, VULKAN, None),
        (PARTLY, GPU, VULKAN, None),
        (PARTLY, UNKNOWN, VULKAN, "not-on-gpu"),
        (UNKNOWN, UNKNOWN, VULKAN, None),
        (UNKNOWN, CPU, VULKAN, "not-on-gpu"),
        (None, CPU, VULKAN, "not-on-gpu"),
        (None, UNKNOWN, VULKAN, None),
        (None, GPU, VULKAN, None),
        # A user who keeps the model from the GPU (-ngl 0) does not miss it.
        (CPU, CPU, VULKAN, None),
        (CPU, UNKNOWN, VULKAN, None),
        (GPU, CPU, ("vulkan", "cpu"), "not-on-gpu"),
        (None, CPU, ("vulkan", "cpu"), "not-on-gpu"),
        (CPU, CPU, ("vulkan", "cpu"), None),
        (CPU, CPU, ("cpu", "cpu"), None),
        (CPU, GPU, ("cpu", "vulkan"), None),
        (CPU, CPU, ("cpu", "vulkan"), "not-on-gpu"),
        (GPU, None, VULKAN, "failed"),
    ],
)
def test_a_build_may_not_lose_the_gpu_that_the_one_before_used(
    before: Verdict | None, after: Verdict | None, backends: tuple[str, str], expected: str | None
) -> None:
    assert kind(trial(before, after, backends)) == expected


def test_a_build_that_does_not_serve_is_refused_with_the_reason() -> None:
    refused = trial(GPU, None, failure="it ended with exit code 42")
    assert refused == ("failed", "it ended with exit code 42")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (True, True, None),
        (True, False, "failed"),
        (None, False, "failed"),
        # A key that only the clients have: the build before did not answer us either.
        (False, False, None),
        (False, True, None),
        (True, None, None),
    ],
)
def test_a_build_must_compute_a_token_if_the_one_before_did(
    before: bool | None, after: bool | None, expected: str | None
) -> None:
    now = Performance(GPU, after, "HTTP status 500")
    assert kind(shortcoming(VULKAN, Performance(GPU, before), now)) == expected
    assert kind(shortcoming(VULKAN, None, now)) == ("failed" if after is False else None)


def answer(*steps: tuple[int, float]) -> Answer:
    """Return an answer: each token with the nats of its surprise, and one other of 4 nats."""
    return tuple(AnswerStep(token, (token, 99), (nats, 4.0)) for token, nats in steps)


RIGHT = answer((5, 0.5), (6, 0.2))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (RIGHT, RIGHT, None),
        # Two right builds differ a little, and some of these differences change a token.
        (RIGHT, answer((5, 0.9), (6, 0.4)), None),
        ((), RIGHT, None),
        # The new one tells no probabilities, as older servers do.
        (RIGHT, (), None),
        (
            RIGHT,
            answer((7, 0.1), (8, 0.1)),
            r"differs by \d\.\d nats from before, with another token",
        ),
        (RIGHT, answer((5, 3.5), (6, 0.2)), r"differs by 2\.1 nats from before"),
        # "####", as ollama's issue 1881 has it, and numbers that are none.
        ((), answer((5, 0.5), (5, 0.5)), "it repeats one token"),
        ((), answer((5, math.nan), (5, 0.5)), "are no numbers"),
    ],
)
def test_a_build_may_not_answer_wrongly(before: Answer, after: Answer, said: str | None) -> None:
    now = Performance(GPU, answered=True, answer=after)
    refused = shortcoming(VULKAN, Performance(GPU, answered=True, answer=before), now)
    if said is None:
        assert refused is None
        return
    assert refused
    assert refused.kind == "failed"
    assert re.search(f"^it answers wrongly: .*{said}", refused.reason)
    # Without a server before, only what is wrong by itself is seen.
    alone = shortcoming(VULKAN, None, now)
    assert (alone is None) == bool(before)


@pytest.mark.parametrize(
    ("bench", "before", "after", "expected"),
    [
        (None, None, 1.0, None),
        (None, 100.0, 1.0, None),
        (100.0, None, 80.0, None),
        (100.0, None, 79.9, "slow"),
        (100.0, 100.0, 79.9, "slow"),
        (100.0, 200.0, 80.0, None),
        # With -ngl 10 it was never as fast as its benchmark.
        (100.0, 30.0, 24.0, None),
        (100.0, 30.0, 23.9, "slow"),
        (100.0, 100.0, None, None),
    ],
)
def test_a_build_must_reach_most_of_the_last_benchmark(
    bench: float | None, before: float | None, after: float | None, expected: str | None
) -> None:
    refused = shortcoming(
        VULKAN,
        Performance(GPU, answered=True, speed=before),
        Performance(GPU, answered=True, speed=after),
        bench=bench,
    )
    assert kind(refused) == expected
    assert needed_speed(bench, before) is None or bench is not None
