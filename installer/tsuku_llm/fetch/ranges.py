"""Ranges: what to ask for, and whether the answer is that part of the file (RFC 9110, 14)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tsuku_llm.errors import BodyError
from tsuku_llm.fetch.addresses import host_of, shown
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.partial import Part

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15}|\*)")


def range_headers(part: Part, url: str) -> dict[str, str]:
    """The headers that ask for the rest; empty when nothing is there yet.

    Without a validator of this server the range is asked for all the same: the digest
    decides in the end, and wrong bytes cost one restart.
    """
    if not part.size:
        return {}
    headers = {"Range": f"bytes={part.size}-"}
    validator = part.validator(url)
    if validator:
        headers["If-Range"] = validator
    return headers


def validator_of(headers: Mapping[str, str]) -> str | None:
    """A strong validator of an answer: its ETag unless weak, else Last-Modified."""
    etag = headers.get("etag", "")
    return (etag if etag.startswith('"') else headers.get("last-modified")) or None


def check_range(headers: Mapping[str, str], part: Part, size: int | None, url: str) -> int:
    """Where a 206 answer begins, which must be where the part ends.

    Raises ``Transient`` for one that does not continue the part: several parts, another
    start, another total, another version of the file.
    """
    if not _fits(headers, (part.size, size), size, part.validator(url)):
        raise Transient(
            BodyError(
                f"{host_of(url)} answers a request to resume with something else",
                facts=(f"url: {shown(url)}",),
                hint="run the command again: it starts from the beginning",
            )
        )
    return part.size


def segment_headers(start: int, end: int, validator: str | None) -> dict[str, str]:
    """The headers that ask for the bytes before ``end``, of the same version of the file."""
    headers = {"Range": f"bytes={start}-{end - 1}"}
    if validator:
        headers["If-Range"] = validator
    return headers


def is_segment(
    headers: Mapping[str, str], start: int, end: int, size: int, validator: str | None
) -> bool:
    """Whether a 206 answer has exactly these bytes of that version of the file."""
    length = headers.get("content-length")
    return _fits(headers, (start, end), size, validator) and length in (None, str(end - start))


def _fits(
    headers: Mapping[str, str], gap: tuple[int, int | None], size: int | None, validator: str | None
) -> bool:
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    if found is None:
        return False
    start, end, total = found.groups()
    return (
        int(start) == gap[0]
        and gap[1] in (None, int(end) + 1)
        and (total == "*" or int(total) == (size or int(end) + 1))
        and validator in (None, validator_of(headers) or validator)
    )
