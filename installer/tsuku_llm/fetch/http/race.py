"""A TCP connection to the first address of a host that answers (RFC 8305).

``in_turns`` and ``Schedule`` decide the order and the time of the attempts without I/O.
Threads look up names, because getaddrinfo takes no timeout.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from itertools import chain, zip_longest
from typing import Any, NamedTuple

STAGGER = 0.25
"""Seconds between the starts of two attempts (RFC 8305, 8: Connection Attempt Delay)."""


class SocketAddress(NamedTuple):
    """One address of a host: ``place`` is the argument of ``socket.connect``."""

    family: socket.AddressFamily
    place: tuple[Any, ...]


def in_turns(
    addresses: Iterable[SocketAddress], first: socket.AddressFamily | None
) -> list[SocketAddress]:
    """Order addresses so that families alternate (RFC 8305, 4); keep each address once.

    ``first`` is the family to begin with; None for that of the resolver's first address.
    Within a family the resolver's order stays.
    """
    families: dict[socket.AddressFamily, list[SocketAddress]] = {}
    for address in dict.fromkeys(addresses):
        families.setdefault(address.family, []).append(address)
    # The sort is stable: the other families keep the resolver's order.
    turns = sorted(families, key=lambda family: family != first)
    rows = zip_longest(*(families[family] for family in turns))
    return [address for address in chain.from_iterable(rows) if address is not None]


class Schedule:
    """The start times of the attempts of a race, in seconds of any clock."""

    def __init__(self, addresses: Iterable[SocketAddress], now: float) -> None:
        self._waiting = deque(addresses)
        self._due = now

    def next(self, now: float) -> SocketAddress | None:
        """Take the address to try now; None if it is too early or all were tried."""
        if not self._waiting or now < self._due:
            return None
        self._due = now + STAGGER
        return self._waiting.popleft()

    def failed(self, now: float) -> None:
        """Let the next address start at once, because an attempt has failed."""
        self._due = now

    def seconds(self, now: float) -> float:
        """Return the seconds until the next address is due; infinite if all were tried."""
        return max(0.0, self._due - now) if self._waiting else math.inf


def race(
    addresses: Iterable[SocketAddress], clock: Callable[[], float], left: Callable[[], float]
) -> socket.socket:
    """Connect to the addresses in the given order; return the first connection that succeeds.

    ``left`` gives the seconds of the next wait, and raises when the race must end. All
    other attempts are closed. Raises the ``OSError`` of the last attempt if all fail.
    """
    schedule = Schedule(addresses, clock())
    failure = OSError("the name has no address")
    # One thread runs all attempts: the sockets do not block, and the selector waits for them.
    with selectors.DefaultSelector() as running:
        try:
            while True:
                # First, so that a deadline or a stop() in another thread ends the race here.
                seconds, now = left(), clock()
                # A loop: an attempt that fails at once makes the next address due.
                while address := schedule.next(now):
                    if error := _begin(address, running):
                        failure = error
                        schedule.failed(now)
                # Wake for the next address, even if no socket has news.
                seconds = min(seconds, schedule.seconds(now))
                if not running.get_map() and math.isinf(schedule.seconds(now)):
                    raise failure
                for key, _ in running.select(seconds):
                    attempt: socket.socket = key.fileobj  # type: ignore[assignment]
                    # A socket gets writable when its attempt ends: SO_ERROR says how.
                    code = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    # Before the return: the finally closes all that are still registered.
                    running.unregister(attempt)
                    if not code:
                        return attempt
                    attempt.close()
                    failure = OSError(code, os.strerror(code))
                    schedule.failed(clock())
        finally:
            # The losing attempts, or all of them if `left` raised.
            for key in list(running.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]


def _begin(address: SocketAddress, running: selectors.BaseSelector) -> OSError | None:
    """Begin to connect; return the error if that fails at once (no route, unknown family)."""
    attempt = None
    try:
        attempt = socket.socket(address.family, socket.SOCK_STREAM)
        attempt.settimeout(0)
        attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(BlockingIOError):  # the attempt has begun; select() tells its end
            attempt.connect(address.place)
        running.register(attempt, selectors.EVENT_WRITE)
    except OSError as error:
        if attempt is not None:
            attempt.close()
        return error
    return None


class Resolver:
    """A cache of running name lookups in daemon threads; any thread may use it.

    A lookup that hangs cannot be cancelled. Its thread stays, but does not keep the process
    alive. Until it ends, it serves all threads that ask for the same name.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards `_running`; never held during a lookup
        self._running: dict[tuple[str, int], Future[list[SocketAddress]]] = {}

    def addresses(self, host: str, port: int, left: Callable[[], float]) -> list[SocketAddress]:
        """Look up a name; ``left`` is as for ``race``. Raises ``OSError``, ``UnicodeError``."""
        lookup = self._lookup(host, port)
        while not lookup.done():
            # wait() raises nothing at its timeout; left() ends the loop at the deadline. The
            # lookup goes on then, for the next attempt to find.
            wait([lookup], left())
        return lookup.result()  # raises here what getaddrinfo raised in the other thread

    def _lookup(self, host: str, port: int) -> Future[list[SocketAddress]]:
        with self._lock:  # of threads that ask for one name, one starts the lookup
            lookup = self._running.get((host, port))
            if lookup is not None and not lookup.done():
                return lookup
            # A finished lookup is not used again: the answer or the network may have changed.
            lookup = self._running[host, port] = Future()
        # Outside the lock. Another thread may wait for this lookup already; it will be done.
        work = threading.Thread(
            target=_look_up, args=(host, port, lookup), name="tsuku-llm lookup", daemon=True
        )
        try:
            work.start()
        except RuntimeError:  # the system allows no further thread: use this one, without timeout
            _look_up(host, port, lookup)
        return lookup


def _look_up(host: str, port: int, lookup: Future[list[SocketAddress]]) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # Every error goes into the future: otherwise the threads that wait for it would not end.
    except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
        lookup.set_exception(error)
    else:
        lookup.set_result([SocketAddress(family, place) for family, _, _, _, place in found])
