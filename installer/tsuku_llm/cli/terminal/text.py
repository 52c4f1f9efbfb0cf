"""Plain text: tables, sizes, names."""

from __future__ import annotations

from collections.abc import Sequence

from tsuku_llm.cli.terminal.style import columns

UNITS = ("B", "kB", "MB", "GB", "TB")


def table(rows: Sequence[Sequence[str]], *, indent: int = 2) -> tuple[str, ...]:
    """Return rows with their columns aligned; the last column may have any length."""
    if not rows:
        return ()
    widths = [max(map(columns, column)) for column in zip(*rows, strict=True)]
    # rstrip: no spaces at the end of a line after a short last cell.
    return tuple(
        " " * indent
        + "  ".join(
            cell + " " * (width - columns(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


def size(count: int | None) -> str:
    """Return bytes in decimal units with three digits, such as ``31.6 MB``; ``?`` if unknown."""
    if count is None:
        return "?"
    value = float(count)
    for unit in UNITS:
        # 999.5 would be printed as 1000: use the next unit.
        if value < 999.5 or unit == UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"


def origin(publisher: str, repository: str) -> str:
    """Return who built a release, and which repository signed it.

    The publisher's name is free text and may look like another one. The repository's name is the
    one that this machine keeps its root of trust under.
    """
    return f"built by {publisher}, from repository {repository}"


def computed(deviation: float | None, not_computed: str) -> tuple[str, ...]:
    """Return how rightly a build computed here, and what was not tried."""
    if deviation is None:
        return (f"its results were not compared: {not_computed}",) if not_computed else ()
    told = f"computes rightly here, within {deviation:.1%}"
    return (told, *((f"not all of it was compared: {not_computed}",) if not_computed else ()))


def unattested(reason: str | None) -> tuple[str, ...]:
    """Return a line if it was not verified who built a release."""
    return (f"  unattested: {reason}",) if reason else ()


def unmeasured(reason: str | None) -> tuple[str, ...]:
    """Return a line if the archives of a release were not measured."""
    return (f"  unmeasured: {reason}",) if reason else ()


def named(release: str, version: str | None) -> str:
    """Return a release as people know it: ``b11429 (0.6.0)``."""
    return f"{release} ({version})" if version and version != release else release


def sentence(text: str) -> str:
    """Return a text as a sentence: a capital first, a full stop last."""
    return f"{text[:1].upper()}{text[1:]}."


def listed(text: str, items: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence about one item, or about several with the list of them below."""
    if len(items) == 1:
        return (sentence(f"{text} {items[0]}"),)
    return (f"{text} {len(items)} items:", *(f"  {item}" for item in items))
