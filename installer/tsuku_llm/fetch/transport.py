"""Connections for httpx that keep deadlines, and say in our words why they fail.

httpx's own transport has no total deadline (its read time-out starts again with every
byte), tries one address after the other for the full time-out, and fails on proxy
settings of real machines. So the connection pools of httpcore, which it rests on, are
used directly here, with a network backend of our own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import httpcore
import httpx

from tsuku_llm import __version__
from tsuku_llm.errors import BodyError, HostUnreachable, ProxyError
from tsuku_llm.fetch.addresses import host_of, shown
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.limits import Limits, Timing
from tsuku_llm.fetch.proxies import proxy_for
from tsuku_llm.fetch.tls import certificate_error, client_context

_SLICE = 0.5
"""Seconds after which a wait looks whether it is still wanted."""

_FIRST_TRY = 0.2
"""Part of the time-out for an address when there are others: a black hole must cost little."""

_HEADER_BYTES = 1 << 18

_GATHERED = 1 << 17
"""Bytes of a body that one read gives at most, where so many have come.

Each connection holds about six times as much, with h11's copies.
"""

_NAP = 0.005
"""Seconds that a body is left to gather, as long as there is more of it to come than one read."""

_OFFLINE_TRIES = 2

_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol)


def make_client(environ: Mapping[str, str], limits: Limits, timing: Timing) -> httpx.Client:
    """The client of a run. Requests have the extensions ``deadline`` and ``check``.

    Raises ``TlsError`` for certificates in the environment that do not exist.
    """
    return httpx.Client(
        transport=_Transport(environ, limits, Watch(timing.clock)),
        headers={"User-Agent": f"tsuku-llm/{__version__}", "Accept-Encoding": "identity"},
        timeout=httpx.Timeout(limits.silence, connect=limits.connect, pool=None),
        trust_env=False,
    )


class Watch(threading.local):
    """What the exchange that this thread is in may still use."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.check: Callable[[], None] = lambda: None
        self.deadline = math.inf
        self.header_bytes: float = 0
        self.coming = 0
        self.buffer = memoryview(bytearray(_GATHERED))  # one for each thread

    def headers_of(self, response: httpx.Response) -> None:
        """They are through, and say how long the body is, or do not."""
        length = response.headers.get("content-length", "")
        self.header_bytes = math.inf
        self.coming = int(length) if length.isdecimal() else 0

    @property
    def in_body(self) -> bool:
        """Whether the headers are through."""
        return self.header_bytes == math.inf

    def received(self, size: int) -> None:
        """Count what came; before the headers are through, there is an end to it."""
        self.coming -= size
        self.header_bytes -= size
        if self.header_bytes < 0:
            raise httpcore.RemoteProtocolError("the headers have no end")


class _Transport(httpx.BaseTransport):
    def __init__(self, environ: Mapping[str, str], limits: Limits, watch: Watch) -> None:
        self._environ = environ
        self._limits = limits
        self._watch = watch
        self._backend = _Backend(watch)
        self._context = client_context(environ)
        self._pools: dict[str | None, httpcore.ConnectionPool] = {}
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        proxy = proxy_for(url.scheme, url.host, port, self._environ)
        pool = self._pool(proxy)
        deadline = request.extensions["deadline"]
        self._watch.check = request.extensions["check"]
        self._watch.deadline = min(deadline, self._watch.clock() + self._limits.answer)
        self._watch.header_bytes = _HEADER_BYTES
        with _failures(str(url), proxy):
            answer = pool.handle_request(_to_core(request))
        response = httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer, str(url), proxy),
            extensions=answer.extensions,
        )
        self._watch.deadline = deadline
        self._watch.headers_of(response)
        return response

    def _pool(self, proxy: str | None) -> httpcore.ConnectionPool:
        with self._lock:
            if proxy not in self._pools:
                self._pools[proxy] = self._new_pool(proxy)
            return self._pools[proxy]

    def _new_pool(self, proxy: str | None) -> httpcore.ConnectionPool:
        options: dict[str, Any] = {
            "ssl_context": self._context,
            "network_backend": self._backend,
            "max_connections": None,
            "keepalive_expiry": 15.0,
        }
        if proxy is None:
            return httpcore.ConnectionPool(**options)
        url = httpx.URL(proxy)
        options["proxy_url"] = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=b"/"
        )
        if url.username or url.password:
            options["proxy_auth"] = (url.username.encode(), url.password.encode())
        if url.scheme.startswith("socks5"):
            return _socks(options)
        if url.scheme == "https":
            options["proxy_ssl_context"] = client_context(self._environ)
        return httpcore.HTTPProxy(**options)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._backend.close()


def _socks(options: dict[str, Any]) -> httpcore.SOCKSProxy:
    if importlib.util.find_spec("socksio") is None:
        raise ProxyError(
            "the environment names a SOCKS proxy, and support for those is not installed",
            hint="pip install 'tsuku-llm[socks]', or unset ALL_PROXY and HTTPS_PROXY",
        )
    return httpcore.SOCKSProxy(**options)


def _refusals() -> tuple[type[Exception], ...]:
    """What a proxy raises that does not want, or is none: httpcore lets socksio's errors pass."""
    try:
        from socksio import SOCKSError  # noqa: PLC0415
    except ImportError:
        return (httpcore.ProxyError,)
    return (httpcore.ProxyError, SOCKSError)


def _to_core(request: httpx.Request) -> httpcore.Request:
    url = request.url
    return httpcore.Request(
        method=request.method,
        url=httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        ),
        headers=request.headers.raw,
        content=request.stream,
        extensions=request.extensions,
    )


class _Body(httpx.SyncByteStream):
    """An answer's body."""

    def __init__(self, answer: httpcore.Response, url: str, proxy: str | None) -> None:
        self._answer = answer
        self._url = url
        self._proxy = proxy

    def __iter__(self) -> Iterator[bytes]:
        with _failures(self._url, self._proxy):
            yield from self._answer.iter_stream()

    def close(self) -> None:
        with _failures(self._url, self._proxy):
            self._answer.close()


class _Backend(httpcore.NetworkBackend):
    """TCP connections over IPv6 or IPv4, whichever answers."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._inner = httpcore.SyncBackend()
        self._good: set[socket.AddressFamily] = set()
        self._streams: list[httpcore.NetworkStream] = []

    def close(self) -> None:
        """Close every connection: httpcore forgets those that a SOCKS proxy refused."""
        for stream in self._streams:
            stream.close()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Try every address of a host: briefly if there are others, then with patience."""
        addresses = self._addresses(host, port)
        patience = math.inf if timeout is None else timeout
        rounds = [_FIRST_TRY * patience, patience] if len(addresses) > 1 else [patience]
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for seconds in rounds:
            for family, address in addresses:
                self._watch.check()
                try:
                    stream = self._inner.connect_tcp(
                        address, port, seconds, local_address, socket_options
                    )
                except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                    failure = error
                else:
                    self._good.add(family)
                    self._streams.append(stream)
                    return _Stream(stream, self._watch)
            if isinstance(failure, httpcore.ConnectError):
                break
        raise failure

    def _addresses(self, host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"the name cannot be resolved: {error}") from error
        unique = dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found)
        return sorted(unique, key=lambda item: item[0] not in self._good)


class _Stream(httpcore.NetworkStream):
    """A connection whose reads end at the deadline of the exchange, however they drip."""

    def __init__(self, inner: httpcore.NetworkStream, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    def read(  # type: ignore[override]  # h11 takes any bytes-like object
        self, max_bytes: int, timeout: float | None = None
    ) -> bytes | memoryview:
        ends = self._ends(timeout)
        while True:
            left = self._left(ends, httpcore.ReadTimeout)
            try:
                data = self._inner.read(max_bytes, min(left, _SLICE))
            except httpcore.ReadTimeout:
                continue
            gathered = self._with_more(data) if data and self._watch.in_body else data
            self._watch.received(len(gathered))
            return gathered

    def _with_more(self, data: bytes) -> bytes | memoryview:
        """It, and what of the body has come already behind it: more than was asked for.

        A read from TLS gives one record, 16 KiB at most, and each answer of ``read`` costs
        many times what a further record does. It is good until the next ``read``: h11 copies
        what it is given.
        """
        if self._inner.get_extra_info("ssl_object") is None:
            return data
        self._watch.buffer[: len(data)] = data
        size = self._gather(len(data))
        if size < _GATHERED <= self._watch.coming - size:
            time.sleep(_NAP)
            size = self._gather(size)
        return self._watch.buffer[:size]

    def _gather(self, size: int) -> int:
        """Add what has come to so many bytes in the buffer; how many there are then.

        What goes wrong here goes wrong again in the next ``read``, which tells it.
        """
        tls, buffer = self._inner.get_extra_info("ssl_object"), self._watch.buffer
        with contextlib.suppress(OSError):  # ssl's "nothing yet" is one, too
            self._inner.get_extra_info("socket").settimeout(0)
            while size < _GATHERED and (more := tls.read(_GATHERED - size, buffer[size:])):
                size += more
        return size

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._left(self._ends(timeout), httpcore.WriteTimeout))

    def _ends(self, timeout: float | None) -> float:
        patience = math.inf if timeout is None else timeout
        return min(self._watch.clock() + patience, self._watch.deadline)

    def _left(self, ends: float, error: type[Exception]) -> float:
        self._watch.check()
        left = ends - self._watch.clock()
        if left <= 0:
            raise error("the time is up")
        return left

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        try:
            inner = self._inner.start_tls(ssl_context, server_hostname, timeout)
        except httpcore.ConnectError as error:
            cause = error.__cause__  # httpcore's pool would cut it off
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
                raise certificate_error(cause, server_hostname or "the server") from cause
            raise
        return _Stream(inner, self._watch)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


@contextlib.contextmanager
def _failures(url: str, proxy: str | None) -> Iterator[None]:
    """Turn httpcore's errors into ours; those that may pass are ``Transient``."""
    host = host_of(url)
    try:
        yield
    except _refusals() as error:
        raise ProxyError(
            f"the proxy refused the connection to {host}",
            facts=(f"proxy: {shown(proxy or '')}", f"it said: {str(error)[:200]}"),
            hint="check the proxy's setting and credentials, or ask for access to this host",
        ) from error
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        raise _connect_failure(error, host, proxy) from error
    except (httpcore.TimeoutException, httpcore.PoolTimeout) as error:
        raise Transient(
            HostUnreachable(
                f"{host} does not answer",
                facts=(f"url: {shown(url)}",),
                hint="check the connection; a partial download is kept and resumed",
            )
        ) from error
    except (*_BROKEN, ValueError) as error:  # ValueError: a length of 5,000 digits
        raise Transient(
            BodyError(
                f"the answer of {host} broke off or is no proper HTTP",
                facts=(f"url: {shown(url)}", f"reason: {str(error)[:200]}"),
                hint="check the connection; a partial download is kept and resumed",
            )
        ) from error


def _connect_failure(error: Exception, host: str, proxy: str | None) -> Exception:
    reason = "it does not answer" if isinstance(error, httpcore.ConnectTimeout) else str(error)
    if proxy:
        return ProxyError(
            f"the proxy for {host} cannot be reached",
            facts=(f"proxy: {shown(proxy)}", f"reason: {reason}"),
            hint="check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or unset them",
        )
    return Transient(
        HostUnreachable(
            f"{host} cannot be reached",
            facts=(f"reason: {reason}",),
            hint="check the connection, or set a mirror: tsuku-llm config set llm.mirror URL",
        ),
        tries=_OFFLINE_TRIES,
    )
