"""The trials, and the rows that each of them shows."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import pytest

from ci.faultlab import (
    archives,
    builds,
    crowds,
    devices,
    power,
    resuming,
    servers,
    system_calls,
    untouched,
    updating,
)
from ci.faultlab.bench import Bench, open_bench
from ci.faultlab.verdict import Finished, Tally

Show = Callable[[Bench, Collection[str], int], Mapping[str, Tally]]


@dataclass(frozen=True)
class Trial:
    """Faults injected into the program itself.

    ``show`` gets the bench, the wanted rows among its own, and the number ``one_in``: one in this
    many points of a sweep is taken.
    """

    name: str
    rows: frozenset[str]
    show: Show


TRIALS = (
    Trial("faulty servers", frozenset(f"H{number:02}" for number in range(1, 39)), servers.attack),
    Trial(
        "hostile archives",
        frozenset(f"A{number:02}" for number in range(1, 26)),
        archives.unpack_hostile,
    ),
    Trial(
        "a fault at every system call",
        frozenset({*system_calls.SIGNALS, *system_calls.ERRORS}),
        system_calls.sweep,
    ),
    Trial("an unattended update that is ended", frozenset(updating.FAULTS), updating.sweep),
    Trial("what a power loss may leave", frozenset({"C08", "C09"}), power.explore),
    Trial("a disk without its power", frozenset({"C07"}), devices.lose_power),
    Trial("a disk that is full", frozenset({"A26", "C03"}), devices.fill_up),
    Trial("a large download cut off", frozenset({"C12"}), resuming.resume),
    Trial("builds from source", frozenset({"B01", "B02", "B03"}), builds.interrupt),
    Trial("kills around a build with foreign files", frozenset({"N01"}), untouched.sweep),
    Trial("many processes", frozenset(f"L0{number}" for number in range(1, 9)), crowds.crowd),
)


def run_trials(
    ids: Collection[str], one_in: int, finished: Finished
) -> Iterator[tuple[str, Tally]]:
    """Run every trial that shows one of these rows; a row may have several tallies."""
    wanted = [(trial, trial.rows.intersection(ids)) for trial in TRIALS]
    wanted = [(trial, rows) for trial, rows in wanted if rows]
    if not wanted:
        return
    try:
        with open_bench(finished) as bench:
            for trial, rows in wanted:
                yield from run_trial(trial, bench, rows, one_in)
    # The tests' helpers skip if a tool or a right is missing; here that means "not run".
    except pytest.skip.Exception as missing:
        for trial, rows in wanted:
            yield from ((row, Tally(trial.name, missing=str(missing))) for row in rows)


def run_trial(
    trial: Trial, bench: Bench, rows: Collection[str], one_in: int
) -> Iterator[tuple[str, Tally]]:
    """Run one trial; if it cannot continue, each of its rows has failed."""
    _say(f"{trial.name} ...")
    began = time.monotonic()
    try:
        tallies = trial.show(bench, rows, one_in)
    except pytest.skip.Exception as missing:
        tallies = {row: Tally(trial.name, missing=str(missing)) for row in rows}
    except (TimeoutError, subprocess.TimeoutExpired) as hang:
        tallies = {row: Tally(trial.name) for row in rows}
        for tally in tallies.values():
            tally.add([str(hang)], where="broken off")
    yield from tallies.items()
    _say(f"{trial.name}: {time.monotonic() - began:.0f} s")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
