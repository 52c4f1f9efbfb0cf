"""All rows, in the order of their numbers."""

from __future__ import annotations

import re

from ci.bench import downloading, installing, starting, unpacking
from ci.bench.row import Row


def _number(row: Row) -> tuple[int, str]:
    digits = re.match(r"G(\d+)", row.id)
    return int(digits[1]) if digits else 0, row.id


ROWS = tuple(
    sorted((*starting.ROWS, *unpacking.ROWS, *downloading.ROWS, *installing.ROWS), key=_number)
)
