"""A handle that ends a server from another thread than the one that supervises it."""

from __future__ import annotations

import threading
from collections.abc import Callable

GRACE = 10.0
"""Seconds that a server gets to finish its current requests and exit."""


class Leash:
    """The stop handle of one server: ``end`` stops it now, or as soon as it runs.

    The supervisor sends the server SIGTERM, and SIGKILL if it still runs after
    ``grace`` seconds. Then ``supervise`` returns as for any other end.
    """

    def __init__(self, grace: float = GRACE) -> None:
        self.grace = grace
        self.signalled: int | None = None
        """The last signal that the supervisor forwarded; None for none. Set after the end."""
        # Guards the two fields below: ``end`` and ``attach`` run in different threads.
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._pull: Callable[[], None] | None = None

    @property
    def reason(self) -> str | None:
        """The reason for which the server was asked to end; None if it was not."""
        return self._reason

    def end(self, reason: str) -> None:
        """Ask the server to end, once: the first reason counts. Safe from any thread."""
        with self._lock:
            # Another thread may have called before us: then it ends the server.
            if self._reason is not None:
                return
            self._reason = reason
            # None: ``attach`` was not called yet. It takes the lock after us, sees the
            # reason, and ends the server itself.
            pull = self._pull
        # Outside the lock: ``pull`` takes locks of the supervisor or of another leash.
        if pull:
            pull()

    def attach(self, pull: Callable[[], None]) -> None:
        """Set the function that ends the server; call it now if ``end`` was called before.

        The supervisor calls this once the server runs. A leash that outlives several starts
        is attached to each of them in turn.
        """
        with self._lock:
            # Both in one step: an ``end`` in another thread either sees ``pull``, or was
            # here before and left its reason. So ``pull`` is called by exactly one of us.
            self._pull = pull
            asked = self._reason is not None
        # Outside the lock, as in ``end``.
        if asked:
            pull()
