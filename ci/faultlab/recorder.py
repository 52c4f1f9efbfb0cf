"""A pytest plugin that runs only tests with one of the wanted ids, and writes their outcomes.

``FAULT_ROWS`` has the ids, ``FAULT_REPORT`` the file for ``{node id: outcome}``. ``FAULT_TESTS`` is
the largest number of tests for a row; with 0, all of its tests run. An outcome is
``passed``, ``skipped: why`` or ``failed: why``. A test file that cannot be read has one, too. A
test that takes longer than ``FAULT_LIMIT`` seconds ends its worker of pytest-xdist, which first
prints where every thread was. Another worker continues, and the test has failed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

_ID = re.compile(r"(?<![A-Za-z0-9])[A-Z]\d\d(?![A-Za-z0-9])")
_WANTED = frozenset(os.environ.get("FAULT_ROWS", "").split())
_MOST = int(os.environ.get("FAULT_TESTS", "0"))
_LIMIT = float(os.environ.get("FAULT_LIMIT", "3600"))
_STDERR = pytest.StashKey[int]()
_outcomes: dict[str, str] = {}


def ids_in(node: str) -> frozenset[str]:
    """Return the rows in a test's name."""
    return frozenset(_ID.findall(node.partition("::")[2]))


def shown_by(nodes: Sequence[str], rows: Collection[str], most: int = 0) -> set[str]:
    """Return the tests that show these rows, or a sample with ``most`` tests of each row."""
    showing: dict[str, list[str]] = {row: [] for row in rows}
    for node in nodes:
        for row in ids_in(node) & showing.keys():
            showing[row].append(node)
    if not most:
        return set().union(*showing.values())
    return {
        node
        for each in showing.values()
        # Neighbours are often parameters of one test: take tests that are far apart.
        for node in each[:: -(-len(each) // most) or 1]
    }


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr, as stderr is captured while a test runs."""
    config.stash[_STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process if a test hangs."""
    faulthandler.dump_traceback_later(_LIMIT, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that show none of the wanted rows, or that are not in the sample."""
    chosen = shown_by([item.nodeid for item in items], _WANTED, _MOST)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a failure for a file that cannot be imported, as its rows are unknown."""
    if report.failed:
        _outcomes[report.nodeid] = "failed: it cannot be collected"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst outcome of a test's three phases."""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(crash.message if crash else report.longrepr).strip().splitlines()
        _outcomes[report.nodeid] = f"failed: {text[0] if text else report.when}"
    elif report.skipped:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
        _outcomes[report.nodeid] = f"skipped: {why.removeprefix('Skipped: ')}"
    elif report.when == "call":
        _outcomes.setdefault(report.nodeid, "passed")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the outcomes, in the process that collects them from all workers."""
    # Only workers of xdist have "workerinput"; they send their reports to the controller.
    if not hasattr(session.config, "workerinput"):
        Path(os.environ["FAULT_REPORT"]).write_text(json.dumps(_outcomes), encoding="utf-8")
