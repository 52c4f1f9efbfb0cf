"""Run the benchmarks: ``python -m ci.bench [G15 ...] [--rounds N] [--json FILE]``.

Run it with the Python of an environment in which the package is installed. Figures are
medians of interleaved runs; ratios carry over to other machines better than times.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.bench.pairs import Samples, interleaved
from ci.bench.rows import ROWS, Row


def main() -> int:
    """Measure, print the table, and tell by the exit code whether every aim was reached."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ids", nargs="*", metavar="ID", help="rows to run; all when none is named")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw samples there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        results = list(_measured(arguments.ids, arguments.rounds, home))
    print(_table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(_document(results), indent=1) + "\n", "utf-8")
    return int(any(row.ratio(samples) > row.reach for row, samples in results))


def _measured(ids: Sequence[str], rounds: int, home: str) -> Iterator[tuple[Row, Samples]]:
    for row in ROWS:
        if ids and row.id not in ids:
            continue
        missing = [line[0] for line in row.commands.values() if not shutil.which(line[0])]
        if missing:
            print(f"{row.id} not run: {missing[0]} is not installed", file=sys.stderr)
            continue
        yield row, interleaved(row.commands, rounds, {"TSUKU_HOME": home})


def _table(results: Sequence[tuple[Row, Samples]]) -> str:
    lines = [
        "| # | what | yardstick | ours, ms | yardstick, ms | ratio | reach |",
        "|" + "---|" * 7,
    ]
    for row, samples in results:
        ours, other = (samples.median(name) * 1000 for name in ("ours", "yardstick"))
        lines.append(
            f"| {row.id} | {row.what} | `{row.yardstick}` | {ours:.1f} | {other:.1f} "
            f"| {row.ratio(samples):.2f} | {row.reach:.2f} |"
        )
    return "\n".join(lines)


def _document(results: Sequence[tuple[Row, Samples]]) -> dict[str, object]:
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    rows = {
        row.id: {"ratio": row.ratio(samples), "reach": row.reach, "seconds": samples.seconds}
        for row, samples in results
    }
    return {"format": 1, "machine": machine, "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
