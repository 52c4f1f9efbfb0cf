"""When to try again, and when a transfer is too slow to be one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from tsuku_llm.errors import BodyError
from tsuku_llm.fetch.addresses import host_of, shown
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.limits import Limits
from tsuku_llm.fetch.network import Network

_BASE = 0.5
_LONGEST = 20.0
_YEAR = 365 * 86400

_T = TypeVar("_T")


class Retries:
    """Attempts at one source: those that brought something do not count."""

    def __init__(self, network: Network, deadline: float) -> None:
        self._network = network
        self._limits = network.limits
        self._deadline = deadline
        self._failed = 0

    def run(self, attempt: Callable[[], _T], received: Callable[[], int] = int) -> _T:
        """Call ``attempt`` until it ends well, or raise the error of its last failure.

        ``received`` gives the bytes that are there so far.
        """
        while True:
            with self._surviving(received):
                return attempt()

    @contextlib.contextmanager
    def _surviving(self, received: Callable[[], int]) -> Iterator[None]:
        before = received()
        try:
            yield
        except Transient as failure:
            seconds = self._pause(failure, received() - before)
            if self._network.clock() + seconds > self._deadline:
                raise failure.error from failure
            self._network.pause(seconds)

    def _pause(self, failure: Transient, gained: int) -> float:
        """Seconds to wait before the next attempt; raises the failure's error if none is left.

        The server's Retry-After is obeyed up to ``Limits.wait``; beyond that the source is
        given up, as nobody waits for hours before a prompt.
        """
        self._failed = 1 if gained >= self._limits.gain else self._failed + 1
        allowed = min(self._limits.tries, failure.tries or self._limits.tries)
        if failure.wait is not None and failure.wait > self._limits.wait:
            seconds = f"{failure.wait:.0f} seconds" if failure.wait < _YEAR else "more than a year"
            failure.error.facts += (f"it asks to wait {seconds}",)
            raise failure.error from failure
        if self._failed >= allowed:
            raise failure.error from failure
        backoff = min(_LONGEST, _BASE * 2.0 ** (self._failed - 1)) * self._network.timing.jitter()
        return max(backoff, failure.wait or 0.0)


class Pace:
    """The minimum-speed rule: no read time-out ever ends a drip."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._since = clock()
        self._received = 0

    def check(self, size: int, url: str) -> None:
        """Count bytes; raises ``Transient`` when a whole window was too slow."""
        self._received += size
        elapsed = self._clock() - self._since
        if elapsed < self._limits.window:
            return
        if self._received < self._limits.slowest * elapsed:
            raise Transient(
                BodyError(
                    f"{host_of(url)} sends next to nothing",
                    facts=(
                        f"received: {self._received} bytes in {elapsed:.0f} seconds",
                        f"url: {shown(url)}",
                    ),
                    hint="try again later, or set llm.mirror; what came is kept and resumed",
                )
            )
        self._since += elapsed
        self._received = 0
