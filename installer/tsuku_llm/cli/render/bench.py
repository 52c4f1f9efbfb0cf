"""The result of a benchmark: a table, bars, and the same bars as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from tsuku_llm.cli.terminal.text import origin, size, table, unattested
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.steps.report.bench import Report, Skipped, VariantSpeed

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
        *(f"not measured: {each.variant}{_cost(each)}: {each.reason}" for each in report.skipped),
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


def _cost(each: Skipped) -> str:
    return f" ({size(each.size)})" if each.size else ""


_HEAD = ("variant", "release", "prompt/s", "generation/s", "deviation", "device")


def _row(each: VariantSpeed) -> tuple[str, ...]:
    built, device = each.receipt, each.device or ""
    # From the right answers of the reference models.
    far = "unknown" if built.deviation is None else f"{built.deviation:.1%}"
    speeds = (_number(each.prompt), _number(each.generation))
    return (built.variant, built.release, *speeds, far, device)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= _WHOLE else f"{value:.1f}"


def _bars(results: Sequence[VariantSpeed], kind: str) -> tuple[str, ...]:
    lengths = _lengths(results, kind, _WIDTH)
    return table([(name, "#" * length, shown) for name, length, shown in lengths])


def _lengths(results: Sequence[VariantSpeed], kind: str, most: int) -> list[tuple[str, int, str]]:
    """Return each variant, the length of its bar (``most`` for the fastest), and its figure."""
    values = {each.receipt.variant: getattr(each, kind) for each in results}
    scale = most / max(values.values())
    # At least 1: a slow variant still has a visible bar.
    return [(name, max(1, round(value * scale)), _number(value)) for name, value in values.items()]


_LEFT, _RIGHT, _BAR, _ROW = 120, 90, 400, 26
"""Pixels: the column of names, the column of figures, the longest bar, the height of a row."""


def svg(report: Report) -> str:
    """Return the bars as a picture that needs no fonts, scripts or other files."""
    parts, top = [], 0
    for kind, title in _KINDS:
        parts.append(_text(10, top + 20, title, bold=True))
        for number, bar in enumerate(_lengths(report.results, kind, _BAR)):
            parts += _svg_bar(top + 30 + number * _ROW, _COLOURS[kind], *bar)
        top += 40 + len(report.results) * _ROW
    width = _LEFT + _BAR + _RIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" '
        f'viewBox="0 0 {width} {top}" font-family="sans-serif" font-size="13">\n'
        f"<title>{escape(report.model.name)}</title>\n"
        f'<rect width="{width}" height="{top}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


_COLOURS = {"generation": "#2b6cb0", "prompt": "#718096"}


def _svg_bar(y: int, colour: str, name: str, length: int, shown: str) -> tuple[str, ...]:
    return (
        _text(10, y + 16, name),
        f'<rect x="{_LEFT}" y="{y}" width="{length}" height="20" fill="{colour}"/>',
        _text(_LEFT + length + 6, y + 16, shown),
    )


def _text(x: int, y: int, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}"{weight}>{escape(text)}</text>'
