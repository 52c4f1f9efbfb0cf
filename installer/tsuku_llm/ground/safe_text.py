"""Texts made safe to show: no control characters, no secrets. Pure."""

from __future__ import annotations

import re
import sys
from shlex import quote
from urllib.parse import urlsplit

MASK = "***"
"""Shown instead of a secret."""

URL_USER = r"://[^/?#]*@"
"""The pattern of a user and password in a URL; "/", "?" and "#" end the host part."""

_SECRETS = tuple(
    (re.compile(pattern), shown)
    for pattern, shown in (
        (URL_USER, f"://{MASK}@"),
        # A password in which "/", "?" or "#" is not escaped: what follows the colon is no port.
        (r"://[^/?#@\s'\",:]*:(?![0-9]*(?:[/?#\s'\",]|$))[^\s'\"]*@", f"://{MASK}@"),
        # A password in which "@" is not escaped: the host comes after the last one.
        (rf"://{re.escape(MASK)}@[^\s'\",]*@", f"://{MASK}@"),
        # Without a scheme, as the setting of a proxy may be.
        (r"(?<![^\s'\",=])[^/?#@\s'\",:=]+:[^/?#@\s'\",]+@", f"{MASK}@"),
        # A query or a fragment is often a token. The next URL of a list begins after a comma.
        (r"(://[^\s'\"?#]*[?#])(?!…)(?:(?!,(?:[a-z]+:|\s|$))[^\s'\"])+", rf"\g<1>{MASK}"),
    )
)
"""The secrets of URLs in a text, each with what is shown instead."""


def printable(text: str) -> str:
    """Return a text without control characters: what is not printable is escaped as in Python.

    Names of devices, files and servers come from elsewhere. They may hold escape sequences, line
    ends, or marks that reverse the direction of writing, and a terminal would obey them.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def shell_word(text: str) -> str:
    """Return a word of a command that people paste: their shell takes it as it is."""
    if sys.platform == "win32":
        if re.fullmatch(r"[\w.:\\/=+-]+", text):
            return text
        # No name of a file has a quotation mark there. Double ones work in both shells, but
        # PowerShell expands some characters in them; single ones are PowerShell's alone.
        if re.fullmatch(r"[\x20-\x7e]+", text) and not re.search(r'[$`"%]', text):
            return f'"{text}"'
        return "'" + re.sub("['\u2018\u2019\u201a\u201b]", r"\g<0>\g<0>", text) + "'"

    return quote(text)


def shortened(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters: the middle of a longer one is left out."""
    if len(text) <= most:
        return text
    # The beginning says what it is. The end of a path or a name tells it from others like it.
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def has_secret(text: str) -> bool:
    """Tell whether a URL in a text has a user, a query or a fragment, and so perhaps a secret."""
    return redacted(text) != text


def redacted(text: str) -> str:
    """Replace users, passwords, queries and fragments of URLs in a text.

    Also those of addresses without a scheme, as a proxy's may be.
    """
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


_PORTS = {"http": 80, "https": 443}


class Secret:
    """A password, token or key; ``url`` is below the host for which it was given.

    It prints as ``***`` in every way that Python has: repr, str, format, a traceback, a log. JSON
    encoders and pickle refuse it. Its text is read in two ways only: ``for_url`` gives it to one
    host, and ``reveal`` marks the places where it leaves this program (a variable of a child, a
    file that only its owner can read).
    """

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
