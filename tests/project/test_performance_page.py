"""The page about performance says what was measured: its tables are made of the results."""

import functools
import importlib
import json

import pytest

from ci.bench.publishing import DOCUMENT, PLOTS, RESULTS, with_tables
from ci.bench.rows import ROWS
from ci.bench.spans import PHASES
from ci.bench.timeline import table

RESULTS_EXIST = pytest.mark.skipif(not RESULTS.exists(), reason="nothing was measured yet")


@RESULTS_EXIST
def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    text = DOCUMENT.read_text("utf-8")
    assert with_tables(text, results) == text, "run: python -m ci.bench docs"
    assert {path.stem for path in PLOTS.glob("*.svg")} >= {
        "rows",
        *(f"growth-{name}" for name in results["growth"]),
    }


def test_the_rows_have_names_of_their_own_in_order() -> None:
    names = [row.id for row in ROWS]
    assert len(set(names)) == len(names)
    assert {f"G{number}" for number in range(1, 17)} <= set(names)


def test_the_time_line_looks_at_functions_that_exist() -> None:
    for place in PHASES.values():
        module, _, path = place.partition(":")
        assert callable(functools.reduce(getattr, path.split("."), importlib.import_module(module)))


def test_the_time_line_adds_up_what_was_done_more_than_once() -> None:
    lines = table([("loaded", 0.0, 0.2), ("fetched", 0.2, 1.0), ("fetched", 0.5, 1.5)]).splitlines()
    assert lines[1].split() == ["0.000", "0.200", "1", "0.200", "loaded"]
    assert lines[2].split() == ["0.200", "1.500", "2", "1.800", "fetched"]
