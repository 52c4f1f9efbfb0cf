"""Ten thousand simulated machines on rings, which decide as the program decides.

The program's own functions (``steps.choosing.acceptance``) decide what a machine takes and refuses.
The machines, the nights and the effects of a release are simulated. So is the administrator, who
moves a release on by the rule of ``docs/rings.md``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tsuku_llm.catalog.manifest import ReleaseEntry
from tsuku_llm.launch.plan.report import Performance, Verdict
from tsuku_llm.steps.choosing.acceptance import (
    Shortcoming,
    needed_speed,
    shortcoming,
)
from tsuku_llm.steps.choosing.passing_over import Bounds, Offered, why_passed_over
from tsuku_llm.store.records.updates import RolledBack

REPOSITORY: Final = "company"
RINGS: Final = ("canary", "early", "all")
SHARES: Final = (0.005, 0.095, 0.9)
"""The parts of the machines in each ring."""

FORMER, NEW = "b11900", "b12000"
NIGHTS = 30
"""Nights after which a release that has not come to an end is given up."""

OFF = 0.03
"""Part of the machines that are off in a night."""

NOISE = 0.15
"""The most by which a measurement is too low, because the machine has other work."""

MEASUREMENTS = 3
RUNNING = 0.9
"""Part of a ring that must run a release before it goes on."""


class Kind(NamedTuple):
    """A kind of machine: its GPU, its driver, its part of all machines, and tokens per second."""

    gpu: str
    driver: str
    share: float
    speed: float


KINDS = (
    Kind("H200", "580", 0.20, 240.0),
    Kind("H200", "570", 0.10, 240.0),
    Kind("A100", "570", 0.18, 130.0),
    Kind("A100", "550", 0.07, 130.0),
    Kind("L4", "550", 0.15, 45.0),
    Kind("L4", "535", 0.03, 45.0),
    Kind("RTX 4090", "580", 0.12, 150.0),
    Kind("MI300X", "amdgpu 6.10", 0.07, 210.0),
    Kind("RX 7900", "Mesa 25.2", 0.05, 90.0),
    Kind("Arc B580", "Mesa 25.2", 0.02, 60.0),
    Kind("none", "none", 0.01, 9.0),
)


class Behaviour(NamedTuple):
    """What a release does on a kind of machine: whether it serves, and its part of the speed."""

    serves: bool = True
    speed: float = 1.0


Scenario = Callable[[Kind], Behaviour]


class Case(NamedTuple):
    """A release on rings.

    ``composed``: the first ring has each kind of machine. ``benched`` are the parts of each ring
    with a benchmark of the model that they serve. ``stops``: it must stop in time.
    """

    name: str
    scenario: Scenario
    composed: bool = True
    benched: tuple[float, ...] = (1.0, 0.5, 0.5)
    stops: bool = False


def _dead_on_535(kind: Kind) -> Behaviour:
    return Behaviour(serves=kind.driver != "535")


CASES = (
    Case("good", lambda _: Behaviour()),
    Case("its server is dead", lambda _: Behaviour(serves=False), stops=True),
    Case("slower by a third", lambda _: Behaviour(speed=2 / 3), stops=True),
    Case("fails on driver 535 only", _dead_on_535, stops=True),
    Case("the same, with a first ring by chance", _dead_on_535, composed=False),
    Case(
        "slower by a third, no benchmark in the first ring",
        lambda _: Behaviour(speed=2 / 3),
        benched=(0.0, 0.5, 0.5),
    ),
    Case("slower by a tenth", lambda _: Behaviour(speed=0.9)),
)
"""The table in ``docs/rings.md``; the last three show what the rules do not stop."""


@dataclass(slots=True)
class Machine:
    """One machine: what it is, and what it has seen of the release."""

    kind: Kind
    ring: str
    bench: float | None
    runs: str = FORMER
    marks: list[RolledBack] = field(default_factory=list)
    took: bool = False

    def night(
        self, offered: Sequence[ReleaseEntry], scenario: Scenario, dice: random.Random
    ) -> None:
        """Update unattended in this night."""
        entries = [each for each in offered if self.ring in each.channels]
        bounds = Bounds(REPOSITORY, here=self.runs, marks=tuple(self.marks))
        allowed = [each for each in entries if not why_passed_over(Offered(each.release), bounds)]
        newest = max(allowed, key=lambda each: each.sequence)
        if newest.release == self.runs:
            return
        self.took = True
        if refused := self._refused(scenario(self.kind), dice):
            mark = RolledBack(REPOSITORY, newest.release, f"{newest.release}-x", refused.reason, "")
            self.marks.append(mark)
        else:
            self.runs = newest.release

    def _refused(self, does: Behaviour, dice: random.Random) -> Shortcoming | None:
        """Return why an unattended update would refuse the release here; None if it would not."""
        backend = "cpu" if self.kind.gpu == "none" else "vulkan"
        verdict = Verdict.ON_CPU if backend == "cpu" else Verdict.ON_GPU

        def measured(speed: float) -> float:
            return speed * (1 - NOISE * dice.random())

        before = Performance(verdict, answered=True)
        after = before if does.serves else None
        if self.bench is not None and after:
            before = before._replace(speed=measured(self.kind.speed))
            enough = needed_speed(self.bench, before.speed) or 0.0
            best = 0.0
            for _ in range(MEASUREMENTS):
                best = max(best, measured(self.kind.speed * does.speed))
                if best >= enough:
                    break
            after = after._replace(speed=best)
        return shortcoming((backend, backend), before, after, "it does not start", self.bench)


class Outcome(NamedTuple):
    """How far a release got: machines that took it, run it and rolled it back; where it stopped.

    ``nights``: how many it took until then.
    """

    took: int
    runs: int
    rolled_back: int
    ring: str
    nights: int


def moves_on(ring: Sequence[Machine]) -> bool | None:
    """Return whether a release goes on from this ring; None if it is too early to say.

    As in ``docs/rings.md``: no machine has rolled it back, and nine of ten run it.
    """
    if any(machine.marks for machine in ring):
        return False
    return True if sum(each.runs == NEW for each in ring) >= RUNNING * len(ring) else None


def fleet(count: int, case: Case, dice: random.Random) -> list[Machine]:
    """Make the machines of all rings."""
    kinds = dice.choices(KINDS, [kind.share for kind in KINDS], k=count)
    if case.composed:
        # The first ring first: one of each kind, and the rest as it comes.
        kinds = [*KINDS, *kinds[len(KINDS) :]]
    sizes = [round(count * share) for share in SHARES]
    names = [name for name, size in zip(RINGS, sizes, strict=True) for _ in range(size)]
    benched = dict(zip(RINGS, case.benched, strict=True))
    return [
        Machine(kind, ring, kind.speed if dice.random() < benched[ring] else None)
        for kind, ring in zip(kinds, names, strict=True)
    ]


def simulate(count: int, case: Case, seed: int) -> Outcome:
    """Let a release go through the rings; the same seed gives the same result."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    machines = fleet(count, case, dice)
    rings = {name: [each for each in machines if each.ring == name] for name in RINGS}
    reached = 0
    night = 0
    while night < NIGHTS:
        night += 1
        offered = [_entry(NEW, 12000, RINGS[: reached + 1]), _entry(FORMER, 11900, RINGS)]
        for machine in machines:
            if dice.random() >= OFF:
                machine.night(offered, case.scenario, dice)
        verdict = moves_on(rings[RINGS[reached]])
        if verdict is False or (verdict and reached == len(RINGS) - 1):
            break
        reached += verdict is True
    return Outcome(
        sum(each.took for each in machines),
        sum(each.runs == NEW for each in machines),
        sum(bool(each.marks) for each in machines),
        RINGS[reached],
        night,
    )


def _entry(release: str, sequence: int, channels: Sequence[str]) -> ReleaseEntry:
    return ReleaseEntry(
        release=release,
        sequence=sequence,
        publisher=REPOSITORY,
        published="2026-11-22",
        channels=tuple(channels),
    )
