"""JSON that all readers understand in the same way, as RFC 7493 (I-JSON) requires."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_LARGEST_INTEGER = 2**53
_DEEPEST = 32


def decode_json(data: bytes) -> Any:
    """Decode JSON; refuse it if two readers could understand it differently.

    Accepted are UTF-8, no repeated keys, only integers within 53 bits, no lone surrogates, and
    at most 32 levels. Readers have different depth limits: ``json`` accepts documents that
    python-tuf then cannot verify. Raises ``ValueError`` or ``RecursionError``.
    """
    value = json.loads(
        data.decode("utf-8"),
        object_pairs_hook=_unique,
        parse_int=_integer,
        parse_float=_no_number,
        parse_constant=_no_number,
    )
    _require_shallow(value)
    json.dumps(value, ensure_ascii=False).encode("utf-8")  # a lone surrogate cannot be encoded
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result


def _integer(text: str) -> int:
    # The length first: converting a very long text to an integer takes quadratic time.
    if len(text) > len(str(_LARGEST_INTEGER)) + 1 or abs(int(text)) > _LARGEST_INTEGER:
        raise ValueError("a number has more than 53 bits")
    return int(text)


def _require_shallow(value: Any) -> None:
    # Level by level and not by recursion: the input decides how deep it is.
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for each in level for inner in _within(each)]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _no_number(text: str) -> Any:
    raise ValueError(f"the number {text[:40]} is not an integer")
