"""Simulate releases on rings: ``python -m ci.rings [--machines N] [--seeds N]``.

The exit code is 1 if a bad release reaches more than one machine in a hundred, although the first
ring has each kind of machine. ``docs/rings.md`` has the table of the defaults.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from ci.rings import CASES, Outcome, simulate

MACHINES, SEEDS = 10_000, 10

MOST = 0.01
"""The part of all machines that no bad release may pass."""


def table(count: int, seeds: int) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether each bad release stopped in time."""
    lines = [
        "| release | took it, at most | of all | still run it | rolled back | ends in | nights |",
        "|---|---|---|---|---|---|---|",
    ]
    in_time = True
    for case in CASES:
        outcomes = [simulate(count, case, seed) for seed in range(seeds)]
        lines.append(f"| {' | '.join((case.name, *_cells(count, outcomes)))} |")
        if case.stops:
            in_time &= max(each.took for each in outcomes) <= MOST * count
    return lines, in_time


def _cells(count: int, outcomes: list[Outcome]) -> Iterator[str]:
    took = max(each.took for each in outcomes)
    rings = dict.fromkeys(each.ring for each in outcomes)
    nights = [each.nights for each in outcomes]
    yield f"{took:,}"
    yield f"{100 * took / count:.2f} %"
    yield f"{max(each.runs for each in outcomes):,}"
    yield f"{max(each.rolled_back for each in outcomes):,}"
    yield ", ".join(rings)
    yield f"{min(nights)}" if min(nights) == max(nights) else f"{min(nights)} to {max(nights)}"


def main() -> int:
    """Print the table; return 1 if a bad release went too far."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--machines", type=int, default=MACHINES, metavar="N")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N")
    options = parser.parse_args()
    lines, in_time = table(options.machines, options.seeds)
    print("\n".join(lines))
    return 0 if in_time else 1


if __name__ == "__main__":
    sys.exit(main())
