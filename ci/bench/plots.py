"""Plots for the docs, as SVG, drawn with matplotlib (the extra ``bench``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LOOK: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tsuku-llm",  # the same figures give the same file
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_REACHED, _MISSED = "#2b7a4b", "#b5482a"


def draw_rows(rows: Mapping[str, Any], path: Path) -> None:
    """Draw every figure as a share of its aim, as bars; rows without an aim are left out."""
    rows = {name: row for name, row in rows.items() if row["reach"] is not None}
    with _figure(path, (7, 0.32 * len(rows) + 0.8)) as (_, axes):
        # barh draws the first bar at the bottom.
        names = list(rows)[::-1]
        shares = [rows[name]["figure"] / rows[name]["reach"] for name in names]
        colours = [_REACHED if share <= 1 else _MISSED for share in shares]
        axes.barh(names, shares, color=colours, height=0.6)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xlabel("measured, as a part of what is allowed (1 is the aim)")
        for name, share in zip(names, shares, strict=True):
            figure = f" {rows[name]['figure']:.2f} of {rows[name]['reach']:g}{rows[name]['unit']}"
            axes.text(share, name, figure, va="center", fontsize=8)
        axes.set_xlim(0, max(1.3, max(shares) * 1.25))


def draw_growth(growth: Mapping[str, Any], path: Path) -> None:
    """Draw seconds against the quantity, and peak memory below."""
    with _figure(path, (7, 4.4), rows=2) as (_, (times, memory)):
        for name, points in growth["lines"].items():
            x = [point["at"] for point in points]
            times.loglog(x, [point["seconds"] for point in points], marker="o", label=name)
            memory.semilogx(x, [point["memory"] / 1e6 for point in points], marker="o")
        times.set_title(growth["title"].replace("`", ""))
        times.set_ylabel("seconds")
        times.legend(frameon=False)
        memory.set_ylabel("peak memory, MB")
        memory.set_ylim(bottom=0)
        memory.set_xlabel(growth["quantity"])


class _figure:  # noqa: N801 - a context manager that reads as a function
    def __init__(self, path: Path, size: tuple[float, float], rows: int = 1) -> None:
        self._path, self._size, self._rows = path, size, rows

    def __enter__(self) -> tuple[Any, Any]:
        import matplotlib as mpl  # noqa: PLC0415

        mpl.use("svg")
        import matplotlib.pyplot as plt  # noqa: PLC0415

        mpl.rcParams.update(_LOOK)
        self._figure, axes = plt.subplots(self._rows, 1, figsize=self._size, sharex=True)
        return self._figure, axes

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._figure.tight_layout()
            self._figure.savefig(self._path, metadata={"Date": None})
