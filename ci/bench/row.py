"""A row of the table: what is measured, against which tool, and the ratio to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ci.bench.lab import Lab
from ci.bench.pairs import Run, Samples


def of_yardstick(samples: Samples) -> float:
    """Return our time as a multiple of the yardstick's."""
    return samples.median("ours") / samples.median("yardstick")


@dataclass(frozen=True)
class Row:
    """A row: ``prepare`` returns the commands; ``figure`` turns their samples into one number.

    The aim is a figure of at most ``reach``; None means that there is no aim. ``unit`` is "" for a
    ratio. ``rounds`` is the default number of pairs. Rows with the same ``prepare`` share the same
    samples.
    """

    id: str
    what: str
    yardstick: str
    reach: float | None
    prepare: Callable[[Lab], Mapping[str, Run]]
    figure: Callable[[Samples], float] = of_yardstick
    unit: str = ""
    rounds: int = 4
