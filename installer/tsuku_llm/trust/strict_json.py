"""JSON that all readers understand in the same way, as RFC 7493 (I-JSON) requires."""

from __future__ import annotations

from typing import Any, NoReturn

from tsuku_llm.ground.foreign import parse_json

_LARGEST_INTEGER = 2**53


def decode_json(data: bytes) -> Any:
    """Decode JSON as ``foreign.parse_json``, with integers within 53 bits as the only numbers.

    Readers have different limits: ``json`` accepts documents that python-tuf then cannot verify.
    Raises ``ValueError``.
    """
    return parse_json(data, parse_int=_integer, parse_float=_no_number)


def _integer(text: str) -> int:
    # The length first: converting a very long text to an integer takes quadratic time.
    if len(text) > len(str(_LARGEST_INTEGER)) + 1 or abs(int(text)) > _LARGEST_INTEGER:
        raise ValueError("a number has more than 53 bits")
    return int(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:40]} is not an integer")
