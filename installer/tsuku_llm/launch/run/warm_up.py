"""The warm-up of a server: requests of growing size, before its users are told that it is ready.

A driver compiles the code for a size of prompt when it first meets it: up to a minute, at a
user's first prompt. ggml has different code for one token, for a few, and for whole batches, so
one request does not do. Only the monitor's thread uses this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tsuku_llm.launch.ask.health import api_key, exchange
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.report import Verdict
from tsuku_llm.launch.plan.wishes import Wishes

SIZES = (2, 4, 8, 16, 32, 64, 128, 512, 1100)
"""Tokens of the prompts.

ggml-vulkan multiplies up to 8 columns in one way, and has tiles for up to 32, up to 64 and more.
A batch has 512 tokens; the last prompt has two full ones, and a rest. The attention over a longer
context is compiled with it.
"""

LIMIT = 300.0
"""Seconds for one answer: CUDA's compiler took 15 on an H200, and other machines are slower."""

ENOUGH = 600.0
"""Seconds of a warm-up after which no further prompt begins."""

_BUDGET = 10.0
"""Seconds that a prompt may take without any compiling; a larger one is left out."""

_SLOW = 1.0
"""Seconds of a prompt that is asked for again, to see how long it takes without compiling."""

_FIRST, _VALUES = 5, 200
"""The tokens: ids from 5 on, which every vocabulary has. The lowest ones often end a text."""

_DENIED = (401, 403)


class WarmedUp(NamedTuple):
    """The result of a warm-up so far. ``seconds`` is how long it took.

    ``problem`` is why it is not complete, empty if it is. ``unanswered``: a prompt got no answer
    at all, as when the server ends or hangs.
    """

    seconds: float
    problem: str = ""
    unanswered: bool = False


class WarmUpListener(Protocol):
    """A listener to one warm-up; the methods are called in the monitor's thread."""

    def needs_prompts(self, verdict: Verdict) -> bool:
        """Tell whether a loaded server needs longer prompts than one token."""

    def on_waiting(self, seconds: float) -> None:
        """Take note that the warm-up goes on, about once a second."""

    def on_warmed(self, result: WarmedUp) -> None:
        """Take note that the warm-up is over, and the server still there."""


class WarmUp:
    """The requests to one server; ``seconds`` is how long they took so far.

    ``on_wait`` is called once a second while an answer is awaited; what it raises ends the warm-up.
    """

    def __init__(
        self,
        address: ServerAddress,
        wishes: Wishes,
        on_wait: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._wishes = wishes
        self._on_wait = on_wait
        self._clock = clock
        self._path = "/completion"
        self._seconds = 0.0
        self._per_token = 0.0
        """Seconds without compiling, as far as they are known."""

    def first(self) -> WarmedUp:
        """Let the server compute one token, which is affordable wherever it computes."""
        return self._prompts((1,))

    def rest(self) -> WarmedUp:
        """Let it read longer prompts, as far as their time without compiling is short."""
        # The short one at the end leaves a slot that the next request has no reason to save.
        return self._prompts((*SIZES, 1))

    def _prompts(self, sizes: tuple[int, ...]) -> WarmedUp:
        begun = self._clock()
        problem, unanswered = "", False
        try:
            for size in sizes:
                # After a refusal only the short one at the end is left to do.
                if problem and size > 1:
                    continue
                if self._seconds + self._clock() - begun > ENOUGH:
                    problem = f"compiling takes more than {ENOUGH:g} seconds"
                    continue
                if self._per_token * size > _BUDGET:
                    problem = f"prompts from {size} tokens on take too long here"
                    continue
                seconds = self._prompt(size)
                if isinstance(seconds, str):
                    problem = seconds
                elif seconds >= _SLOW:
                    # Compiling, or a slow device? The same again tells.
                    again = self._prompt(size)
                    if isinstance(again, float):
                        self._per_token = again / size
        except TimeoutError:
            problem, unanswered = f"a prompt was not answered within {LIMIT:g} seconds", True
        except (OSError, ValueError) as error:
            problem, unanswered = f"a prompt was not answered: {error}", True
        self._seconds += self._clock() - begun
        return WarmedUp(self._seconds, problem, unanswered)

    def _prompt(self, size: int) -> float | str:
        """Return the seconds for a prompt, or why the server does not answer it.

        Raises OSError and ValueError.
        """
        tokens = [_FIRST + number % _VALUES for number in range(size)]
        begun = self._clock()
        status = self._post(tokens)
        # A server for embeddings or for ranking refuses completions.
        if status not in (200, *_DENIED) and size == 1 and self._path == "/completion":
            self._path = "/embedding"
            status = self._post(tokens)
        if status != 200:
            return f"a prompt of {size} tokens was answered with HTTP status {status}"
        return self._clock() - begun

    def _post(self, tokens: list[int]) -> int:
        # ``cache_prompt`` off: each prompt is computed as a whole.
        completion = {"prompt": tokens, "n_predict": 2, "cache_prompt": False}
        body = completion if self._path == "/completion" else {"content": tokens}
        key, begun = api_key(self._wishes), self._clock()

        def waiting() -> None:
            self._on_wait(self._seconds + self._clock() - begun)

        return exchange(self._address, self._path, body, key, limit=LIMIT, on_wait=waiting)[0]
