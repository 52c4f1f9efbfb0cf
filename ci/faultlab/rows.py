"""The table of rows: ids, what must happen, and which rows cannot be shown here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FILE = Path(__file__).with_name("rows.toml")


@dataclass(frozen=True, slots=True)
class Row:
    """One attack or fault.

    ``elsewhere`` says why this row cannot be called passed here, if it cannot.
    """

    id: str
    area: str
    sentence: str
    elsewhere: str


def load_rows() -> tuple[Row, ...]:
    """Return every row, in the order of the file."""
    document = tomllib.loads(_FILE.read_text("utf-8"))
    elsewhere = document.pop("elsewhere")
    return tuple(
        Row(name, area["title"], text, elsewhere.get(name, ""))
        for area in document.values()
        for name, text in area.items()
        if name != "title"
    )


def as_list(rows: tuple[Row, ...]) -> str:
    """Write what each id stands for, one line a row, below the title of its area."""
    lines = []
    area = ""
    for row in rows:
        if row.area != area:
            area = row.area
            lines.append(f"{area}:")
        lines.append(f"  {row.id}  {row.sentence}")
    return "".join(f"{line}\n" for line in lines)


def chosen(rows: tuple[Row, ...], words: list[str]) -> tuple[Row, ...]:
    """Return the rows that words name: an id (A03) or an area's letter (A); all without words.

    Raises ``ValueError`` for a word that names no row.
    """
    for word in words:
        if not any(row.id == word or row.id[0] == word for row in rows):
            raise ValueError(f"there is no row {word}")
    return tuple(row for row in rows if not words or row.id in words or row.id[0] in words)
