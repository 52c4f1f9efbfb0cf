"""How far apart two servers' expectations of a text are: in nats, for ``bench``.

The answers are those of ``canary_answers.json``: a real model's, of right and of wrong kernels.
"""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.launch.compute.canary_answer import Answer, AnswerStep, divergence, read_completion
from tsuku_llm.steps.report.bench import ALIKE

REAL = json.loads((Path(__file__).parent / "canary_answers.json").read_bytes())


def answer_of(kind: str, name: str) -> Answer:
    return read_completion(json.dumps(REAL[kind][name]).encode())


PLAIN = answer_of("right", "plain")


def step(*chances: float) -> AnswerStep:
    nats = tuple(-math.log(chance) for chance in chances)
    return AnswerStep(0, tuple(range(len(chances))), nats)


def test_it_is_the_mean_of_kullback_and_leibler() -> None:
    right, other = (step(0.5, 0.25), step(0.9)), (step(0.25, 0.5), step(0.9))
    # One token of 0.5 for 0.25, one the other way around, and 0.25 of all others on both sides.
    expected = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    assert divergence(other, right) == pytest.approx(expected / 2)


def test_nothing_to_compare_is_no_figure() -> None:
    for answer, right in (((), PLAIN), (PLAIN, ()), ((AnswerStep(1, (), ()),), PLAIN)):
        assert divergence(answer, right) is None


@pytest.mark.parametrize("setting", REAL["right"])
def test_right_servers_are_alike(setting: str) -> None:
    assert (divergence(answer_of("right", setting), PLAIN) or 0) < ALIKE


def test_most_wrong_kernels_are_far_apart() -> None:
    far = [name for name in REAL["wrong"] if name != "product-nan"]
    apart = {name: divergence(answer_of("wrong", name), PLAIN) or 0 for name in far}
    assert len([name for name in far if apart[name] > ALIKE]) >= len(far) // 2, apart


chances = st.lists(st.floats(0.001, 1), min_size=1, max_size=8).map(
    lambda row: [each / (sum(row) + 0.5) for each in row]
)


@given(st.lists(st.tuples(chances, chances), min_size=1, max_size=4))
def test_it_is_never_negative_and_nothing_for_the_same(
    pairs: list[tuple[list[float], ...]],
) -> None:
    one, two = (tuple(step(*pair[side]) for pair in pairs) for side in (0, 1))
    assert (divergence(one, two) or 0) >= 0
    assert divergence(one, one) == pytest.approx(0, abs=1e-9)
