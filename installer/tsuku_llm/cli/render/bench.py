"""The result of a benchmark: a table, and bars."""

from __future__ import annotations

from collections.abc import Sequence

from tsuku_llm.cli.terminal.text import origin, size, table, unattested
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.steps.report.bench import Report, VariantSpeed

_WIDTH = 40
"""Characters of the longest bar."""
_WHOLE = 100
"""From here on a figure has three digits before the point, and none after it."""
_KINDS = (("generation", "generation, tokens per second"), ("prompt", "prompt, tokens per second"))


def lines(report: Report) -> tuple[str, ...]:
    """Return the report for people."""
    fastest, backend = report.fastest.receipt, report.backend
    way = f"config set llm.backend {backend}" if backend else f"use {fastest.id}"
    return (
        *table([_HEAD, *(_row(each) for each in report.results)], indent=0),
        *(text for kind, title in _KINDS for text in ("", title, *_bars(report.results, kind))),
        "",
        *_origins(report.results),
        *(f"failed: {each.variant}: {each.reason}" for each in report.failed),
        *(
            f"not measured: {each.variant}{f' ({size(each.size)})' if each.size else ''}: "
            f"{each.reason}"
            for each in report.skipped
        ),
        *report.hints,
        f"saved: llm.backend = {report.saved}"
        if report.saved
        else f"the fastest is {fastest.variant}; to use it: {TSUKU} {way}",
    )


def _origins(results: Sequence[VariantSpeed]) -> tuple[str, ...]:
    """Return who built what was measured, once for each release."""
    told = (
        (f"{each.variant}: unsigned, from {each.unsigned}",)
        if each.unsigned is not None
        else (
            f"{each.release}: {origin(each.publisher, each.repository)}",
            *unattested(each.unattested),
        )
        for each in (measured.receipt for measured in results)
    )
    return tuple(line for lines in dict.fromkeys(told) for line in lines)


_HEAD = ("variant", "release", "prompt/s", "generation/s", "deviation", "divergence", "device")


def _row(each: VariantSpeed) -> tuple[str, ...]:
    built, device = each.receipt, each.device or ""
    # From the right answers of the reference models.
    far = "unknown" if built.deviation is None else f"{built.deviation:.1%}"
    speeds = (_number(each.prompt), _number(each.generation))
    # From what the CPU's variant expects with this model, else the first one.
    apart = "unknown" if each.divergence is None else f"{each.divergence:.3f}"
    return (built.variant, built.release, *speeds, far, apart, device)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= _WHOLE else f"{value:.1f}"


def _bars(results: Sequence[VariantSpeed], kind: str) -> tuple[str, ...]:
    """Return each variant with its bar, the fastest's of ``_WIDTH`` characters, and its figure."""
    values = {each.receipt.variant: getattr(each, kind) for each in results}
    scale = _WIDTH / max(values.values())
    # At least 1: a slow variant still has a visible bar.
    lengths = {name: max(1, round(value * scale)) for name, value in values.items()}
    return table([(name, "#" * lengths[name], _number(value)) for name, value in values.items()])
