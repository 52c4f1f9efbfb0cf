"""The detection of an idle server, from the system's own counts.

A server is busy if it uses processor time, or if a connection lasts. The system counts both,
so the detection works with an API key, with TLS and with the log turned off. Connections
that are opened and closed again (a monitor that asks ``/health``) do not keep a server up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from tsuku_llm.ground.foreign import read_kernel
from tsuku_llm.launch.gpu.proc import unix_connections

BUSY_SECONDS = 0.03
"""Seconds of processor time between two samples that count as a request.

An idle server uses none. An answer to a monitor (``/health``, ``/metrics``) takes 0.1 to
0.2 ms.
"""

_SAMPLES = 8
"""Samples within one timeout: a server ends at most an eighth of it too late."""

_LONGEST_PAUSE = 6.0
"""Longest pause between two samples, in seconds.

Longer than llama-server keeps an unused connection open (5 s). At this pause, such a
connection is not in two samples and does not count as one that lasts.
"""


@dataclass(frozen=True, slots=True)
class ActivitySample:
    """A sample of a server: its processor time so far in seconds, and its open connections."""

    processor: float
    connections: frozenset[Hashable] = frozenset()


class IdleWatch:
    """The judge of a server's samples; ``timeout`` and ``now`` are in seconds."""

    def __init__(self, timeout: float) -> None:
        self.pause = min(timeout / _SAMPLES, _LONGEST_PAUSE)
        """Seconds until the next sample."""
        self._timeout = timeout
        self._last_work: float | None = None
        self._before = ActivitySample(0.0)

    def is_over(self, now: float, sample: ActivitySample) -> bool:
        """Tell whether it is time to end the server: never while a client is connected.

        The time begins with the first sample.
        """
        # A connection counts as a request only if it is in two samples: see ``_LONGEST_PAUSE``.
        worked = sample.processor - self._before.processor >= BUSY_SECONDS
        lasting = sample.connections & self._before.connections
        if self._last_work is None or worked or lasting:
            self._last_work = now
        self._before = sample
        return not sample.connections and now - self._last_work >= self._timeout


def sample_activity(pid: int, sockets: Sequence[str] = ()) -> ActivitySample | None:
    """Take a sample of a process; None if it has ended or does not permit it.

    ``sockets`` are the paths of the Unix sockets at which it listens, beside TCP ports.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        connections: set[Hashable] = {
            (each.laddr, each.raddr)
            for each in process.net_connections("inet")
            if each.status == psutil.CONN_ESTABLISHED
        }
        for socket in sockets:
            if sys.platform == "linux":
                # The network namespace of the server is asked, which may be another one than ours.
                table = os.fsdecode(read_kernel(f"/proc/{pid}/net/unix"))
                connections |= unix_connections(socket, table.splitlines())
            else:
                # There nothing tells the listening socket from a connection. It was opened first.
                found = process.net_connections("unix")
                connections |= set(sorted(each.fd for each in found if each.laddr == socket)[1:])
    except (psutil.Error, OSError):
        return None
    return ActivitySample(times.user + times.system, frozenset(connections))
