"""The calendar: the only place that asks this machine for the date.

Everything that is decided or written by date takes it from here: expiry, ages, times in records.
Three things are measured otherwise. Waiting and durations use ``time.monotonic``. The age of a
file is compared with ``time.time``, because the system writes both. Times that come from a server
are compared with that server's own.

No variable and no option moves this clock: expired metadata must not become valid by one.
"""

import time
from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LATEST = datetime(9000, 1, 1, tzinfo=timezone.utc)
"""Room for sums: ``datetime`` ends with the year 9999. Everything has expired before this."""


def now() -> datetime:
    """Return the present time in UTC, between the years 1970 and 9000.

    A clock outside is as wrong at the nearest end, where dates can still be added and compared.
    """
    latest = (_LATEST - _EPOCH).total_seconds()
    return _EPOCH + timedelta(seconds=min(max(time.time(), 0.0), latest))


def stamp() -> str:
    """Return the present time as records have it, such as ``2026-11-26T12:00:00Z``."""
    return now().strftime("%Y-%m-%dT%H:%M:%SZ")
