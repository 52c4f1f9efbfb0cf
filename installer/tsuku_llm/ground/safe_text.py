"""Texts from elsewhere, made safe to show: no control characters, no secrets of URLs. Pure."""

from __future__ import annotations

import re
import sys
from shlex import quote

from tsuku_llm.ground.secret import MASK

URL_USER = r"://[^/?#]*@"
"""The pattern of a user and password in a URL; "/", "?" and "#" end the host part."""

_SECRETS = tuple(
    (re.compile(pattern), shown)
    for pattern, shown in (
        (URL_USER, f"://{MASK}@"),
        # A password in which "/", "?" or "#" is not escaped: what follows the colon is no port.
        (r"://[^/?#@\s'\",:]*:(?![0-9]*(?:[/?#\s'\",]|$))[^\s'\"]*@", f"://{MASK}@"),
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
