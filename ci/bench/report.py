"""Results as JSON with every sample, and the tables made of them. Pure, except for ``machine``."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ci.bench.growth import Growth
from ci.bench.pairs import Samples
from ci.bench.row import Row
from tsuku_llm import __version__

Json = Mapping[str, Any]

_ROWS = "| # | what | yardstick | seconds, ours / yardstick | figure | reach |\n" + "|---" * 6 + "|"
_GROWTH = (
    "| command | against | from | to | time grows with the power | peak MB |\n" + "|---" * 6 + "|"
)


def document(rows: Json, growth: Json) -> dict[str, Any]:
    """Return every measurement, and the machine it was made on."""
    return {
        "format": 1,
        "version": __version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": machine(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "rows": rows,
        "growth": growth,
    }


def machine() -> str:
    """Describe this machine in a few words."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    name = model[1] if model else platform.processor()
    fast = "with" if importlib.util.find_spec("isal") else "without"
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    python = f"Python {platform.python_version()} {fast} isal"
    return f"{os.cpu_count()} cores of {name}, {system}, {python}"


def row_document(row: Row, samples: Samples) -> dict[str, Any]:
    """Return one row with every sample."""
    return {
        "what": row.what,
        "yardstick": row.yardstick,
        "unit": row.unit,
        "reach": row.reach,
        "figure": row.figure(samples),
        "medians": {name: samples.median(name) for name in samples.of},
        "samples": {name: [asdict(each) for each in taken] for name, taken in samples.of.items()},
    }


def reached(row: Json) -> bool:
    """Tell whether a row reached its aim; a row without an aim did."""
    return row["reach"] is None or bool(row["figure"] <= row["reach"])


def row_line(name: str, row: Json) -> str:
    """Return the row's line of the table."""
    times = [f"{row['medians'][of]:.3f}" for of in ("ours", "yardstick") if of in row["medians"]]
    reach = "-" if row["reach"] is None else f"{row['reach']:g}{row['unit']}"
    figure = f"{row['figure']:.2f}{row['unit']}"
    shown = figure if reached(row) else f"**{figure}**"
    cells = (name, row["what"], row["yardstick"], " / ".join(times) or "-", shown, reach)
    return f"| {' | '.join(cells)} |"


def row_table(rows: Json) -> str:
    """Return all rows, in Markdown."""
    return "\n".join([_ROWS, *(row_line(name, row) for name, row in rows.items())])


def growth_document(growth: Growth) -> dict[str, Any]:
    """Return one growth with every point."""
    return {
        "title": growth.title,
        "quantity": growth.quantity,
        "lines": {
            name: [{"at": at, **asdict(sample)} for at, sample in points]
            for name, points in growth.lines.items()
        },
        "exponents": {name: growth.exponent(name) for name in growth.lines},
    }


def growth_table(growths: Json) -> str:
    """Return each command's times and memory at the smallest and largest quantity, in Markdown."""
    lines = [_GROWTH]
    for growth in growths.values():
        for name, points in growth["lines"].items():
            first, last = points[0], points[-1]
            cells = (
                name,
                growth["quantity"],
                f"{first['at']:g}: {first['seconds']:.2f} s",
                f"{last['at']:g}: {last['seconds']:.2f} s",
                f"{growth['exponents'][name]:.2f}",
                f"{first['memory'] / 1e6:.0f} to {last['memory'] / 1e6:.0f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
