"""A secret: the one type for passwords, tokens and keys.

It prints as ``***`` in every way that Python has: repr, str, format, a traceback, a log. JSON
encoders and pickle refuse it. Its text is read in two ways only: ``for_url`` gives it to one host,
and ``reveal`` marks the places where it leaves this program (a variable of a child, a file that
only its owner can read).
"""

from __future__ import annotations

from urllib.parse import urlsplit

MASK = "***"
"""Shown instead of a secret."""

_PORTS = {"http": 80, "https": 443}


class Secret:
    """A password, token or key; ``url`` is below the host for which it was given."""

    __slots__ = ("_origin", "_text")

    def __init__(self, text: str, url: str = "") -> None:
        self._text = text
        self._origin = origin_of(url) if url else None

    def reveal(self) -> str:
        """Return the text, which leaves this program where this is called."""
        return self._text

    def for_url(self, url: str) -> str | None:
        """Return the text for a request to this URL; None if it was given for another host."""
        return self._text if self._origin and origin_of(url) == self._origin else None

    def __repr__(self) -> str:
        return MASK

    def __format__(self, _: str) -> str:
        return MASK

    def __reduce__(self) -> str:
        raise TypeError("a secret is not written")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self._text, self._origin) == (
            other._text,
            other._origin,
        )

    def __hash__(self) -> int:
        return hash((self._text, self._origin))

    def __bool__(self) -> bool:
        return bool(self._text)


def origin_of(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of a URL (RFC 6454); None if it has no host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or (port is None and parts.scheme not in _PORTS):
        return None
    return parts.scheme, host, port if port is not None else _PORTS[parts.scheme]
