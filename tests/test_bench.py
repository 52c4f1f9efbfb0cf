"""The page about performance says what was measured: its tables are made of the results."""

import json

import pytest

from ci.bench.publishing import DOCUMENT, PLOTS, RESULTS, with_tables
from ci.bench.rows import ROWS

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
