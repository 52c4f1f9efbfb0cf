"""All limits of a run's downloads: times, sizes, numbers; and the failure that may be retried."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tsuku_llm.ground.errors import DownloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a run's downloads, in seconds and bytes.

    Times: ``connect`` limits one connection attempt, ``silence`` the wait for the next byte,
    ``answer`` the wait for an answer's headers, ``total`` one artifact with all its attempts,
    ``metadata`` all small files of a refresh. A transfer below ``slowest`` bytes per second
    over ``window`` seconds is stopped, because a slow drip never times out.

    Retries: ``tries`` limits the attempts in a row that each brought less than
    ``progress_bytes``. ``max_retry_after`` is the longest Retry-After that we obey.
    ``piece_tries`` limits how often one source may send the same piece wrong. ``largest``
    limits artifacts of unknown size; it is a few times the largest known one.

    Connections: artifacts of at least ``parallel_threshold`` bytes use several. Those of an install
    share ``connections`` by size. Each requests a ``segment`` at a time: its smallest and largest
    size.
    """

    connect: float = 10.0
    silence: float = 20.0
    answer: float = 60.0
    total: float = 6 * 3600.0
    metadata: float = 30.0
    slowest: int = 4096
    window: float = 30.0
    tries: int = 4
    progress_bytes: int = 1 << 20
    max_retry_after: float = 60.0
    largest: int = 2 << 30
    piece_tries: int = 3
    parallel_threshold: int = 32_000_000
    connections: int = 8
    segment: tuple[int, int] = (4 << 20, 8 << 20)


@dataclass(frozen=True, slots=True)
class Timing:
    """The clock, sleep and randomness of downloads; tests replace them.

    ``sleep`` None means a wait that ends early when the network is closed. ``jitter`` gives
    a factor for each back-off.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] | None = None
    jitter: Callable[[], float] = lambda: random.SystemRandom().uniform(0.5, 1.5)


class Transient(Exception):
    """A failure after which a retry may help; ``error`` is raised if no retry does.

    ``wait`` is how many seconds the server asked to wait, or None. ``tries`` is a lower
    limit of attempts for failures that rarely go away. ``url`` is what was asked for, which
    ``--verbose`` shows.
    """

    def __init__(
        self,
        error: DownloadError,
        *,
        wait: float | None = None,
        tries: int | None = None,
        url: str = "",
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait = wait
        self.tries = tries
        self.url = url
