"""A row of the table: what is measured, against what, and the ratio to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ci.bench.lab import Lab
from ci.bench.pairs import Run, Samples


def of_yardstick(samples: Samples) -> float:
    """Our time as a multiple of the yardstick's."""
    return samples.median("ours") / samples.median("yardstick")


@dataclass(frozen=True)
class Row:
    """``prepare`` makes what is run; ``figure`` makes one number of the samples.

    At most ``reach`` is the aim, where there is one. ``unit`` is "" for a ratio. ``rounds``
    is the number of pairs unless another is asked for. Rows that prepare the same look at
    the same samples.
    """

    id: str
    what: str
    yardstick: str
    reach: float | None
    prepare: Callable[[Lab], Mapping[str, Run]]
    figure: Callable[[Samples], float] = of_yardstick
    unit: str = ""
    rounds: int = 4
