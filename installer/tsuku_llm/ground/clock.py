"""The clock: the only place that asks this machine for the date.

Everything that is decided or written by date takes it from here: expiry, ages, times in records.
Waiting and durations use ``time.monotonic``, and ages of files compare with ``time.time``, because
the system writes both. No variable and no option moves this clock: expired metadata must not
become valid by one.
"""

import time
from datetime import datetime, timezone


def now() -> datetime:
    """Return the present time in UTC.

    Python reads a clock up to the year 2262, so sums with a date of this clock have room.
    ``system_limits`` names a clock beyond, which also stops the standard library.
    """
    return datetime.fromtimestamp(time.time(), timezone.utc)


def stamp(time: datetime | None = None) -> str:
    """Return a time in UTC, else the present one, as records have it: ``2026-11-26T12:00:00Z``."""
    return (time or now()).strftime("%Y-%m-%dT%H:%M:%SZ")
