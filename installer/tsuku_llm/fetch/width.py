"""The number of connections for one artifact. Pure."""

from __future__ import annotations

import math

from tsuku_llm.fetch.limits import Limits

_GAIN = 1.05
"""Factor by which more connections must be faster than before to be worth it."""

_STEP = 2
"""Connections that are added at a time."""


class Width:
    """The number of connections: one, then several, then more while the download gets faster.

    It stays at one until the server has answered a range. Only the downloading thread uses
    it, and all attempts at one source share it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._growing = True
        self._given_up = False
        self._rests_until = math.inf
        self._best = 0.0
        self._since: float | None = None
        self._received = 0
        self.lanes = 1

    @property
    def _probing(self) -> bool:
        return self._growing and not self._given_up and self.lanes == 1

    def answered(self) -> None:
        """Note that the server answers ranges: allow several connections."""
        if self._probing:
            self.lanes = self._limits.first

    def refused(self) -> None:
        """Go back to one connection for good: the server got too many requests."""
        self._given_up = True
        self.lanes = 1

    def lost(self) -> None:
        """Use one connection less and try no more: one has failed.

        The only connection stays.
        """
        if self.lanes > 1:
            self._given_up = True
            self.lanes -= 1

    def outrun(self, now: float) -> None:
        """Use one connection less and try more after a rest: one delayed the others."""
        if self.lanes > 1:
            self._growing = False
            self._rests_until = now + self._limits.rest
            self.lanes -= 1

    def look(self, received: int, now: float, active: int) -> None:
        """Measure the speed by the bytes ``received`` so far, and add connections if it grew."""
        # With fewer connections than allowed, the speed says nothing about the allowed number.
        if self._since is None or active < self.lanes:
            self._since, self._received = now, received
            return
        # After the rest the line may be different: forget the best speed.
        if now >= self._rests_until:
            self._growing, self._best, self._rests_until = True, 0.0, math.inf
        elapsed = now - self._since
        if not self._growing or self._given_up or self._probing or elapsed < self._limits.look:
            return
        speed = (received - self._received) / elapsed
        if speed > self._best * _GAIN:
            self._best = speed
            self.lanes = min(self._limits.connections, self.lanes + _STEP)
        else:
            self._growing = False
        self._since = None  # measure the next step from its start
