"""``ci/reference/errors.toml`` has every slug of an error, a problem and a reason, and no other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.reference.errors import kinds, words
from tsuku_llm.machine.hardware import ApiState

ROOT = Path(__file__).parents[2]
TOLD = words()
SOURCES = sorted((ROOT / "installer").rglob("*.py"))


def slugs_given_to(value: str) -> set[str]:
    """The texts that are the first argument of a call of ``value``, also of a choice of two."""
    found: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and node.args and getattr(node.func, "id", "") == value:
                found |= set(texts(node.args[0]))
    return found


def texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)


def test_each_error_has_words_and_no_other_one() -> None:
    assert set(TOLD["errors"]) == set(kinds())
    assert set(TOLD["headings"]) == {str(kind.exit_code) for slug, kind in kinds().items()}


@pytest.mark.parametrize("slug", kinds())
def test_an_error_has_its_cause_and_its_cure(slug: str) -> None:
    assert set(TOLD["errors"][slug]) == {"cause", "cure"}
    assert TOLD["errors"][slug]["cause"].endswith(".")
    assert TOLD["errors"][slug]["cure"].endswith((".", "?"))


@pytest.mark.parametrize(("value", "name"), [("Problem", "problems"), ("Reason", "reasons")])
def test_each_problem_and_reason_is_told(value: str, name: str) -> None:
    told = TOLD[name]
    assert all(all(cells) and len(cells) == 2 for cells in told.values())
    given = slugs_given_to(value)
    assert len(given) > 10
    # Some slugs are not written in the call, but in a table: then they are in a source file.
    assert given - {"error"} <= set(told)
    source = "\n".join(path.read_text("utf-8") for path in SOURCES)
    of_states = {f"api-{state.value}" for state in ApiState if state is not ApiState.OK}
    unknown = {slug for slug in told if f'"{slug}"' not in source}
    assert unknown == (of_states if value == "Reason" else set())
