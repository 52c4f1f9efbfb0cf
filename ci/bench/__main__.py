"""Run the benchmarks: ``python -m ci.bench [all | growth | docs | timeline | ROW ...]``.

Run it with the Python of an environment in which the package is installed with its extras ``test``,
``fast`` and ``bench``. Do not install with ``-e``: its import hook slows every start. Figures are
medians of interleaved runs; ratios carry over to other machines better than times. The rows about
the network need root on Linux.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.bench.growth import GROWTHS
from ci.bench.lab import Lab, Missing
from ci.bench.pairs import Run, Samples, interleaved
from ci.bench.publishing import keep, publish
from ci.bench.report import (
    document,
    growth_document,
    growth_table,
    machine,
    reached,
    row_document,
    row_line,
    row_table,
)
from ci.bench.rows import ROWS
from ci.bench.timeline import show


def main() -> int:
    """Measure and print the tables; the exit code is 0 if every aim was reached."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    ids = "rows, growth, all; or docs (the page, from the last results), or timeline; else rows"
    parser.add_argument("ids", nargs="*", metavar="ID", help=ids)
    parser.add_argument("--rounds", type=int, help="pairs of runs, instead of each row's number")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw samples to FILE")
    parser.add_argument("--update-docs", action="store_true", help="update tables, plots, history")
    arguments = parser.parse_args()
    if arguments.ids == ["docs"]:
        publish()
        return 0
    if arguments.ids == ["timeline"]:
        with Lab() as lab:
            print(*show(lab), sep="\n\n")
        return 0
    with Lab() as lab:
        rows = dict(_rows(lab, arguments.ids, arguments.rounds))
        growth = dict(_growth(lab, arguments.ids))
    results = document(rows, growth)
    print(machine(), row_table(rows), growth_table(growth), sep="\n\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    if arguments.update_docs:
        keep(results)
        publish()
    return int(not all(map(reached, rows.values())))


def _rows(lab: Lab, ids: Sequence[str], rounds: int | None) -> Iterator[tuple[str, Any]]:
    taken: dict[Callable[[Lab], Mapping[str, Run]], Samples] = {}
    for row in ROWS:
        if ids and not {row.id.split()[0], "rows", "all"} & {*ids}:
            continue
        try:
            # Rows that share a prepare function share its samples: it is run once.
            if row.prepare not in taken:
                taken[row.prepare] = interleaved(row.prepare(lab), rounds or row.rounds)
        # A missing tool leaves out its rows only.
        except Missing as missing:
            print(f"{row.id} not run: {missing}", file=sys.stderr)
            continue
        found = row_document(row, taken[row.prepare])
        print(row_line(row.id, found), file=sys.stderr, flush=True)
        yield row.id, found


def _growth(lab: Lab, ids: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for name, measure in GROWTHS.items():
        if {"growth", "all", name} & {*ids}:
            print(f"growth: {name}", file=sys.stderr, flush=True)
            yield name, growth_document(measure(lab))


if __name__ == "__main__":
    sys.exit(main())
