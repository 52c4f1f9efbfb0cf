"""The bounds of the gate and of the canary lie between what was measured of right and wrong builds.

``ci/tolerances.md`` has what ``ci/tolerances.py`` printed.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.builds import stand_in

from ci.tolerances import Found, Subject, drawn, measured, starts
from tsuku_llm.launch.compute.canary_answer import OTHER, SAME
from tsuku_llm.launch.compute.judging import references

RECORD = Path(__file__).parents[2] / "ci" / "tolerances.md"


def rows() -> Iterator[Found]:
    for line in RECORD.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "setting":
            yield Found(*cells)


RIGHT = [row for row in rows() if not row.setting.startswith("wrong")]
WRONG = [row for row in rows() if row.setting.startswith("wrong")]


def test_every_right_build_is_well_within_the_bounds() -> None:
    tolerance = min(each.tolerance for each in references().values())
    parts = [float(row.gate.rstrip("%")) / 100 for row in RIGHT if row.gate.endswith("%")]
    assert len(parts) >= 10
    assert 0 < max(parts) < tolerance * 0.75
    nats = [float(row.canary) for row in RIGHT if row.canary]
    assert len(nats) >= 30
    assert 0 < max(nats) * 1.5 < OTHER
    # What one server answers: settings are those of its start.
    beside = [float(row.canary) for row in RIGHT if row.setting == "beside other requests"]
    assert len(beside) == 3
    assert 0 < max(beside) * 1.5 < SAME < OTHER


def test_every_wrong_kernel_is_refused_by_the_gate() -> None:
    assert len(WRONG) >= 30
    called = [row for row in WRONG if "not called" not in row.gate]
    assert len(called) >= 25
    assert [row for row in called if not row.gate.startswith("refused")] == []


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")
def test_the_program_tells_a_right_build_from_a_wrong_one(tmp_path: Path) -> None:
    right = Subject(stand_in(tmp_path / "right").executable, "cpu", None, None)
    assert list(measured(right, {"plain": ()})) == [Found("plain", "0.00%", "")]
    steps = ("answers repeated", "listen")
    wrong = right._replace(server=stand_in(tmp_path / "wrong", compute=steps).executable)
    ((_, said, _),) = measured(wrong, {"plain": ()})
    assert re.fullmatch(r"refused, \d+\.\d%", said)


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")
def test_a_start_of_many_that_is_refused_is_named(tmp_path: Path) -> None:
    right = Subject(stand_in(tmp_path / "right").executable, "cpu", None, None)
    (told,) = starts(right, 2, 1)
    assert told == Found("2 starts", "2 were right: 0.00% to 0.00%, median 0.00%", "")
    steps = ("answers repeated", "listen")
    wrong = right._replace(server=stand_in(tmp_path / "wrong", compute=steps).executable)
    refused, told = starts(wrong, 1, 1)
    assert refused.setting == f"start 0: {' '.join(drawn(0))}"
    assert told.gate == "0 were right"
