"""Has a server had nothing to do for too long? Seen from outside, whatever it logs or is asked.

A request is work of its processor, or a connection that lasts. Both are what the system
counts, so they hold with an API key, with TLS and with the log turned off. Connections that
are opened and closed again (a monitor that asks ``/health``) do not keep a server up.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

WORK = 0.03
"""Seconds of processor time between two looks that are taken for a request. An idle server takes
none; an answer to a monitor (``/health``, ``/metrics``) takes 0.1 to 0.2 ms."""

_LOOKS = 8
_OFTEN = 6.0
"""Longer than llama-server keeps a connection open on which nothing more is asked (5 s)."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a server has done until now: its processor time in seconds, its open connections."""

    processor: float
    connections: frozenset[Hashable] = frozenset()


class IdleWatch:
    """Told what is seen of a server now and then; ``timeout`` and ``now`` are in seconds."""

    def __init__(self, timeout: float) -> None:
        self.pause = min(timeout / _LOOKS, _OFTEN)
        """Seconds until the next look."""
        self._timeout = timeout
        self._last_work: float | None = None
        self._before = Sight(0.0)

    def is_over(self, now: float, sight: Sight) -> bool:
        """Whether it is time to end the server: never while somebody is connected.

        The first look begins the time.
        """
        worked = sight.processor - self._before.processor >= WORK
        lasting = sight.connections & self._before.connections
        if self._last_work is None or worked or lasting:
            self._last_work = now
        self._before = sight
        return not sight.connections and now - self._last_work >= self._timeout


def see(pid: int) -> Sight | None:
    """Look at a process; None where it is gone or may not be looked at."""
    import psutil  # noqa: PLC0415

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        found = process.net_connections("inet")
    except (psutil.Error, OSError):
        return None
    open_now = (each for each in found if each.status == psutil.CONN_ESTABLISHED)
    return Sight(
        times.user + times.system, frozenset((each.laddr, each.raddr) for each in open_now)
    )
