"""How many connections one artifact gets. Pure."""

from __future__ import annotations

from tsuku_llm.fetch.limits import Limits

_GAIN = 1.05
"""How much more must come over more connections for them to be worth it."""

_STEP = 2


class Width:
    """One connection until a range was answered, then several, then more while it gets faster."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._growing = True
        self._best = 0.0
        self._since: float | None = None
        self._received = 0
        self.lanes = 1

    @property
    def _probing(self) -> bool:
        return self._growing and self.lanes == 1

    def answered(self) -> None:
        """The server sends ranges."""
        if self._probing:
            self.lanes = self._limits.first

    def refused(self) -> None:
        """The server has had too many requests: back to one, for good."""
        self._growing = False
        self.lanes = 1

    def lost(self) -> None:
        """A connection came to nothing: where there are others, do without it and try no more."""
        if self.lanes > 1:
            self._growing = False
            self.lanes -= 1

    def look(self, received: int, now: float, active: int) -> None:
        """Judge by the bytes ``received`` so far; only a full width says something."""
        if self._since is None or active < self.lanes:
            self._since, self._received = now, received
            return
        elapsed = now - self._since
        if not self._growing or self._probing or elapsed < self._limits.look:
            return
        speed = (received - self._received) / elapsed
        if speed > self._best * _GAIN:
            self._best = speed
            self.lanes = min(self._limits.connections, self.lanes + _STEP)
        else:
            self._growing = False
        self._since = None
