"""The phases of an install and their times: ``python -m ci.bench timeline``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from ci.bench.installing import ROWS
from ci.bench.lab import Lab
from ci.bench.spans import DONE, LOADED, Span


def show(lab: Lab) -> Iterator[str]:
    """Yield the second install of each kind, as lines; the first one warms the caches."""
    for row in (row for row in ROWS if row.id in ("G11", "G13")):
        run = row.prepare(lab)["ours"]
        spans: list[Span] = []
        for _ in range(2):
            run.before()
            os.sync()
            spans = _traced(run.command[1:], {**os.environ, **run.env})
            run.after()
        yield f"{row.id}: {row.what}\n{table(spans)}"


def _traced(arguments: Sequence[str], env: Mapping[str, str]) -> list[Span]:
    start = time.monotonic()
    command = (sys.executable, "-m", "ci.bench.spans", *arguments)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    end = time.monotonic()
    spans = [
        (name, a - start, b - start) for name, a, b in json.loads(done.stdout.splitlines()[-1])
    ]
    first, last = spans[0][2], spans[-1][2]
    return [(LOADED, 0.0, first), *spans[1:-1], (DONE, last, end - start)]


def table(spans: list[Span]) -> str:
    """Return the phases by their start: from, to, number of calls, total seconds; pure."""
    lines = [f"{'from':>8}{'to':>8}{'times':>7}{'in all':>8}"]
    names = dict.fromkeys(name for name, _, _ in sorted(spans, key=lambda span: span[1]))
    for name in names:
        own = [(start, end) for other, start, end in spans if other == name]
        begin, end = min(start for start, _ in own), max(end for _, end in own)
        total = sum(end - start for start, end in own)
        lines.append(f"{begin:8.3f}{end:8.3f}{len(own):7}{total:8.3f}  {name}")
    return "\n".join(lines)
