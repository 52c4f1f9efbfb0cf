"""The rules of retries, and the minimum speed of a transfer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tsuku_llm.fetch.http.limits import Limits, Transient
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.fetch.http.urls import host_of, shown
from tsuku_llm.ground.errors import BodyError

_BASE = 0.5
"""Seconds of the first back-off; each further one is twice as long."""

_LONGEST = 20.0
"""Seconds of the longest back-off, before the jitter."""

_YEAR = 365 * 86400

_T = TypeVar("_T")


class Retries:
    """The attempts at one source; one that brought enough bytes resets the count.

    Only one thread uses it, the one that downloads.
    """

    def __init__(self, network: Network, deadline: float) -> None:
        self._network = network
        self._limits = network.limits
        self._deadline = deadline
        self._failed = 0

    def run(self, attempt: Callable[[], _T], received: Callable[[], int] = int) -> _T:
        """Call ``attempt`` until it succeeds, or raise the error of its last failure.

        ``received`` gives the number of bytes that are there so far.
        """
        while True:
            before = received()
            try:
                return attempt()
            except Transient as failure:
                seconds = self._pause(failure, received() - before)
                # Do not sleep towards a deadline that leaves no time for the attempt.
                if self._network.clock() + seconds > self._deadline:
                    raise failure.error from failure
            self._network.pause(seconds)  # raises Interrupted if another thread stops the network

    def _pause(self, failure: Transient, gained: int) -> float:
        """Compute the seconds until the next attempt; raise the error if none is left.

        We obey the server's Retry-After up to ``Limits.max_retry_after``. If it is longer, we
        give up the source: a user does not wait for hours at a prompt.
        """
        # A connection that breaks every few megabytes still gets the file, so it may go on.
        self._failed = 1 if gained >= self._limits.progress_bytes else self._failed + 1
        allowed = min(self._limits.tries, failure.tries or self._limits.tries)
        if failure.wait is not None and failure.wait > self._limits.max_retry_after:
            seconds = f"{failure.wait:.0f} seconds" if failure.wait < _YEAR else "more than a year"
            failure.error.facts += (f"it asks to wait {seconds}",)
            raise failure.error from failure
        if self._failed >= allowed:
            raise failure.error from failure
        # The jitter keeps many clients of a restarted server from returning all at once.
        backoff = min(_LONGEST, _BASE * 2.0 ** (self._failed - 1)) * self._network.timing.jitter()
        return max(backoff, failure.wait or 0.0)


class Pace:
    """The minimum-speed rule for one answer: no read timeout ends a slow drip.

    Each thread makes one for each answer, so it needs no lock.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._since = clock()
        self._received = 0

    def check(self, size: int, url: str) -> None:
        """Count bytes; raise ``Transient`` if a whole window was too slow."""
        self._received += size
        elapsed = self._clock() - self._since
        if elapsed < self._limits.window:
            return
        if self._received < self._limits.slowest * elapsed:
            raise Transient(
                BodyError(
                    f"{host_of(url)} sends too slowly",
                    facts=(
                        f"received: {self._received} bytes in {elapsed:.0f} seconds",
                        f"url: {shown(url)}",
                    ),
                    hint="try again later, or set llm.mirror; the download will be resumed",
                )
            )
        # The next window begins: a fast start must not excuse a drip later.
        self._since += elapsed
        self._received = 0
