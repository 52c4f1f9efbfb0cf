"""The answer to the canary request: read, and compared with an earlier one. Pure.

The differences were measured with Gemma 3 270M (Q4_K_M) on the processor (b10068). The same server
answers the same to the last digit if nothing else runs, and by 0.32 nats otherwise beside other
requests, which share its batches. Other settings (batches of 8, flash attention off, a cache in
Q8_0, kernels without repacking) move the answer by up to 0.30, and with CUDA on an H100 by up to
0.61. Answers under other settings are never compared. The wrong kernels of
``tests/support/c/wrong_kernels.c`` that this model uses move it by 0.65 to 2.0, or give no numbers;
four that change a scale or one type of tensor by a little stay below 0.22: only the gate sees them.
``ci/tolerances.py`` measures both, and ``ci/tolerances.md`` has what it printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from tsuku_llm.ground.foreign import parse_json, parse_object

SAME = 0.6
"""The most nats by which the answers of one right server differ: twice what was seen."""

OTHER = 1.0
"""The same for two right builds, drivers or devices: 1.6 times what other kernels change."""

_FLAT = 1e-6
"""Nats between numbers that a right server never gives for different texts or tokens."""


class AnswerStep(NamedTuple):
    """One token of an answer, and the likeliest tokens there with the nats of each one's surprise.

    The surprise is minus the logarithm of the probability.
    """

    token: int
    likely: tuple[int, ...]
    nats: tuple[float, ...]


Answer = tuple[AnswerStep, ...]
"""The steps of an answer; none if the server told no probabilities."""


class KnownAnswers(NamedTuple):
    """The answers of earlier starts with the same model and arguments.

    ``own`` is that of the same build, ``other`` that of ``build``, another one; empty for none.
    """

    own: Answer = ()
    other: Answer = ()
    build: str = ""


def read_completion(content: bytes) -> Answer:
    """Read an answer of ``/completion``; JSON's null, where it could not compute, is NaN."""
    try:
        steps = parse_object(content)["completion_probabilities"]
        return tuple(
            AnswerStep(
                int(step["id"]),
                tuple(int(row["id"]) for row in step["top_logprobs"]),
                tuple(_nats(row["logprob"]) for row in step["top_logprobs"]),
            )
            for step in steps
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        # An older server, or one that hides them: nothing can be said about its answers.
        return ()


def read_embedding(content: bytes) -> Answer:
    """Read an answer of ``/embedding``: only whether all of it is numbers."""
    try:
        values = list(_numbers(parse_json(content)))
    except ValueError:
        return ()
    return (AnswerStep(0, (), (math.nan,)),) if None in values else ()


def what_is_wrong(answer: Answer, right: Answer = (), bound: float = SAME) -> str:
    """Say in words why an answer cannot be right, empty if it may be.

    ``right`` is an earlier answer to the same request, ``bound`` the most by which they may differ.
    """
    if not all(map(math.isfinite, (nats for step in answer for nats in step.nats))):
        return "the probabilities of its tokens are no numbers"
    if len(answer) > 1 and len({step.token for step in answer}) == 1 and _is_deaf(answer):
        return "it repeats one token, whatever comes before"
    apart = deviation(answer, right)
    if apart <= bound:
        return ""
    pairs = zip(answer, right, strict=False)
    other = next((at for at, (one, two) in enumerate(pairs) if one.token != two.token), None)
    words = f", with another token at place {other + 1}" if other is not None else ""
    return f"its answer differs by {apart:.1f} nats from before{words} (at most {bound:g} if right)"


def deviation(answer: Answer, right: Answer) -> float:
    """Return how far an answer is from the right one, in nats: 0 if nothing can be compared.

    It is the root mean square of the differences, the largest of all steps. What comes after
    another token continues another text.
    """
    largest = 0.0
    for got, expected in zip(answer, right, strict=False):
        told = dict(zip(got.likely, got.nats, strict=True))
        # A token that is not told is less likely than all that are.
        least = max(got.nats, default=0.0)
        squares = [
            (told.get(token, max(least, nats)) - nats) ** 2
            for token, nats in zip(expected.likely, expected.nats, strict=True)
        ]
        if squares:
            largest = max(largest, math.sqrt(math.fsum(squares) / len(squares)))
        if got.token != expected.token:
            break
    return largest


def divergence(answer: Answer, right: Answer) -> float | None:
    """Return the mean Kullback-Leibler divergence from the right answer, in nats; None without any.

    The tokens that are not told count as one. One that only the right answer tells is no likelier
    than all that the other one tells, so the figure is rather too small.
    """
    apart: list[float] = []
    for got, expected in zip(answer, right, strict=False):
        if not got.likely:
            continue
        told = {token: math.exp(-nats) for token, nats in zip(got.likely, got.nats, strict=True)}
        least = min(told.values())
        true = [math.exp(-nats) for nats in expected.nats]
        found = [told.get(token, least) for token in expected.likely]
        both = [*zip(true, found, strict=True), (1 - sum(true), max(_FLAT, 1 - sum(found)))]
        apart.append(max(0.0, math.fsum(p * math.log(p / q) for p, q in both if p > 0)))
    return math.fsum(apart) / len(apart) if apart else None


def _nats(logarithm: float | None) -> float:
    # A probability of 1 may be told as a little more.
    return math.nan if logarithm is None else round(max(0.0, -float(logarithm)), 4)


def _is_deaf(answer: Answer) -> bool:
    """Tell whether all steps have the same numbers, as if nothing had been read."""
    first = answer[0]
    return all(
        step.likely == first.likely
        and all(abs(a - b) <= _FLAT for a, b in zip(step.nats, first.nats, strict=True))
        for step in answer
    )


def _numbers(value: Any) -> Iterator[float | None]:
    """Yield the numbers of nested lists; null is None."""
    if isinstance(value, dict):
        value = value.get("embedding", [])
    if isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif value is None or isinstance(value, (int, float)):
        yield value
