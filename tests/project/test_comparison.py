"""The table of features in ``docs/comparison.md``: each row is shown, or says why not."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "comparison.md").read_text("utf-8")
_SOURCES = PAGE.partition("\n## Sources\n")[2].partition("\n## Features\n")[0]
SOURCES = [int(number) for number in re.findall(r"^(\d+)\. ", _SOURCES, re.MULTILINE)]
_TABLE = PAGE.partition("\n## Features\n")[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in _TABLE.splitlines()
    if line.startswith("| ")
][1:]
DEFINED = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^ *def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
}


def shown_by(cell: str) -> set[str]:
    """The tests and the pages that a cell names."""
    return {*re.findall(r"`(test_\w+)`", cell), *re.findall(r"\]\(([^)#]+)", cell)}


def test_the_table_has_every_feature_once() -> None:
    names = [row[0] for row in ROWS]
    assert len(names) == len(set(names)) == 28


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_feature_is_shown_or_has_a_reason(row: list[str]) -> None:
    _, *others, ours, evidence = row
    assert len(others) == 4
    assert ours in {"y", "p", "n", "-"}
    named = shown_by(evidence)
    for each in named:
        assert each in DEFINED or (ROOT / "docs" / each).is_file(), each
    if ours == "y":
        assert named
    else:
        # A reason is words, not only the name of a test.
        assert re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "", evidence).count(" ") >= 3


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_cell_of_another_tool_has_its_source(row: list[str]) -> None:
    for cell in row[1:-2]:
        found = re.fullmatch(r"[ypn] \[(\d+)\]|[-?]", cell)
        assert found, cell
        assert found[1] is None or int(found[1]) in SOURCES, cell


def test_the_numbers_of_sources_are_those_of_the_list() -> None:
    text, _, rest = PAGE.partition("\n## Sources\n")
    _, _, table = rest.partition("\n## Features\n")
    numbers = {int(number) for number in re.findall(r"\[(\d+)\](?!\()", text + table)}
    assert list(range(1, len(SOURCES) + 1)) == SOURCES
    assert numbers == set(SOURCES)
