"""``docs/errors.md`` has every slug of an error, a problem and a reason, and no other one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tsuku_llm.ground.errors
import tsuku_publish.errors
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.machine.hardware import ApiState

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text("utf-8")
SOURCES = sorted((ROOT / "installer").rglob("*.py"))


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def errors() -> dict[str, type[TsukuError]]:
    modules = (tsuku_llm.ground.errors, tsuku_publish.errors)
    values = [value for module in modules for value in vars(module).values()]
    found = [each for each in values if isinstance(each, type) and issubclass(each, TsukuError)]
    return {error.slug: error for error in found}


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


def rows(heading: str) -> list[list[str]]:
    lines = [line for line in section(heading).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_error_has_a_part_under_its_exit_code() -> None:
    told = re.findall(r"^### (\S+)$", PAGE, re.MULTILINE)
    assert len(told) == len(set(told))
    assert set(told) == set(errors())
    for slug, error in errors().items():
        before = PAGE.partition(f"\n### {slug}\n")[0]
        *_, heading = re.findall(r"^## (.*)$", before, re.MULTILINE)
        code = re.match(r"Exit code (\d+)", heading)
        if code:
            assert int(code[1]) == error.exit_code, slug
        else:
            assert (error.exit_code, heading) == (1, "The publisher's program"), slug


@pytest.mark.parametrize("slug", errors())
def test_an_error_has_its_cause_and_its_cure(slug: str) -> None:
    text = PAGE.partition(f"\n### {slug}\n")[2]
    text = re.split(r"\n##", text)[0]
    assert re.fullmatch(r"\nCause: \S.+\.\nCure: \S.+[.?]\n*", text), text


@pytest.mark.parametrize(
    ("value", "heading"),
    [("Problem", "Problems of the machine"), ("Reason", "Reasons against a variant")],
)
def test_each_problem_and_reason_is_told(value: str, heading: str) -> None:
    told = [row[0].strip("`") for row in rows(heading)]
    assert len(told) == len(set(told))
    assert all(all(row) and len(row) == 3 for row in rows(heading))
    given = slugs_given_to(value)
    assert len(given) > 10
    # Some slugs are not written in the call, but in a table: then they are in a source file.
    assert given - {"error"} <= set(told)
    source = "\n".join(path.read_text("utf-8") for path in SOURCES)
    of_states = {f"api-{state.value}" for state in ApiState if state is not ApiState.OK}
    unknown = {slug for slug in told if f'"{slug}"' not in source}
    assert unknown == (of_states if value == "Reason" else set())
