"""The comparison of a server's answers with those that were computed in float64. Pure."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from tsuku_llm.ground.foreign import parse_object
from tsuku_llm.launch.compute.reference_models import VOCABULARY

_TOKENS = range(VOCABULARY)


class Continuation(NamedTuple):
    """The answer to one prompt: its tokens, and what the model said before each one.

    ``log_probabilities`` has a row for each token: the logarithm of the probability of every token
    of the vocabulary.
    """

    tokens: tuple[int, ...]
    log_probabilities: tuple[tuple[float, ...], ...]


class Reference(NamedTuple):
    """The right answers of one model, and how far an answer may be from them.

    Each prompt is asked alone, and then the first ``at_once`` of them at the same time.
    """

    sha256: str
    tolerance: float
    at_once: int
    prompts: tuple[tuple[int, ...], ...]
    answers: tuple[Continuation, ...]


class NotTold(ValueError):
    """An answer that lacks the probabilities: this server cannot be judged."""


@cache
def references() -> Mapping[str, Reference]:
    """Return what ``ci/compute`` computed, by the model's name."""
    data = parse_object(pkgutil.get_data(__package__, "answers.json") or b"{}", ours=True)
    return {
        name: Reference(
            found["sha256"],
            found["tolerance"],
            found["at_once"],
            tuple(tuple(each["prompt"]) for each in found["prompts"]),
            tuple(
                Continuation(tuple(each["answer"]), tuple(map(tuple, each["log_probabilities"])))
                for each in found["prompts"]
            ),
        )
        for name, found in data.items()
    }


def parse_answer(content: bytes) -> Continuation:
    """Read an answer of ``/completion``; JSON's null, where it could not compute, is NaN.

    Raises ``NotTold`` for a server that tells no probabilities, or only some of them.
    """
    try:
        steps = parse_object(content)["completion_probabilities"]
        tokens = tuple(int(step["id"]) for step in steps)
        told = [{each["id"]: each["logprob"] for each in step["top_logprobs"]} for step in steps]
        # JSON has no NaN: the server writes null.
        rows = tuple(
            tuple(math.nan if (each := row[token]) is None else float(each) for token in _TOKENS)
            for row in told
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise NotTold("it does not tell the probabilities of its tokens") from error
    if not rows:
        raise NotTold("it tells no probabilities")
    return Continuation(tokens, rows)


def deviation(got: Continuation, right: Continuation) -> float:
    """Return how far an answer is from the right one: 0 for none, infinite for no numbers.

    It is the root mean square of the differences, as a part of the spread of the right numbers, and
    the largest of all tokens. The rest after another token than the right one is not compared: it
    continues another text.
    """
    largest = 0.0
    for at in range(min(len(got.tokens), len(right.tokens))):
        if got.tokens[:at] != right.tokens[:at]:
            break
        found = _difference(got.log_probabilities[at], right.log_probabilities[at])
        # A comparison with NaN is false: it must not be the one that is kept.
        largest = max(largest, found) if math.isfinite(found) else math.inf
    # The first token is the likeliest one by far: only a wrong choice takes another.
    return math.inf if got.tokens[:1] != right.tokens[:1] else largest


def _difference(row: Sequence[float], expected: Sequence[float]) -> float:
    middle = math.fsum(expected) / len(expected)
    spread = math.fsum((each - middle) ** 2 for each in expected)
    apart = [(each - right) ** 2 for each, right in zip(row, expected, strict=True)]
    # Without a spread, every difference is infinitely large.
    if not all(map(math.isfinite, apart)) or not spread:
        return math.inf
    return math.sqrt(math.fsum(apart) / spread)
