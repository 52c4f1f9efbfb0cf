"""URLs: how they are printed, what files they name, which mirrors to ask. Pure."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit, urlunsplit

from tsuku_llm.errors import ConfigError
from tsuku_llm.safe_text import printable

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


def sources(url: str, mirrors: tuple[str, ...]) -> tuple[str, ...]:
    """List the URLs to try for an artifact, in order.

    Each mirror comes first, with the artifact's file name, then the artifact's own URL.
    Raises ``ConfigError`` for a mirror that is not an ``https:``, ``http:`` or ``file:`` URL
    (plain ``http:`` is allowed, because nothing that a mirror sends is trusted).
    """
    return (*(_on_mirror(mirror, file_name(url)) for mirror in mirrors), url)


def _on_mirror(mirror: str, name: str) -> str:
    try:
        parts = urlsplit(mirror)
    except ValueError:
        parts = urlsplit("")  # it has no scheme, so the next check refuses the mirror
    if parts.scheme not in ("https", "http", "file") or (
        parts.scheme != "file" and not parts.hostname
    ):
        raise ConfigError(
            "a mirror is not a URL that can be used",
            facts=(f"llm.mirror: {shown(mirror)}",),
            hint="give an https:, http: or file: URL of a folder",
        )
    path = f"{parts.path.rstrip('/')}/{quote(name)}"
    # The query stays: a mirror may need a token there.
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
