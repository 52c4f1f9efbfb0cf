"""Rows that the test suite shows: every test whose name carries a row's id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from ci.faultlab.recorder import ids_in
from ci.faultlab.verdict import Tally

ROOT = Path(__file__).resolve().parents[2]
_NO_TESTS = 5
_LIMIT = 600
"""Seconds for a test, plus one for each example: a test that takes longer hangs."""


def run_tests(ids: Collection[str], examples: int, most: int = 0) -> dict[str, Tally]:
    """Run the tests of these rows; return one tally for each row that has tests.

    ``examples`` is the number for each test that fuzzes. If ``most`` is given, that many tests of
    each row run, and not all.
    """
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        report = Path(folder) / "outcomes.json"
        env = {"FAULT_ROWS": " ".join(ids), "FAULT_REPORT": str(report)}
        env |= {"FUZZ_EXAMPLES": str(examples), "FAULT_LIMIT": str(_LIMIT + examples)}
        env |= {"FAULT_TESTS": str(most)}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
        done = subprocess.run(
            [*command, "-p", "ci.faultlab.recorder", "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**os.environ, **env},
            stdout=sys.stderr,
            check=False,
        )
        if done.returncode not in (0, 1, _NO_TESTS) or not report.exists():
            sys.exit(f"the tests could not be run: pytest ended with {done.returncode}")
        outcomes = json.loads(report.read_text("utf-8"))
        if lost := [node for node in outcomes if "::" not in node]:
            sys.exit(f"the tests could not be run: pytest cannot read {', '.join(lost)}")
        return _tallies(outcomes, ids)


def _tallies(outcomes: Mapping[str, str], ids: Collection[str]) -> dict[str, Tally]:
    tallies: dict[str, Tally] = {}
    skipped: dict[str, str] = {}
    for node, outcome in outcomes.items():
        for row in ids_in(node) & set(ids):
            tally = tallies.setdefault(row, Tally("tests"))
            kind, _, why = outcome.partition(": ")
            if kind == "skipped":
                skipped[row] = why
            else:
                tally.add([why] if kind == "failed" else [], where=node)
    # A row counts as not run only if all its tests were skipped.
    for row, why in skipped.items():
        if not tallies[row].count:
            tallies[row].missing = why
    return tallies
