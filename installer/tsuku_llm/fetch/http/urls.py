"""URLs: how they are printed, and what files they name. Pure."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit, urlunsplit

from tsuku_llm.ground.safe_text import printable

PACKAGE_SCHEME = "pkg"


def shown(url: str) -> str:
    """Make a URL safe to print: remove user, password, query and fragment.

    Release hosts redirect to URLs whose query is a credential.
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "(a malformed URL)"
    text = urlunsplit((parts.scheme, host, parts.path, "", "")) + ("?…" if parts.query else "")
    return printable(text)


def scheme_of(url: str) -> str:
    """Get the scheme of a URL in lower case; "" without one."""
    return url.partition(":")[0].lower() if ":" in url else ""


def is_http(url: str) -> bool:
    """Return whether the URL is for an HTTP server; otherwise it is a file or a pip package."""
    return scheme_of(url) not in (PACKAGE_SCHEME, "file")


def host_of(url: str) -> str:
    """Get the host and port of a URL, for messages."""
    return urlsplit(shown(url)).netloc or shown(url)


def file_name(url: str) -> str:
    """Get the name of the file that an artifact's URL names.

    For a malformed URL this is the text after the last slash.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.rpartition("/")[2]
    if parts.scheme == PACKAGE_SCHEME:
        for item in parts.query.split("&"):
            key, _, value = item.partition("=")
            if key == "file_name":
                return unquote(value)
    return unquote(parts.path.rsplit("/", 1)[-1])
