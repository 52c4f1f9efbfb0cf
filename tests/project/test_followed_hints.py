"""The check of ``support.hints`` sees a hint that leads nowhere, and lets a right one pass."""

import pytest
from support.hints import calls, is_a_call


@pytest.mark.parametrize(
    "hint",
    [
        "run: tsuku-llm instal",
        "run: tsuku-llm config set llm.mirror",
        "see: tsuku-llm doctor --hard",
        "run: tsuku-llm install cuda",
        "or: tsuku-llm serve -m",
        "run: tsuku-llm bench",
        "run: tsuku-llm config",
    ],
)
def test_a_hint_that_leads_nowhere_is_seen(hint: str) -> None:
    assert not all(map(is_a_call, calls(f"hint: {hint}")))


@pytest.mark.parametrize(
    "hint",
    [
        "run tsuku-llm again",
        "name one that tsuku-llm list shows, or remove all: tsuku-llm uninstall --all",
        "run: tsuku-llm install --backend cuda; or: tsuku-llm doctor --backend cuda",
        "see: tsuku-llm --help",
        "see: tsuku-llm config set --help",
        "put arguments that are not for tsuku-llm after --: tsuku-llm serve -m 'my model' -- -c 10",
        "or: tsuku-llm repository remove x, and then tsuku-llm repository add x URL --root FILE",
    ],
)
def test_a_hint_that_is_right_passes(hint: str) -> None:
    found = [*calls(f"hint: {hint}")]
    assert found
    assert all(map(is_a_call, found))
