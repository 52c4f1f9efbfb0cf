"""The command line of ``ci/faults``: inject rows, list them, or show the table of earlier runs."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

from ci.faultlab.rows import Row, as_list, chosen, load_rows
from ci.faultlab.suite import run_tests
from ci.faultlab.trials import run_trials
from ci.faultlab.verdict import (
    Finished,
    Tally,
    as_document,
    as_text,
    failed,
    from_documents,
    judge,
)

_QUICK = 400
"""With ``--quick``, one in this many points of a sweep is taken."""

_QUICK_TESTS = 2
"""With ``--quick``, tests of each row. ``ci/test`` runs all of them."""

_EXAMPLES = 6000
"""Examples for each test that fuzzes, with all points of a sweep: M27 then has 20,000."""


def main() -> int:
    """Inject the faults and print the table; return 1 if a row failed."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so clean-up runs
    began = time.monotonic()
    try:
        rows = chosen(load_rows(), options.rows)
    except ValueError as error:
        sys.exit(f"error: {error}")
    if options.list:
        sys.stdout.write(as_list(rows))
        return 0
    if options.show:
        verdicts = from_documents(rows, [json.loads(path.read_bytes()) for path in options.show])
    else:
        most = _QUICK_TESTS if options.quick else 0
        tallies = _run(rows, _one_in(options), most, Finished(options.resume))
        verdicts = [judge(row, tallies[row.id]) for row in rows]
    sys.stdout.write(as_text(verdicts) + "\n")
    if options.json:
        facts = {**_here(), "one_in": _one_in(options), "seconds": round(time.monotonic() - began)}
        document = as_document(verdicts, facts)
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if failed(verdicts) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ci/faults", description="Inject faults and print which rows survived."
    )
    parser.add_argument("--list", action="store_true", help="run nothing: what each id stands for")
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="an id (A03) or an area (A); default: all"
    )
    parser.add_argument(
        "--quick", action="store_true", help="run a sample of the sweeps and of each row's tests"
    )
    parser.add_argument(
        "--one-in", type=int, default=1, metavar="N", help="run every Nth point of the sweeps; 1"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="keep the ended parts of the sweeps C01 to C06 there, and do not repeat them",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table as JSON")
    parser.add_argument(
        "--show",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="run nothing; print the table of these files",
    )
    return parser.parse_args()


def _one_in(options: argparse.Namespace) -> int:
    return _QUICK if options.quick else int(options.one_in)


def _run(rows: Iterable[Row], one_in: int, most: int, finished: Finished) -> dict[str, list[Tally]]:
    ids = [row.id for row in rows if not row.elsewhere]
    tallies: dict[str, list[Tally]] = {row.id: [] for row in rows}
    examples = max(100, _EXAMPLES // one_in)
    by_tests = run_tests(ids, examples, most).items()
    for row, tally in (*by_tests, *run_trials(ids, one_in, finished)):
        tallies[row].append(tally)
    return tallies


def _here() -> dict[str, object]:
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "processors": os.cpu_count(),
    }


if __name__ == "__main__":
    sys.exit(main())
