"""Results as a table, and as JSON with every sample."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ci.bench.pairs import Samples
from ci.bench.row import Row


@dataclass(frozen=True)
class Result:
    """A row and what was measured."""

    row: Row
    samples: Samples

    @property
    def figure(self) -> float:
        """The one number."""
        return self.row.figure(self.samples)

    @property
    def reached(self) -> bool:
        """Whether the aim was."""
        return self.figure <= self.row.reach

    @property
    def line(self) -> str:
        """The row of the table."""
        row = self.row
        times = " / ".join(
            f"{self.samples.median(name):.3f}"
            for name in ("ours", "yardstick")
            if name in self.samples.of
        )
        verdict = "" if self.reached else " **not reached**"
        return (
            f"| {row.id} | {row.what} | {row.yardstick} | {times} "
            f"| {self.figure:.2f}{row.unit}{verdict} | {row.reach:g}{row.unit} |"
        )  # fmt: skip


def table(results: Sequence[Result]) -> str:
    """All rows, in Markdown."""
    head = (
        "| # | what | yardstick | seconds, ours / yardstick | figure | reach |\n" + "|---" * 6 + "|"
    )
    return "\n".join([head, *(result.line for result in results)])


def machine() -> str:
    """What it was measured on, in a few words."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    name = model[1] if model else platform.processor()
    return (
        f"{os.cpu_count()} cores of {name}, {platform.system()}, Python {platform.python_version()}"
    )


def document(results: Sequence[Result]) -> dict[str, object]:
    """Everything, every sample included."""
    rows = {
        result.row.id: {
            "figure": result.figure,
            "reach": result.row.reach,
            "samples": {
                name: [asdict(sample) for sample in taken]
                for name, taken in result.samples.of.items()
            },
        }
        for result in results
    }
    return {"format": 1, "machine": machine(), "load": os.getloadavg(), "rows": rows}
