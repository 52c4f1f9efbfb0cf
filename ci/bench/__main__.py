"""Run the benchmarks: ``python -m ci.bench [all | growth | ROW ...]``.

Run it with the Python of an environment in which the package is installed (not with
``-e``, whose import hook costs every start), with its extras ``test``, ``fast`` and
``bench``. Figures are medians of interleaved runs; ratios carry over to other machines
better than times. The rows about the network want root on Linux.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.bench.lab import Lab, Missing
from ci.bench.pairs import interleaved
from ci.bench.report import Result, document, machine, table
from ci.bench.rows import ROWS


def main() -> int:
    """Measure, print the table, and tell by the exit code whether every aim was reached."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ids", nargs="*", metavar="ID", help="rows to run; all when none is named")
    parser.add_argument(
        "--rounds", type=int, help="pairs of runs, instead of each row's own number"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw samples there")
    arguments = parser.parse_args()
    with Lab() as lab:
        results = list(_measured(lab, arguments.ids, arguments.rounds))
    print(machine())
    print(table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(document(results), indent=1) + "\n", "utf-8")
    return int(any(not result.reached for result in results))


def _measured(lab: Lab, ids: Sequence[str], rounds: int | None) -> Iterator[Result]:
    for row in ROWS:
        if ids and row.id.split()[0] not in ids and "all" not in ids:
            continue
        try:
            samples = interleaved(row.prepare(lab), rounds or row.rounds)
        except Missing as missing:
            print(f"{row.id} not run: {missing}", file=sys.stderr)
            continue
        result = Result(row, samples)
        print(result.line, file=sys.stderr, flush=True)
        yield result


if __name__ == "__main__":
    sys.exit(main())
