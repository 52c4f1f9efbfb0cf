"""What the two reference models answer, computed in float64, and how far a right server may differ.

Kernels for quantised weights round the values that they multiply to 8 bits, in blocks: ``noise`` is
how far that moves the answers, for each type of tensor alone. A server may differ three times as
much: kernels differ in their blocks and in the order of their sums.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256, shake_128
from itertools import count
from math import hypot
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ci.compute.forward import Model, Rounding, Values, log_probabilities
from tsuku_llm.launch.compute.reference_models import FIRST_TOKEN, MODELS, VOCABULARY

ANSWERS = Path(__file__).parents[2] / "installer/tsuku_llm/launch/compute/answers.json"

SIZES = (1, 6, 40, 600)
"""Tokens of the prompts: one, a few, a batch, and more than a batch of 512."""

STEPS = 2
"""Tokens of each answer: the second one is computed from the caches."""

MARGIN = 0.7
"""By how much the first token of an answer is the likeliest: the second has the same beginning."""

FACTOR = 3.0

_KINDS = ("F16", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4")
_BLOCKS = {"Q4_K": 256, "Q6_K": 256, "IQ4_XS": 256}
"""Values that a kernel for the CPU rounds together, 32 for other types (``vec_dot_type``)."""


def answers() -> dict[str, Any]:
    """Compute the data of all models."""
    return {name: _of_model(name) for name in MODELS}


def encoded(found: dict[str, Any]) -> str:
    """Encode the data: one line for each model."""
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
    return "{" + ",\n".join(lines) + "}\n"


def prompts(name: str, exact: Model) -> list[list[int]]:
    """Draw the prompts of a model; drawn again until the first token of the answer is clear."""
    return [next(_clear(f"{name} {size}", size, exact)) for size in SIZES]


def _clear(seed: str, size: int, exact: Model) -> Iterator[list[int]]:
    for number in count():
        drawn = shake_128(f"{seed} {number}".encode()).digest(size)
        tokens = [FIRST_TOKEN + byte % (VOCABULARY - FIRST_TOKEN) for byte in drawn]
        best = np.sort(log_probabilities(exact, tokens)[-1])
        if best[-1] - best[-2] >= MARGIN:
            yield tokens


def deviation(got: Values, expected: Values) -> float:
    """Return the root mean square of the difference, as a part of the expected spread."""
    return float(np.sqrt(np.mean((got - expected) ** 2)) / expected.std())


def rounded(kinds: tuple[str, ...]) -> Rounding:
    """Return what kernels for these types do to the values that they multiply."""

    def round_blocks(kind: str, values: Values) -> Values:
        if kind not in kinds or not len(values):
            return values
        if kind == "F16":
            return values.astype(np.float16).astype(np.float64)
        blocks = values.reshape(len(values), -1, _BLOCKS.get(kind, 32))
        steps = np.abs(blocks).max(axis=-1, keepdims=True) / 127
        steps[steps == 0] = 1
        again: Values = (np.round(blocks / steps) * steps).reshape(values.shape)
        return again

    return round_blocks


def _of_model(name: str) -> dict[str, Any]:
    data = MODELS[name]()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(data)
        exact = Model(path)
        drawn = prompts(name, exact)
        results = [_answer(exact, tokens) for tokens in drawn]
        noise = {
            kind: max(
                deviation(log_probabilities(Model(path, rounded((kind,))), tokens)[-1], right[0])
                for tokens, (_, right) in zip(drawn, results, strict=True)
            )
            for kind in _KINDS
            if kind in exact.kinds.values()
        }
    return {
        "sha256": sha256(data).hexdigest(),
        "noise": {kind: round(each, 5) for kind, each in noise.items()},
        "tolerance": round(FACTOR * hypot(*noise.values()), 4),
        # Upstream mixes up the states of a recurrent layer where it computes several sequences in
        # one batch (llama.cpp issue 29002, of 2026-09-16): so whether a right build answers them
        # rightly depends on when they arrive.
        "at_once": 0 if any(".ssm_" in each for each in exact.kinds) else len(SIZES) - 1,
        "prompts": [
            {
                "prompt": tokens,
                "answer": answer,
                "log_probabilities": [[round(float(each), 3) for each in row] for row in right],
            }
            for tokens, (answer, right) in zip(drawn, results, strict=True)
        ],
    }


def _answer(exact: Model, tokens: list[int]) -> tuple[list[int], list[Values]]:
    """Let the model continue a prompt with its likeliest tokens."""
    answer: list[int] = []
    rows: list[Values] = []
    for _ in range(STEPS):
        rows.append(log_probabilities(exact, [*tokens, *answer])[-1])
        answer.append(int(np.argmax(rows[-1])))
    return answer, rows
