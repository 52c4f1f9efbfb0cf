"""The reference models, their right answers, and the comparison of a server's answers with them."""

import json
import math
from hashlib import sha256
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builds import completion

from ci.compute import ANSWERS, FACTOR, rounded
from ci.compute import deviation as by_numpy
from ci.compute.forward import Model, log_probabilities
from tsuku_llm.launch.compute.judging import (
    Continuation,
    NotTold,
    deviation,
    parse_answer,
    references,
)
from tsuku_llm.launch.compute.reference_models import MODELS

SIZE = 8
ROWS = st.lists(
    st.integers(-2000, 0).map(lambda each: each / 100), min_size=SIZE, max_size=SIZE, unique=True
).map(tuple)
"""Rows of a smaller vocabulary: the comparison is the same."""


@pytest.fixture(scope="module", params=MODELS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    path.write_bytes(MODELS[request.param]())
    return path


def test_a_model_has_the_bytes_that_its_answers_were_computed_from(written: Path) -> None:
    data = written.read_bytes()
    assert sha256(data).hexdigest() == references()[written.stem].sha256
    assert len(data) < 1 << 20


def test_the_models_have_the_types_of_tensors_that_people_use(tmp_path: Path) -> None:
    kinds = set()
    for name, make in MODELS.items():
        path = tmp_path / name
        path.write_bytes(make())
        for tensor in gguf.GGUFReader(path).tensors:
            kinds.add(tensor.tensor_type.name)
            weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.isfinite(weights).all()
            assert 0 < np.abs(weights).max() < 10, tensor.name
    assert kinds == {"F32", "F16", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"}


def test_the_answers_are_those_of_the_computation_in_float64(written: Path) -> None:
    model, reference = Model(written), references()[written.stem]
    for prompt, right in zip(reference.prompts, reference.answers, strict=True):
        tokens = [*prompt, *right.tokens]
        found = log_probabilities(model, tokens[:-1])[len(prompt) - 1 :]
        assert np.abs(found - np.array(right.log_probabilities)).max() < 0.002
        assert found.argmax(axis=1).tolist() == list(right.tokens)
        first, second = np.sort(found[0])[:-3:-1]
        assert first - second > 0.6  # no right server chooses another first token


def test_the_tolerance_is_three_times_what_rounding_to_8_bits_does(written: Path) -> None:
    known = json.loads(ANSWERS.read_text("utf-8"))[written.stem]
    reference = references()[written.stem]
    assert known["tolerance"] == pytest.approx(FACTOR * math.hypot(*known["noise"].values()), 0.01)
    for kind, noise in known["noise"].items():
        found = max(
            by_numpy(log_probabilities(Model(written, rounded((kind,))), prompt)[-1], np.array(row))
            for prompt, (_, (row, _)) in zip(
                reference.prompts[:3], reference.answers[:3], strict=True
            )
        )
        assert found <= noise * 1.05 + 0.0005


def test_an_answer_is_read_as_the_server_writes_it() -> None:
    for reference in references().values():
        for right in reference.answers:
            assert parse_answer(completion(right).encode()) == right
            assert deviation(right, right) == 0
            assert deviation(parse_answer(completion(right, nan=True).encode()), right) == math.inf


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"completion_probabilities": []}',
        '{"completion_probabilities": [{}]}',
        # Upstream until December 2024 (llama.cpp #10783).
        '{"completion_probabilities": [{"content": " a", "probs": [{"prob": 0.5}]}]}',
        '{"completion_probabilities": [{"id": 4, "top_logprobs": [{"id": 4, "logprob": -1}]}]}',
        '{"completion_probabilities": [{"id": 1e400, "top_logprobs": 3}]}',
    ],
)
def test_a_server_that_does_not_tell_its_probabilities_is_not_judged(text: str) -> None:
    with pytest.raises(NotTold):
        parse_answer(text.encode())


@given(ROWS, st.floats(0, 3))
def test_a_deviation_is_a_part_of_the_spread(row: tuple[float, ...], by: float) -> None:
    right = Continuation((1,), (row,))
    moved = tuple(each + by for each in row)
    found = deviation(Continuation((1,), (moved,)), right)
    assert found == pytest.approx(by / float(np.std(row)), rel=1e-6, abs=1e-9)


@given(ROWS, ROWS, st.integers(0, SIZE - 1), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_is_no_number_is_never_right(
    first: tuple[float, ...], second: tuple[float, ...], at: int, value: float
) -> None:
    right = Continuation((1, 2), (first, second))
    for place in range(2):
        rows = [list(first), list(second)]
        rows[place][at] = value
        assert deviation(Continuation((1, 2), tuple(map(tuple, rows))), right) == math.inf


@given(ROWS, ROWS, ROWS)
def test_another_first_token_is_wrong_and_another_second_one_is_not(
    first: tuple[float, ...], second: tuple[float, ...], other: tuple[float, ...]
) -> None:
    right = Continuation((1, 2), (first, second))
    assert deviation(Continuation((3, 2), (first, other)), right) == math.inf
    assert deviation(Continuation((1, 3), (first, second)), right) == 0
    assert deviation(Continuation((1,), (first,)), right) == 0
