"""The child's own small pieces, which stand in for slower modules of the standard library."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.probe.worker.channel import encode
from tsuku_llm.probe.worker.hip import find_target

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_what_is_written_is_json(value: Any) -> None:
    assert json.loads(encode(value)) == value
    assert encode(value).isascii()
    assert "\n" not in encode(value)


@pytest.mark.parametrize("letter", ["\ud800", "\U0001f600", "\x00", "\x7f", '"', "\\"])
def test_every_letter_survives(letter: str) -> None:
    assert json.loads(encode(f"a{letter}b")) == f"a{letter}b"


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
def test_a_target_is_found_wherever_it_stands(raw: bytes, target: str | None) -> None:
    assert find_target(raw) == target
