"""The settings of a run's downloads, and the one client that they share."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from tsuku_llm.errors import Interrupted

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and how much; seconds and bytes.

    ``connect`` bounds one connection attempt, ``silence`` the wait for the next byte,
    ``answer`` the wait for an answer's headers, ``total`` one artifact with all its tries,
    ``metadata`` one small file. A transfer below ``slowest`` bytes per second over
    ``window`` seconds is broken off, as a drip never times out. ``tries`` counts attempts
    in a row that brought less than ``gain`` bytes; ``wait`` is the longest Retry-After
    that is obeyed; ``largest`` caps artifacts whose size is not known.
    """

    connect: float = 10.0
    silence: float = 20.0
    answer: float = 60.0
    total: float = 6 * 3600.0
    metadata: float = 30.0
    slowest: int = 4096
    window: float = 30.0
    tries: int = 4
    gain: int = 1 << 20
    wait: float = 60.0
    largest: int = 4 << 30


@dataclass(frozen=True, slots=True)
class Timing:
    """Time as the downloads see it; tests bring their own.

    ``sleep`` is None for a wait that closing the network ends; ``jitter`` gives a factor
    for each back-off.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] | None = None
    jitter: Callable[[], float] = lambda: random.uniform(0.5, 1.5)  # noqa: S311 - no secret


class Network:
    """Mirrors, limits and the client of one run; used in a ``with`` statement.

    ``environ`` gives proxies and certificates (``HTTPS_PROXY``, ``NO_PROXY``,
    ``SSL_CERT_FILE``, ...). Leaving the ``with`` block stops the downloads that other
    threads still run on it. Any thread may use it.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        mirrors: tuple[str, ...] = (),
        limits: Limits | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.environ = environ
        self.mirrors = mirrors
        self.limits = limits or Limits()
        self.timing = timing or Timing()
        self._stopped = threading.Event()
        self._users = 0
        self._changed = threading.Condition()
        self._client: httpx.Client | None = None

    def __enter__(self) -> Network:  # noqa: PYI034 - nobody derives from it
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        with self._changed:
            self._changed.wait_for(lambda: not self._users)
            if self._client is not None:
                with contextlib.suppress(OSError):  # what was asked for came
                    self._client.close()
                self._client = None

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Keep the client open for one download."""
        self.check()
        with self._changed:
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    @property
    def client(self) -> httpx.Client:
        """The run's one client: each costs 30 ms for its certificates."""
        from tsuku_llm.fetch.transport import make_client  # noqa: PLC0415

        with self._changed:
            if self._client is None:
                self._client = make_client(self.environ, self.limits, self.timing, self.check)
            return self._client

    def check(self) -> None:
        """Raise ``Interrupted`` when the network was closed."""
        if self._stopped.is_set():
            raise Interrupted("the download was stopped", hint="run the command again to resume it")

    def clock(self) -> float:
        """Seconds on a clock that only goes forward."""
        return self.timing.clock()

    def pause(self, seconds: float) -> None:
        """Wait; raises ``Interrupted`` when the network is closed meanwhile."""
        if self.timing.sleep:
            self.timing.sleep(seconds)
        else:
            self._stopped.wait(seconds)
        self.check()
