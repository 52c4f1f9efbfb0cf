"""Questions to a server: the canary, while the GPU's work is counted, its slots, its models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tsuku_llm.ground.foreign import parse_json, parse_object
from tsuku_llm.launch.ask.health import api_key, exchange
from tsuku_llm.launch.compute.canary_answer import read_completion, read_embedding
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.report import CanaryResult
from tsuku_llm.launch.plan.wishes import Wishes

LIMIT = 20.0
"""Seconds for the answer: a large model on a slow CPU needs several for one token."""

TEXT = "The quick brown fox jumps over the lazy dog. The quick brown fox"
"""The prompt, of about 15 tokens: a model that reads it knows how it goes on, by a wide margin.

Not more: a server without any layer on the GPU sends batches from 32 tokens on there all the same.
"""

# Four tokens, the likeliest ones: the first is computed with the prompt, the others from the cache.
# The probabilities are those before any sampler. ``cache_prompt`` off: all of it is computed.
_COMPLETION: dict[str, Any] = {
    "prompt": TEXT,
    "n_predict": 4,
    "temperature": 0,
    "n_probs": 10,
    "post_sampling_probs": False,
    "cache_prompt": False,
}
_EMBEDDING = {"content": TEXT}

SMALL = 64
"""Tokens of a text in a slot that are computed again in no time; the canary's are fewer."""

_QUEUE_LIMIT = 5.0
"""Seconds for an answer of the queue."""


class Slot(NamedTuple):
    """A slot of the server: one text, of ``tokens`` tokens, that it can go on with.

    ``task`` is the number of its last request, None for none.
    """

    number: int
    busy: bool
    tokens: int
    task: int | None


def ask_canary(
    address: ServerAddress,
    wishes: Wishes,
    slot: int | None = None,
    *,
    limit: float = LIMIT,
    on_wait: Callable[[], None] = lambda: None,
) -> CanaryResult:
    """Let the server compute a few tokens, and wait for the result.

    A server for embeddings or for ranking refuses completions: it is asked for an embedding.
    ``slot`` is the number of the slot to use, None for any. ``on_wait`` is called once a second: an
    OSError of it ends the request, as if the connection were lost.
    """
    if address.tls:
        return CanaryResult(problem="the server wants TLS")
    wanted = _COMPLETION if slot is None else {**_COMPLETION, "id_slot": slot}
    read = read_completion
    try:
        key = api_key(wishes)
        status, content = exchange(
            address, "/completion", wanted, key, limit=limit, on_wait=on_wait
        )
        if status not in (200, 401, 403):
            read = read_embedding
            status, content = exchange(
                address, "/embedding", _EMBEDDING, key, limit=limit, on_wait=on_wait
            )
    except TimeoutError:
        return CanaryResult(problem=f"not answered within {limit:g} seconds")
    except (OSError, ValueError) as error:
        return CanaryResult(problem=f"not answered: {error}", lost=True)
    if status == 200:
        return CanaryResult(answered=True, answer=read(content))
    return CanaryResult(problem=f"answered with HTTP status {status}")


def takes_tasks(address: ServerAddress, wishes: Wishes) -> bool | None:
    """Tell whether the server's queue of tasks answers; None if that cannot be asked.

    ``/slots`` is answered by the thread that computes, between two batches; ``/health`` is answered
    by another one, also if that thread hangs in a driver.
    """
    try:
        status, _ = _got(address, "/slots", wishes)
    except TimeoutError:
        return False
    except (OSError, ValueError):
        return None
    # --no-slots, a wrong key and a router have other answers, which do not come from the queue.
    return True if status == 200 else None


def slots_of(address: ServerAddress, wishes: Wishes) -> tuple[Slot, ...]:
    """Return the slots of a server; none if it does not tell them, or tells too little."""
    try:
        status, content = _got(address, "/slots", wishes)
    except (OSError, ValueError):
        return ()
    return read_slots(content) if status == 200 else ()


def read_slots(content: bytes) -> tuple[Slot, ...]:
    """Read an answer of ``/slots``, as ``server_slot::to_json`` of b10068 and b11434 writes it."""
    try:
        # A slot that was never used has no task. An older server tells no number of tokens.
        return tuple(
            Slot(
                int(row["id"]),
                bool(row["is_processing"]),
                int(row["n_prompt_tokens"]) if "id_task" in row else 0,
                int(row["id_task"]) if "id_task" in row else None,
            )
            for row in parse_json(content)
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return ()


def models_of(address: ServerAddress, wishes: Wishes) -> tuple[str, ...]:
    """Return the names under which a server offers its models; none if it does not tell them."""
    try:
        status, content = _got(address, "/v1/models", wishes)
        rows = parse_object(content)["data"] if status == 200 else ()
        return tuple(str(row["id"]) for row in rows)
    except (OSError, KeyError, TypeError, ValueError):
        return ()


def _got(address: ServerAddress, path: str, wishes: Wishes) -> tuple[int, bytes]:
    """Ask for what the server tells without computing. Raises as ``exchange``."""
    if address.tls:
        raise ConnectionError("the server wants TLS")
    return exchange(address, path, key=api_key(wishes), limit=_QUEUE_LIMIT)
