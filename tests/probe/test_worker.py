"""The child's own small pieces, which stand in for slower modules of the standard library."""

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.probe.worker.protocol import Channel, encode
from tsuku_llm.probe.worker.questions.hip import find_target

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_the_worker_writes_json(value: Any) -> None:
    assert json.loads(encode(value)) == value
    assert encode(value).isascii()
    assert "\n" not in encode(value)


@pytest.mark.parametrize("letter", ["\ud800", "\U0001f600", "\x00", "\x7f", '"', "\\"])
def test_every_character_survives(letter: str) -> None:
    assert json.loads(encode(f"a{letter}b")) == f"a{letter}b"


class Library:
    """Looks like a loaded library."""

    @staticmethod
    def works(count: list[int]) -> int:
        count[0] = 3
        return 0

    @staticmethod
    def fails(count: list[int]) -> int:
        count[0] = 3
        return 7


def said(call: str) -> list[Any]:
    reading, writing = os.pipe()
    count = [0]
    Channel(writing, "q").call(Library, call, count, tell=lambda: {"count": count[0]})
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return [json.loads(line) for line in pipe]


def test_a_call_is_announced_and_answered() -> None:
    answer = {"ask": "q", "call": "works", "code": 0, "count": 3}
    assert said("works") == [{"ask": "q", "before": "works"}, answer]


def test_outputs_of_a_failed_call_are_not_reported() -> None:
    assert said("fails")[-1] == {"ask": "q", "call": "fails", "code": 7}


def test_a_missing_function_is_reported() -> None:
    assert [line["error"] for line in said("missing")] == ["the library has no such function"]


@pytest.mark.parametrize(
    ("raw", "target"),
    [
        (b"gfx1100\0", "gfx1100"),
        (b"xxgfx90a:sramecc+:xnack-\0", "gfx90a"),
        (b"gfxcard\0\0gfx1151\0", "gfx1151"),
        (b"gfx1\0", None),
        (b"gfx123456\0", None),
        (b"gfx1100", None),
        (b"", None),
    ],
)
def test_a_target_is_found_anywhere_in_the_name(raw: bytes, target: str | None) -> None:
    assert find_target(raw) == target
