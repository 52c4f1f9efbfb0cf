"""How many connections one artifact gets. Pure."""

from __future__ import annotations

import math

from tsuku_llm.fetch.limits import Limits

_GAIN = 1.05
"""How much more must come over more connections for them to be worth it."""

_STEP = 2


class Width:
    """One connection until a range was answered, then several, then more while it gets faster."""

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
        """The server sends ranges."""
        if self._probing:
            self.lanes = self._limits.first

    def refused(self) -> None:
        """The server has had too many requests: back to one, for good."""
        self._given_up = True
        self.lanes = 1

    def lost(self) -> None:
        """A connection came to nothing: where there are others, do without it and try no more."""
        if self.lanes > 1:
            self._given_up = True
            self.lanes -= 1

    def outrun(self, now: float) -> None:
        """A connection held up the others: do without it, and try again after a rest."""
        if self.lanes > 1:
            self._growing = False
            self._rests_until = now + self._limits.rest
            self.lanes -= 1

    def look(self, received: int, now: float, active: int) -> None:
        """Judge by the bytes ``received`` so far; only a full width says something."""
        if self._since is None or active < self.lanes:
            self._since, self._received = now, received
            return
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
        self._since = None
