"""The speed of a running server, by its own count, with the same text for every build.

The numbers come from the server's ``timings``, so they contain neither HTTP nor this program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tsuku_llm.ground.errors import LaunchError
from tsuku_llm.ground.foreign import parse_json, parse_object
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.safe_text import Secret
from tsuku_llm.launch.ask.health import exchange
from tsuku_llm.launch.compute.canary_answer import Answer, AnswerStep, read_completion
from tsuku_llm.launch.plan.addresses import ServerAddress

PROMPT_TOKENS = 512
GENERATED_TOKENS = 128

SPEED_CONTEXT = PROMPT_TOKENS + GENERATED_TOKENS + 64
"""The context with which the server must be started (``-c``), in tokens."""

_LIMIT = 900.0
"""Seconds for one answer: a large model on a slow processor takes minutes."""

_TEXT = (
    "In the year before the railway came, the town had one street, two wells and a clock that "
    "nobody trusted. Travellers asked the way to the river; the answer was always the same. "
)
_HINT = f"try the model with {TSUKU} serve: one that completes no text cannot be measured"
_PASSAGE = (
    "A lighthouse keeper wrote down every ship that passed, with the hour, the weather and flag. "
    "After thirty years the books filled two shelves. When the light was made automatic in 1984, a "
    "student asked whether she might read them. She found that storms had come later each autumn, "
    "that coal gave way to oil within five winters, and that one small boat, painted green, went "
    "out on the same day of every year and had always come back before noon. Nobody in the harbour "
    "knew why. In the last book there was a letter. It said: if you have read so far, look at the "
    "wall behind the clock. def mean(values):\n    return sum(values) / len(values)\n\n"
    "Question: what is the capital of France? Answer: Paris. Question: what is 17 times 3? Answer: "
    "51. Die Uhr blieb um halb vier stehen, und niemand hat sie repariert. El mar estaba en calma."
)
"""A text of several kinds, so that there is something to guess; about 250 tokens."""

_PASSAGE_TOKENS = 256
_PASSAGE_LIMIT = 30.0
"""Seconds for all of them: a slow server gets fewer tokens to read."""

_LONGEST = 200
"""Characters of the server's message that are shown."""

_FILLING = 60
"""Repetitions of the text: with any vocabulary it has more tokens than are needed."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed in tokens per second, for the prompt and the answer, with their token counts."""

    prompt: float
    generation: float
    prompt_tokens: int
    generated_tokens: int


def measure(
    address: ServerAddress, key: Secret | None = None, on_wait: Callable[[], None] = lambda: None
) -> Speed:
    """Ask the server twice and measure the second answer.

    During the first one the server loads the rest and compiles shaders (Vulkan: 8 to 11
    seconds). A small context shortens both prompt and answer. ``key`` is for the server's API.
    ``on_wait`` is called once a second of an answer; an OSError of it ends the measurement. Raises
    LaunchError if the server does not answer as expected.
    """
    try:
        ask = partial(_ask, address, key, on_wait)
        request = _request(ask)
        # The answer is dropped: this one warms the server up.
        ask("/completion", request)
        return _speed(ask("/completion", request)["timings"], request)
    except OSError as error:
        raise LaunchError(
            "the server broke off the connection while it was measured",
            facts=(str(error),),
            hint=_HINT,
        ) from error
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise LaunchError(
            "the server's answers lack what a measurement needs",
            facts=("it needs the context, the tokens and the timings of the answer",),
            hint="install another release: its server may be too old or too new for this program",
        ) from error


def read_along(
    address: ServerAddress, key: Secret | None = None, on_wait: Callable[[], None] = lambda: None
) -> Answer:
    """Return what the server expects after each token of a text, as far as there is time.

    ``key`` and ``on_wait`` are those of ``measure``.

    Each request reads one more token, and the server has the others in its cache: it computes them
    as those of an answer. Empty for a server that does not tell probabilities, or not like this.
    """
    steps: list[AnswerStep] = []
    deadline = time.monotonic() + _PASSAGE_LIMIT
    with suppress(OSError, LaunchError, ValueError, KeyError, TypeError):
        tokens = _ask(address, key, on_wait, "/tokenize", {"content": _PASSAGE})["tokens"]
        for end in range(1, min(len(tokens), _PASSAGE_TOKENS) + 1):
            body = {"prompt": tokens[:end], "cache_prompt": True, "id_slot": 0, **_NEXT_TOKEN}
            _, content = exchange(address, "/completion", body, key, limit=_LIMIT, on_wait=on_wait)
            step = read_completion(content)[:1]
            steps += step
            if not step or time.monotonic() > deadline:
                break
    return tuple(steps)


_NEXT_TOKEN = {"n_predict": 1, "temperature": 0, "n_probs": 10, "post_sampling_probs": False}


def _request(ask: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Build a request for the same tokens each time, without sampling at random or caching."""
    context = int(ask("/props")["default_generation_settings"]["n_ctx"])
    generated = min(GENERATED_TOKENS, context // 4)
    tokens = ask("/tokenize", {"content": _TEXT * _FILLING})["tokens"]
    return {
        "prompt": tokens[: min(PROMPT_TOKENS, context - generated - 8)],
        "n_predict": generated,
        "ignore_eos": True,  # the model must not end its answer early
        "cache_prompt": False,
        "temperature": 0,
        "seed": 1,
    }


def _speed(timings: dict[str, Any], request: dict[str, Any]) -> Speed:
    # A cached prompt or a shorter answer would give wrong speeds.
    read, generated = int(timings["prompt_n"]), int(timings["predicted_n"])
    if (read, generated) != (len(request["prompt"]), request["n_predict"]):
        raise ValueError(f"it read {read} tokens and generated {generated}, not what was asked")
    return Speed(
        read / timings["prompt_ms"] * 1000,
        generated / timings["predicted_ms"] * 1000,
        read,
        generated,
    )


def server_message(text: bytes) -> str:
    """Return the server's own message in an answer that refuses a request."""
    try:
        return str(parse_json(text)["error"]["message"])[:_LONGEST]
    except (ValueError, KeyError, TypeError):
        return text[:_LONGEST].decode("utf-8", "replace").strip() or "it gave no reason"


def _ask(
    address: ServerAddress,
    key: Secret | None,
    on_wait: Callable[[], None],
    path: str,
    body: object = None,
) -> dict[str, Any]:
    status, content = exchange(address, path, body, key, limit=_LIMIT, on_wait=on_wait)
    if status != 200:
        raise LaunchError(
            f"the server refused to be measured: {server_message(content)}",
            facts=(f"HTTP status {status} for {path}",),
            hint=_HINT,
        )
    return parse_object(content)
