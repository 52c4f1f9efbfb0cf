"""How long, how much and how many: every limit of a run's downloads."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long, how much and how many; seconds and bytes.

    ``connect`` bounds one connection attempt, ``silence`` the wait for the next byte,
    ``answer`` the wait for an answer's headers, ``total`` one artifact with all its tries,
    ``metadata`` all small files of a refresh. A transfer below ``slowest`` bytes per second over
    ``window`` seconds is broken off, as a drip never times out. ``tries`` counts attempts
    in a row that brought less than ``gain`` bytes; ``wait`` is the longest Retry-After
    that is obeyed; ``largest`` caps artifacts whose size is not
    known, at a few times the largest known one. ``piece_tries`` is
    how often one source may send a wrong piece in the place of one that is signed.

    Artifacts of ``wide`` bytes and more come over several connections: ``first`` of them
    as soon as the server has answered one range, then more while they help, looked at
    every ``look`` seconds; where one was too slow, more are tried again after ``rest``
    seconds. All artifacts of a run share ``connections``. Each connection takes ``segment``
    bytes at a time, the lowest and the highest number.
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
    largest: int = 2 << 30
    piece_tries: int = 3
    wide: int = 32_000_000
    first: int = 4
    connections: int = 8
    look: float = 0.2
    rest: float = 5.0
    segment: tuple[int, int] = (4 << 20, 16 << 20)


@dataclass(frozen=True, slots=True)
class Timing:
    """Time as the downloads see it; tests bring their own.

    ``sleep`` is None for a wait that closing the network ends; ``jitter`` gives a factor
    for each back-off.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] | None = None
    jitter: Callable[[], float] = lambda: random.uniform(0.5, 1.5)  # noqa: S311 - no secret
