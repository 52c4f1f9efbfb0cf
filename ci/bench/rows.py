"""All rows, in the order of their numbers."""

from __future__ import annotations

import re

from ci.bench import downloading, installing, launching, starting, unpacking
from ci.bench.row import Row

_PARTS = (starting, unpacking, downloading, installing, launching)


def _number(row: Row) -> tuple[str, int, str]:
    found = re.match(r"([A-Z]+)(\d+)", row.id)
    return (found[1], int(found[2]), row.id) if found else ("", 0, row.id)


ROWS = tuple(sorted((row for part in _PARTS for row in part.ROWS), key=_number))
