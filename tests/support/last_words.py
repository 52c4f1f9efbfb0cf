"""What servers and loaders said when they did not start: the excerpts of ``last_words.txt``."""

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

EXCERPTS = Path(__file__).parents[1].joinpath("last_words.txt").read_text(encoding="utf-8")


class Row(NamedTuple):
    """One excerpt: what it is, whose fault, how the server ended, and what the cause must name.

    ``source`` is where the words are from: a file of a repository, an issue, or a run.
    """

    slug: str
    fault: str
    code: int
    named: str
    source: str
    tail: str


def row_of(record: str) -> Row:
    heading, _, tail = record.partition("\n")
    slug, fault, ended, named, source = heading.split(" | ")
    return Row(slug, fault, exit_code(ended), named, source, tail)


def exit_code(ended: str) -> int:
    return -signal.Signals[ended] if ended.startswith("SIG") else int(ended, 0)


def one_of_each(rows: Iterable[Row]) -> list[Row]:
    """Return the first row of each slug and fault, where each row takes a process."""
    return list({(row.slug, row.fault): row for row in reversed(list(rows))}.values())[::-1]


ROWS = [row_of(record) for record in EXCERPTS.split("\n== ")[1:]]
