"""The way from results to the docs: tables, plots and the history of releases."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.bench.plots import draw_growth, draw_rows
from ci.bench.report import growth_table, row_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "ci" / "bench" / "results.json"
HISTORY = ROOT / "ci" / "bench" / "history.json"
DOCUMENT = ROOT / "ci" / "bench" / "performance.md"
PLOTS = ROOT / "ci" / "bench" / "figures"

Json = Mapping[str, Any]


def keep(results: Json) -> None:
    """Store results; rows that were not measured this time keep their old ones."""
    old = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    merged = {
        **results,
        "rows": {**old.get("rows", {}), **results["rows"]},
        "growth": {**old.get("growth", {}), **results["growth"]},
    }
    RESULTS.write_text(json.dumps(merged, indent=1) + "\n", "utf-8")


def publish() -> None:
    """Write the tables into the document, draw the plots, and add the figures to the history."""
    results = json.loads(RESULTS.read_text("utf-8"))
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text("utf-8"), results), "utf-8")
    _remember(results)
    draw_rows(results["rows"], PLOTS / "rows.svg")
    for name, growth in results["growth"].items():
        draw_growth(growth, PLOTS / f"growth-{name}.svg")


def with_tables(text: str, results: Json) -> str:
    """Return the document with new generated parts; pure."""
    load = " / ".join(map(str, results["load"]))
    about = f"{results['date']}, {results['machine']}, load average at the end {load}:"
    plots = "".join(
        f"\n\n![{growth['title']} against {growth['quantity']}](figures/growth-{name}.svg)"
        for name, growth in results["growth"].items()
    )
    rows = "![Every row as a part of what is allowed](figures/rows.svg)"
    text = _between(text, "rows", f"{about}\n\n{row_table(results['rows'])}\n\n{rows}")
    return _between(text, "growth", f"{about}\n\n{growth_table(results['growth'])}{plots}")


def _between(text: str, name: str, content: str) -> str:
    marks = rf"(<!-- {name}: made by python -m ci\.bench -->\n).*?(<!-- end -->)"
    return re.sub(
        marks, lambda found: f"{found[1]}\n{content}\n\n{found[2]}", text, flags=re.DOTALL
    )


def _remember(results: Json) -> None:
    history = json.loads(HISTORY.read_text("utf-8")) if HISTORY.exists() else {}
    figures = {name: round(row["figure"], 3) for name, row in results["rows"].items()}
    about = {key: results[key] for key in ("date", "machine")}
    # A later measurement of the same version replaces the earlier one.
    history[results["version"]] = {**about, "figures": figures}
    HISTORY.write_text(json.dumps(history, indent=1) + "\n", "utf-8")
