"""The tables of loads in the documentation are those that the program of them prints."""

from pathlib import Path

from ci.loads import lines

MIRRORS = Path(__file__).parents[2] / "docs" / "mirrors.md"


def test_the_tables_of_loads_are_computed() -> None:
    told = MIRRORS.read_text("utf-8").splitlines()
    assert [line for line in lines() if line and line not in told] == []
