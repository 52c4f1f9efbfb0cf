"""Rows C08 and C09: the states that a power loss may leave, each read by the real store."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ci.faultlab.bench import Bench, Home, sample, side_by_side
from ci.faultlab.journal import TRACED, Disk, Journal
from ci.faultlab.operations import Operation, operations
from ci.faultlab.verdict import Tally

_SEED = 8
_AT_THE_END = 20
_RERUNS = 40
"""One in this many states is also given to the program, which must recover."""


def explore(bench: Bench, ids: Collection[str], one_in: int) -> dict[str, Tally]:
    """Show these rows; with sampling, take many more states at the end than in the middle."""
    tallies = {row: Tally("states") for row in ids}
    for operation in operations(bench):
        journal = _recorded(bench, operation)
        chance = random.Random(_SEED)  # noqa: S311  # no secret
        if "C08" in ids:
            states = sample(list(journal.states(chance)), one_in)
            check = _Check(bench, operation, operation.allowed)
            _look(check, states, tallies["C08"])
        if "C09" in ids:
            ends = list(journal.states_after(len(journal.changes), chance))
            check = _Check(bench, operation, {operation.final})
            _look(check, sample(ends, max(1, one_in // _AT_THE_END)), tallies["C09"])
    return tallies


def _recorded(bench: Bench, operation: Operation) -> Journal:
    with bench.copy(operation.template) as home:
        folder = home.folder / "tsuku"
        before = Disk.of(folder)
        options = ("-y", "-s", str(1 << 24), "-e", f"trace={TRACED}")
        ended, log = home.traced(operation.argv, *options)
        if ended.code:
            raise RuntimeError(f"{operation.name} ended with {ended.code}: {ended.stderr}")
        journal = Journal(before, log, folder)
        # The model must agree with the real folder, or its crash states would mean nothing.
        if journal.after.view() != Disk.of(folder).view():
            raise RuntimeError(f"the journal of {operation.name} is not what happened")
        return journal


def _look(check: _Check, states: list[tuple[str, Disk]], tally: Tally) -> None:
    for (_, (text, _)), wrong in side_by_side(check, list(enumerate(states))):
        tally.add(wrong, where=f"{check.operation.name}, {text}")


@dataclass(frozen=True)
class _Check:
    """One state of one operation, as the program finds it after the crash."""

    bench: Bench
    operation: Operation
    allowed: Collection[str | None]

    def __call__(self, numbered: tuple[int, tuple[str, Disk]]) -> list[str]:
        number, (_, disk) = numbered
        with self.bench.made(self.operation.template, disk.write) as home:
            wrong = home.wrong(self.allowed)
            if number % _RERUNS == 0:
                wrong += home.runs()
                wrong += self.operation.again_in(home)
            else:
                wrong += _swept(home, self.allowed)
            return wrong


def _swept(home: Home, allowed: Collection[str | None]) -> Iterator[str]:
    """Do what the next writing command does first; yield what is wrong."""
    home.store.sweep()
    yield from (f"swept: {text}" for text in home.wrong(allowed))
    staging = home.data / "staging"
    if staging.is_dir() and any(staging.iterdir()):
        yield "swept: staging is not empty"
