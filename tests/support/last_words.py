"""What servers and loaders said when they did not start: the excerpts of ``last_words.txt``."""

import signal
from pathlib import Path
from typing import NamedTuple

EXCERPTS = Path(__file__).parents[1].joinpath("last_words.txt").read_text(encoding="utf-8")


class Row(NamedTuple):
    """One excerpt: what it is, whose fault, how the server ended, and what the cause must name."""

    slug: str
    fault: str
    code: int
    named: str
    tail: str


def row_of(record: str) -> Row:
    heading, _, tail = record.partition("\n")
    slug, fault, ended, named = heading.split(" | ")
    return Row(slug, fault, exit_code(ended), named, tail)


def exit_code(ended: str) -> int:
    return -signal.Signals[ended] if ended.startswith("SIG") else int(ended, 0)


ROWS = [row_of(record) for record in EXCERPTS.split("\n== ")[1:]]
