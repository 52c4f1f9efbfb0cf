"""Rows C01 to C06: a fault at every system call of every command that changes the store."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain

from support.forked import Ended

from ci.faultlab.bench import Bench, Home, sample, side_by_side
from ci.faultlab.operations import Operation, operations, other_sources
from ci.faultlab.points import Point, calls_in, can_fail, points_in
from ci.faultlab.verdict import Tally

SIGNALS = {"C01": ("KILL",), "C02": ("TERM", "INT")}
ERRORS = {
    "C03": ("ENOSPC",),
    "C04": ("EIO",),
    "C05": ("EINTR",),
    "A26": ("EDQUOT",),
    "C06": ("EACCES", "EROFS", "EMFILE"),
}
_CODES = {"KILL": {-9}, "TERM": {-15, 143}, "INT": {-2, 130}}
_INJECTED = "(INJECTED)"
# strace's log proves that the fault was injected.
_HIT = {
    "signal": re.compile(r"--- SIG(TERM|INT) |\+\+\+ killed by SIGKILL"),
    "error": re.compile(re.escape(_INJECTED)),
}
_WHAT = {"C01": "kills", "C02": "signals"}


@dataclass(frozen=True)
class _Sweep:
    """One fault at every point of one operation."""

    bench: Bench
    operation: Operation
    fault: str

    def __call__(self, point: Point) -> list[str] | None:
        """Return what was wrong with one injection; None if the point was not reached."""
        with self.bench.copy(self.operation.template) as home:
            kind = "signal" if self.fault in _CODES else "error"
            options = point.options(f"{kind}={self.fault}", home.folder)
            ended, log = home.traced(self.operation.argv, *options)
            # Threads run in another order each time, so the call may not have happened.
            if not _HIT[kind].search(log):
                return None
            # strace counts per thread: a second injection may have hit the write of the error
            # message itself.
            telling_failed = log.count(_INJECTED) > 1
            told = ended.hung if telling_failed else ended.wrong()
            return [*told, *self._after(home, ended), *self.operation.again_in(home)]

    def _after(self, home: Home, ended: Ended) -> Iterator[str]:
        yield from home.wrong(self.operation.allowed)
        yield from home.runs()
        if ended.code == 0:
            if home.state() != self.operation.final:
                yield f"said done in state {home.state()}"
        elif self.fault in _CODES and ended.code not in (
            *_CODES[self.fault],
            *self.operation.codes,
        ):
            yield f"ended with {ended.code}: {ended.stderr!r}"


def sweep(bench: Bench, ids: Collection[str], one_in: int) -> dict[str, Tally]:
    """Show these rows at one in ``one_in`` of their points."""
    faults = {row: names for row, names in {**SIGNALS, **ERRORS}.items() if row in ids}
    tallies = {row: Tally(_WHAT.get(row, "injected errors")) for row in faults}
    for operation in chain(operations(bench), other_sources(bench)):
        points: list[Point] = []
        for row, fault in ((row, fault) for row, names in faults.items() for fault in names):
            part = f"{operation.name}, {fault}"
            if not bench.finished.into(tallies[row], row, part):
                points = points or _recorded(bench, operation)
                tally = Tally(tallies[row].what)
                _inject(_Sweep(bench, operation, fault), points, one_in, tally)
                bench.finished.keep(tally, row, part)
                bench.finished.into(tallies[row], row, part)
    return tallies


def _recorded(bench: Bench, operation: Operation) -> list[Point]:
    """Record one run without a fault."""
    with bench.copy(operation.template) as home:
        ended, log = home.traced(operation.argv, "-y")
        if ended.code:
            raise RuntimeError(f"{operation.name} ended with {ended.code}: {ended.stderr}")
        return points_in(calls_in(log, ended.pid), home.folder)


def _inject(attack: _Sweep, points: list[Point], one_in: int, tally: Tally) -> None:
    if attack.fault not in _CODES:
        points = [point for point in points if can_fail(point.call, attack.fault)]
    for point, wrong in side_by_side(attack, sample(points, one_in * attack.operation.stride)):
        if wrong is not None:
            tally.add(wrong, where=f"{attack.operation.name}, {attack.fault} at {point}")
