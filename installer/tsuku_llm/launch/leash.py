"""How whoever started a server ends it from another thread than the one that supervises it."""

from __future__ import annotations

import threading
from collections.abc import Callable

GRACE = 10.0
"""Seconds that a server gets to answer what it is at and go."""


class Leash:
    """One server's leash: ``end`` asks it to stop, at once or as soon as there is one.

    The supervisor sends the server SIGTERM, and SIGKILL if it is still there after
    ``grace`` seconds; then ``supervise`` returns as for any other end.
    """

    def __init__(self, grace: float = GRACE) -> None:
        self.grace = grace
        self.signalled: int | None = None
        """The signal from outside that was passed on to a server that has ended."""
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._pull: Callable[[], None] | None = None

    @property
    def reason(self) -> str | None:
        """Why the server was asked to end; None where nobody asked."""
        return self._reason

    def end(self, reason: str) -> None:
        """Ask the server to end, once: the first reason counts. Safe from any thread."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            pull = self._pull
        if pull:
            pull()

    def attach(self, pull: Callable[[], None]) -> None:
        """Say what ends the server; called by the supervisor, once the server runs."""
        with self._lock:
            self._pull = pull
            asked = self._reason is not None
        if asked:
            pull()
