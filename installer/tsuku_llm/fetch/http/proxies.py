"""The choice of a proxy for a request, by the environment variables that curl reads. Pure."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from tsuku_llm.ground.errors import ProxyError

_SCHEMES = ("http", "socks5", "socks5h")


def proxy_for(scheme: str, host: str, port: int, environ: Mapping[str, str]) -> str | None:
    """Choose the proxy's URL for a request; None means a direct connection.

    The request's scheme selects ``HTTPS_PROXY`` or ``HTTP_PROXY``, else ``ALL_PROXY`` counts.
    Lower case wins. Upper-case ``HTTP_PROXY`` is ignored under CGI, where a client can set it
    (httpoxy). A proxy without a scheme is an http one.

    Raises ``ProxyError`` for a setting that is not a proxy's URL.
    """
    names = [f"{scheme}_proxy", "all_proxy"]
    name, value = next(
        ((name, value) for name in names if (value := _setting(environ, name))), ("", "")
    )
    if not value or _excluded(host, port, _setting(environ, "no_proxy")):
        return None
    return _checked(name, value)


def _setting(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if value is None and not (name == "http_proxy" and "REQUEST_METHOD" in environ):
        value = environ.get(name.upper())
    return (value or "").strip()


def _checked(name: str, value: str) -> str:
    url = value if "://" in value else f"http://{value}"
    try:
        parts = urlsplit(url)
        valid = bool(parts.scheme in _SCHEMES and parts.hostname and parts.port != 0)
    except ValueError:
        valid = False
    if not valid:
        raise ProxyError(
            f"{name.upper()} is not a proxy that can be used",
            facts=(f"allowed: {', '.join(f'{scheme}://host:port' for scheme in _SCHEMES)}",),
            hint=f"correct or unset {name.upper()}; the proxy for https: is usually an http: one",
        )
    return url


def _excluded(host: str, port: int, no_proxy: str) -> bool:
    """Check a host against NO_PROXY: entries end with a comma or, as for curl, a blank."""
    return any(_matches(host.strip("[]"), port, entry) for entry in re.split(r"[,\s]+", no_proxy))


def _matches(host: str, port: int, entry: str) -> bool:
    """Return whether one entry of NO_PROXY covers a host; an invalid entry covers none."""
    entry = entry.lower()
    if entry == "*":
        return True
    # ValueError: the entry or the host is a name and not an address.
    with contextlib.suppress(ValueError):
        network = ipaddress.ip_network(entry.strip("[]"), strict=False)
        return ipaddress.ip_address(host) in network
    name, wanted = _host_and_port(entry)
    # "example.org", ".example.org" and "*.example.org" all cover the host and its subdomains.
    name = name.removeprefix("*").strip(".")
    if not name or wanted not in (None, port):
        return False
    return host == name or host.endswith(f".{name}")


def _host_and_port(entry: str) -> tuple[str, int | None]:
    with contextlib.suppress(ValueError):
        parts = urlsplit(entry if "://" in entry else f"//{entry}")
        return parts.hostname or "", parts.port
    return "", None
