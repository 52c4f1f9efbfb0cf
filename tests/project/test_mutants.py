"""The list of mutants: each is still a change of the code, and names tests that exist."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
MUTANTS = tomllib.loads((ROOT / "ci" / "mutants.toml").read_text("utf-8"))["mutant"]


def test_the_mutants_are_many_and_each_has_a_name() -> None:
    names = {each["name"] for each in MUTANTS}
    assert len(names) == len(MUTANTS) >= 40


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each["name"])
def test_a_mutant_changes_one_place_and_names_its_tests(mutant: dict[str, Any]) -> None:
    text = (ROOT / mutant["file"]).read_text("utf-8")
    assert text.count(mutant["old"]) == 1
    assert mutant["old"] != mutant["new"]
    assert mutant["tests"]
    for test in mutant["tests"]:
        file, _, name = test.partition("::")
        defined = rf"^def {re.escape(name)}\("
        assert re.search(defined, (ROOT / file).read_text("utf-8"), re.MULTILINE), test
