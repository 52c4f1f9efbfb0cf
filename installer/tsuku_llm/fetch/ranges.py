"""Range requests: their headers, and checks of the answers (RFC 9110, 14)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tsuku_llm.errors import BodyError
from tsuku_llm.fetch.addresses import host_of, shown
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.partial import Part

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15}|\*)")


def range_headers(part: Part, url: str) -> dict[str, str]:
    """Build the headers that request the rest; an empty part needs none.

    Without a validator of this server the range is requested all the same: the digest
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
    """Get a strong validator of an answer: its ETag unless that is weak, else Last-Modified."""
    etag = headers.get("etag", "")
    # A weak ETag begins with W/; RFC 9110, 13.1.5 forbids it in If-Range.
    return (etag if etag.startswith('"') else headers.get("last-modified")) or None


def check_range(headers: Mapping[str, str], part: Part, size: int | None, url: str) -> int:
    """Check that a 206 answer begins where the part ends; return that offset.

    Raises ``Transient`` for an answer that does not continue the part: several ranges,
    another start, another total size, another version of the file.
    """
    if not _fits(headers, (part.size, size), size, part.validator(url)):
        raise Transient(
            BodyError(
                f"{host_of(url)} answers a request to resume with other bytes",
                facts=(f"url: {shown(url)}",),
                hint="run the command again: it starts from the beginning",
            )
        )
    return part.size


def segment_headers(start: int, end: int, validator: str | None) -> dict[str, str]:
    """Build the headers that request ``start`` up to ``end`` of the same version of the file."""
    headers = {"Range": f"bytes={start}-{end - 1}"}
    if validator:
        headers["If-Range"] = validator
    return headers


def is_segment(
    headers: Mapping[str, str], start: int, end: int, size: int, validator: str | None
) -> bool:
    """Return whether a 206 answer has exactly these bytes of that version of the file."""
    length = headers.get("content-length")
    return _fits(headers, (start, end), size, validator) and length in (None, str(end - start))


def _fits(
    headers: Mapping[str, str], gap: tuple[int, int | None], size: int | None, validator: str | None
) -> bool:
    # Several ranges come as multipart/byteranges, without this header.
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    if found is None:
        return False
    start, end, total = found.groups()  # its end is the last byte, ours is one further
    return (
        int(start) == gap[0]
        and gap[1] in (None, int(end) + 1)
        and (total == "*" or int(total) == (size or int(end) + 1))
        # An answer may leave out its validator; if it has one, it must be the same.
        and validator in (None, validator_of(headers) or validator)
    )
