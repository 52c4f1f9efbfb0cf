"""The transport for httpx: it keeps deadlines and turns httpcore's errors into ours.

httpx's own transport lacks a total deadline: its read timeout restarts with every byte. It
tries one address after the other for the full timeout. It fails on proxy settings of real
machines. So this module directly uses the connection pools of httpcore, on which httpx is
built, with the network backend of ``connections``, and chooses the proxy as the environment says.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx

from tsuku_llm import __version__
from tsuku_llm.fetch.http.connections import Backend, ExchangeDeadline
from tsuku_llm.fetch.http.limits import Limits, Timing, Transient
from tsuku_llm.fetch.http.race import Resolver
from tsuku_llm.fetch.http.tls import client_context
from tsuku_llm.fetch.http.urls import host_of, shown
from tsuku_llm.ground.errors import BodyError, HostUnreachable, ProxyError

_OFFLINE_TRIES = 2
"""Attempts after a failed connection: usually the machine is offline, and retries are useless."""

_PROXY_HINT = "check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or unset them"

_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol)


def make_client(
    environ: Mapping[str, str], limits: Limits, timing: Timing, on_wait: Callable[[str], None]
) -> httpx.Client:
    """Make the client of a run. Requests must have the extensions ``deadline`` and ``check``.

    ``on_wait`` gets each reason for a wait once, from any thread. Raises ``TlsError`` if the
    environment names certificates that do not exist.
    """
    told: set[str] = set()

    def tell(text: str) -> None:
        # No lock: two threads at the same moment may both tell it, which is harmless.
        if text not in told:
            told.add(text)
            on_wait(text)

    exchange = ExchangeDeadline(timing, limits, tell)
    return httpx.Client(
        transport=_Transport(environ, client_context(environ), exchange),
        # identity: the digests are of the files as they are, and ranges need the same bytes.
        headers={"User-Agent": f"tsuku-llm/{__version__}", "Accept-Encoding": "identity"},
        timeout=httpx.Timeout(limits.silence, connect=limits.connect, pool=None),
        trust_env=False,  # no .netrc; proxies and certificates are read here and in tls
    )


class _Transport(httpx.BaseTransport):
    """httpcore's pools, one for each proxy and one for direct connections.

    ``_answered`` has the hosts and proxies that gave an answer in this run. If a connection
    or a proxy times out, only those are tried again: another source may answer, and the user
    is waiting. All threads of a run share the transport.
    """

    def __init__(
        self, environ: Mapping[str, str], context: ssl.SSLContext, exchange: ExchangeDeadline
    ) -> None:
        self._environ = environ
        self._context = context
        self._exchange = exchange
        self._resolver = Resolver()
        self._backends: list[Backend] = []
        self._pools: dict[str | None, httpcore.ConnectionPool] = {}
        self._answered: set[str] = set()  # single operations only, which are atomic
        self._lock = threading.Lock()  # guards `_pools` and `_backends`

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        proxy = proxy_for(url.scheme, url.host, port, self._environ)
        pool = self._pool(proxy)
        deadline = request.extensions["deadline"]
        asked = proxy or str(url)
        failures = _Failures(
            str(url), proxy, self._exchange, known=host_of(asked) in self._answered
        )
        # Held for this thread only; the backend below reads them there.
        self._exchange.begin(deadline, request.extensions["check"], host_of(asked))
        asking = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with failures.told():
            answer = pool.handle_request(asking)
        self._answered.add(host_of(asked))
        response = httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer, failures),
            extensions=answer.extensions,
        )
        self._exchange.headers_complete(deadline)
        return response

    def _pool(self, proxy: str | None) -> httpcore.ConnectionPool:
        # Two threads may come here at once. Without the lock each could make a pool for the
        # same proxy, and one of them would never be closed.
        with self._lock:
            if pool := self._pools.get(proxy):
                return pool
            url = httpx.URL(proxy or "")
            backend = Backend(self._exchange, self._resolver, to_proxy=proxy is not None)
            self._backends.append(backend)
            options: dict[str, Any] = {
                "ssl_context": self._context,
                "network_backend": backend,
                "max_connections": None,  # Network counts them; a pool's limit would wait unseen
                "keepalive_expiry": 15.0,
            }
            kind: type[httpcore.ConnectionPool] = httpcore.ConnectionPool
            if proxy is not None:
                kind = httpcore.HTTPProxy
                options["proxy_url"] = httpcore.URL(
                    scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=b"/"
                )
            if url.scheme.startswith("socks5"):
                if importlib.util.find_spec("socksio") is None:
                    raise ProxyError(
                        "the environment names a SOCKS proxy, and support for those is not "
                        "installed",
                        hint="pip install 'tsuku-llm[socks]', or unset ALL_PROXY and HTTPS_PROXY",
                    )
                kind = httpcore.SOCKSProxy
            if url.username or url.password:
                options["proxy_auth"] = (url.username.encode(), url.password.encode())
            pool = self._pools[proxy] = kind(**options)
            return pool

    def close(self) -> None:
        # Only the network closes us, when no download is left: no lock is needed.
        for pool in self._pools.values():
            pool.close()
        for backend in self._backends:
            backend.close()


def _refusals() -> tuple[type[Exception], ...]:
    """List the errors of a proxy that refuses or is not a proxy.

    httpcore does not translate the errors of socksio.
    """
    try:
        from socksio import SOCKSError
    except ImportError:
        return (httpcore.ProxyError,)
    return (httpcore.ProxyError, SOCKSError)


class _Body(httpx.SyncByteStream):
    """The body of an answer, with our errors instead of httpcore's."""

    def __init__(self, answer: httpcore.Response, failures: _Failures) -> None:
        self._answer = answer
        self._failures = failures

    def __iter__(self) -> Iterator[bytes]:
        with self._failures.told():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        with self._failures.told():
            self._answer.close()


class _Failures:
    """The meaning of one exchange's errors; ``known``: this host or proxy has answered before."""

    def __init__(
        self, url: str, proxy: str | None, exchange: ExchangeDeadline, *, known: bool
    ) -> None:
        self._url = url
        self._host = host_of(url)
        self._proxy = proxy
        self._way = (f"through the proxy: {shown(proxy)}",) if proxy else ()
        self._exchange = exchange
        self._known = known

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Turn httpcore's errors into ours; ``Transient`` if a retry may help."""
        try:
            yield
        except _refusals() as error:
            raise ProxyError(
                f"the proxy refused the connection to {self._host}",
                facts=(f"proxy: {shown(self._proxy or '')}", f"it said: {str(error)[:200]}"),
                hint="check the proxy's setting and credentials, or ask for access to this host",
            ) from error
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            raise self._no_connection(error) from error
        except (httpcore.TimeoutException, httpcore.PoolTimeout) as error:
            raise self._silence() from error
        except (*_BROKEN, ValueError) as error:  # ValueError: a length of 5,000 digits
            raise self._broken(str(error)[:200]) from error

    @property
    def _before_host(self) -> bool:
        """Whether the proxy failed, because the host is not connected yet."""
        return self._exchange.at_proxy and not self._exchange.in_body

    def _no_connection(self, error: Exception) -> Exception:
        reason = f"reason: {error}"
        if self._before_host:
            return ProxyError(
                f"the proxy for {self._host} cannot be reached",
                facts=(f"proxy: {shown(self._proxy or '')}", reason),
                hint=_PROXY_HINT,
            )
        tries: int | None = _OFFLINE_TRIES
        if isinstance(error, httpcore.ConnectTimeout):
            # The user has waited the full timeout. Without an earlier answer, try other sources.
            tries = None if self._known else 1
        return Transient(
            HostUnreachable(
                f"{self._host} cannot be reached",
                facts=(reason, *self._way),
                hint="check the connection",
            ),
            tries=tries,
            url=shown(self._url),
        )

    def _silence(self) -> Exception:
        if self._before_host:
            error = ProxyError(
                f"the proxy {host_of(self._proxy or '')} does not answer",
                facts=(f"requested host: {self._host}", f"proxy: {shown(self._proxy or '')}"),
                hint=_PROXY_HINT,
            )
            return Transient(error) if self._known else error
        return Transient(
            HostUnreachable(
                f"{self._host} does not answer",
                facts=(f"url: {shown(self._url)}", *self._way),
                hint="check the connection; a partial download is kept and resumed",
            )
        )

    def _broken(self, reason: str) -> Exception:
        if self._before_host:
            return Transient(
                ProxyError(
                    f"the answer of the proxy {host_of(self._proxy or '')} is incomplete"
                    " or not valid HTTP",
                    facts=(f"requested host: {self._host}", f"reason: {reason}"),
                    hint=_PROXY_HINT,
                )
            )
        return Transient(
            BodyError(
                f"the answer of {self._host} is incomplete or not valid HTTP",
                facts=(f"url: {shown(self._url)}", f"reason: {reason}", *self._way),
                hint="check the connection; a partial download is kept and resumed",
            )
        )


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
    # Entries of NO_PROXY end with a comma or, as for curl, a blank.
    excluded = re.split(r"[,\s]+", _setting(environ, "no_proxy"))
    if not value or any(_matches(host.strip("[]"), port, entry) for entry in excluded):
        return None
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


def _setting(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if value is None and not (name == "http_proxy" and "REQUEST_METHOD" in environ):
        value = environ.get(name.upper())
    return (value or "").strip()


def _matches(host: str, port: int, entry: str) -> bool:
    """Return whether one entry of NO_PROXY covers a host; an invalid entry covers none."""
    entry = entry.lower()
    if entry == "*":
        return True
    # ValueError: the entry or the host is a name and not an address.
    with contextlib.suppress(ValueError):
        network = ipaddress.ip_network(entry.strip("[]"), strict=False)
        return ipaddress.ip_address(host) in network
    name, wanted = "", None
    with contextlib.suppress(ValueError):
        parts = urlsplit(entry if "://" in entry else f"//{entry}")
        name, wanted = parts.hostname or "", parts.port
    # "example.org", ".example.org" and "*.example.org" all cover the host and its subdomains.
    name = name.removeprefix("*").strip(".")
    if not name or wanted not in (None, port):
        return False
    return host == name or host.endswith(f".{name}")
