"""A TCP connection to whichever address of a host answers first (RFC 8305).

The order of the addresses and the moment of each attempt are decided without I/O, in
``in_turns`` and ``Schedule``. Names are looked up in threads, as getaddrinfo has no timeout.
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


class Address(NamedTuple):
    """Where a host can be reached: ``place`` is what ``socket.connect`` takes."""

    family: socket.AddressFamily
    place: tuple[Any, ...]


def in_turns(addresses: Iterable[Address], first: socket.AddressFamily | None) -> list[Address]:
    """Order addresses so that families alternate (RFC 8305, 4); each address once.

    ``first`` is the family to begin with; None for that of the resolver's first address.
    Within a family the resolver's order stays.
    """
    families: dict[socket.AddressFamily, list[Address]] = {}
    for address in dict.fromkeys(addresses):
        families.setdefault(address.family, []).append(address)
    turns = sorted(families, key=lambda family: family != first)
    rows = zip_longest(*(families[family] for family in turns))
    return [address for address in chain.from_iterable(rows) if address is not None]


class Schedule:
    """When each address of a race is tried; times are in seconds of any clock."""

    def __init__(self, addresses: Iterable[Address], now: float) -> None:
        self._waiting = deque(addresses)
        self._due = now

    def next(self, now: float) -> Address | None:
        """Take the address to try now; None if it is too early, or all were tried."""
        if not self._waiting or now < self._due:
            return None
        self._due = now + STAGGER
        return self._waiting.popleft()

    def failed(self, now: float) -> None:
        """Let the next address start at once, as an attempt has failed."""
        self._due = now

    def seconds(self, now: float) -> float:
        """Seconds until the next address is due; infinite when all were tried."""
        return max(0.0, self._due - now) if self._waiting else math.inf


def race(
    addresses: Iterable[Address], clock: Callable[[], float], left: Callable[[], float]
) -> socket.socket:
    """Connect to the addresses, given in order, and keep the first connection that is made.

    ``left`` gives the seconds of the next wait, and raises when the race is to end. All
    other attempts are closed. Raises ``OSError`` of the last attempt if each has failed.
    """
    schedule = Schedule(addresses, clock())
    failure = OSError("it has no address")
    with selectors.DefaultSelector() as running:
        try:
            while True:
                seconds, now = left(), clock()
                while address := schedule.next(now):
                    if error := _begin(address, running):
                        failure = error
                        schedule.failed(now)
                seconds = min(seconds, schedule.seconds(now))
                if not running.get_map() and math.isinf(schedule.seconds(now)):
                    raise failure
                for key, _ in running.select(seconds):
                    attempt: socket.socket = key.fileobj  # type: ignore[assignment]
                    code = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    running.unregister(attempt)
                    if not code:
                        return attempt
                    attempt.close()
                    failure = OSError(code, os.strerror(code))
                    schedule.failed(clock())
        finally:
            for key in list(running.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]


def _begin(address: Address, running: selectors.BaseSelector) -> OSError | None:
    """Begin to connect; the reason where that fails at once (no route, no such family here)."""
    attempt = None
    try:
        attempt = socket.socket(address.family, socket.SOCK_STREAM)
        attempt.settimeout(0)
        attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(BlockingIOError):  # it is under way
            attempt.connect(address.place)
        running.register(attempt, selectors.EVENT_WRITE)
    except OSError as error:
        if attempt is not None:
            attempt.close()
        return error
    return None


class Resolver:
    """Names looked up in daemon threads; any thread may ask.

    A lookup that hangs cannot be ended. Its thread is left behind, does not keep the process
    alive, and answers everyone who asks for the same name until it is through.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], Future[list[Address]]] = {}

    def addresses(self, host: str, port: int, left: Callable[[], float]) -> list[Address]:
        """Look up a name; ``left`` is as for ``race``. Raises ``OSError``, ``UnicodeError``."""
        lookup = self._lookup(host, port)
        while not lookup.done():
            wait([lookup], left())
        return lookup.result()

    def _lookup(self, host: str, port: int) -> Future[list[Address]]:
        with self._lock:  # of threads that ask for one name, one starts the lookup
            lookup = self._running.get((host, port))
            if lookup is not None and not lookup.done():
                return lookup
            lookup = self._running[host, port] = Future()
        work = threading.Thread(
            target=_look_up, args=(host, port, lookup), name="tsuku-llm lookup", daemon=True
        )
        try:
            work.start()
        except RuntimeError:  # the system allows no further thread: look it up in this one
            _look_up(host, port, lookup)
        return lookup


def _look_up(host: str, port: int, lookup: Future[list[Address]]) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
        lookup.set_exception(error)
    else:
        lookup.set_result([Address(family, place) for family, _, _, _, place in found])
