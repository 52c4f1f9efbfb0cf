"""Connections for httpx that keep deadlines, and say in our words why they fail.

httpx's own transport has no total deadline (its read time-out starts again with every
byte), tries one address after the other for the full time-out, and fails on proxy
settings of real machines. So the connection pools of httpcore, which it rests on, are
used directly here, with the network backend of ``connections``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpcore
import httpx

from tsuku_llm import __version__
from tsuku_llm.errors import BodyError, HostUnreachable, ProxyError
from tsuku_llm.fetch.addresses import host_of, shown
from tsuku_llm.fetch.connections import Backend, Watch
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.limits import Limits, Timing
from tsuku_llm.fetch.proxies import proxy_for
from tsuku_llm.fetch.race import Resolver
from tsuku_llm.fetch.tls import client_context

_OFFLINE_TRIES = 2

_PROXY_HINT = "check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or unset them"

_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol)


def make_client(
    environ: Mapping[str, str], limits: Limits, timing: Timing, on_wait: Callable[[str], None]
) -> httpx.Client:
    """Make the client of a run. Requests have the extensions ``deadline`` and ``check``.

    ``on_wait`` is told once, by any thread, what a request has been waiting for.
    Raises ``TlsError`` for certificates in the environment that do not exist.
    """
    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told:  # two threads in the same moment may both tell it: harmless
            told.add(text)
            on_wait(text)

    return httpx.Client(
        transport=_Transport(environ, Watch(timing, limits, tell)),
        headers={"User-Agent": f"tsuku-llm/{__version__}", "Accept-Encoding": "identity"},
        timeout=httpx.Timeout(limits.silence, connect=limits.connect, pool=None),
        trust_env=False,
    )


class _Transport(httpx.BaseTransport):
    """httpcore's pools, one for each proxy and one for direct connections.

    ``_answered`` has the hosts and proxies that gave an answer in this run. One that never
    did is not asked again after a time-out: others may answer, and people wait.
    """

    def __init__(self, environ: Mapping[str, str], watch: Watch) -> None:
        self._environ = environ
        self._watch = watch
        self._resolver = Resolver()
        self._backends: list[Backend] = []
        self._context = client_context(environ)
        self._pools: dict[str | None, httpcore.ConnectionPool] = {}
        self._answered: set[str] = set()
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        proxy = proxy_for(url.scheme, url.host, port, self._environ)
        pool = self._pool(proxy)
        deadline = request.extensions["deadline"]
        asked = proxy or str(url)
        failures = _Failures(str(url), proxy, self._watch, known=host_of(asked) in self._answered)
        self._watch.begin(deadline, request.extensions["check"], host_of(asked))
        with failures.told():
            answer = pool.handle_request(_to_core(request))
        self._answered.add(host_of(asked))
        response = httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer, failures),
            extensions=answer.extensions,
        )
        self._watch.headers_of(response, deadline)
        return response

    def _pool(self, proxy: str | None) -> httpcore.ConnectionPool:
        with self._lock:
            if proxy not in self._pools:
                self._pools[proxy] = self._new_pool(proxy)
            return self._pools[proxy]

    def _new_pool(self, proxy: str | None) -> httpcore.ConnectionPool:
        url = httpx.URL(proxy or "")
        layers = 0 if proxy is None else 2 if url.scheme == "https" else 1
        self._backends.append(Backend(self._watch, self._resolver, layers))
        options: dict[str, Any] = {
            "ssl_context": self._context,
            "network_backend": self._backends[-1],
            "max_connections": None,
            "keepalive_expiry": 15.0,
        }
        if proxy is None:
            return httpcore.ConnectionPool(**options)
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
        for backend in self._backends:
            backend.close()


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
    """What an exchange's failures mean; ``known`` tells that this host or proxy has answered."""

    def __init__(self, url: str, proxy: str | None, watch: Watch, *, known: bool) -> None:
        self._url = url
        self._host = host_of(url)
        self._proxy = proxy
        self._watch = watch
        self._known = known

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Turn httpcore's errors into ours; those that may pass are ``Transient``."""
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
        """Whether it is the proxy that failed, as the host has not had its turn."""
        return self._watch.at_proxy and not self._watch.in_body

    @property
    def _way(self) -> tuple[str, ...]:
        return (f"through the proxy: {shown(self._proxy)}",) if self._proxy else ()

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
            tries = None if self._known else 1
        return Transient(
            HostUnreachable(
                f"{self._host} cannot be reached",
                facts=(reason, *self._way),
                hint="check the connection, or set a mirror: tsuku-llm config set llm.mirror URL",
            ),
            tries=tries,
        )

    def _silence(self) -> Exception:
        if self._before_host:
            error = ProxyError(
                f"the proxy {host_of(self._proxy or '')} does not answer",
                facts=(f"it was asked for: {self._host}", f"proxy: {shown(self._proxy or '')}"),
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
                    f"the answer of the proxy {host_of(self._proxy or '')} broke off"
                    " or is no proper HTTP",
                    facts=(f"it was asked for: {self._host}", f"reason: {reason}"),
                    hint=_PROXY_HINT,
                )
            )
        return Transient(
            BodyError(
                f"the answer of {self._host} broke off or is no proper HTTP",
                facts=(f"url: {shown(self._url)}", f"reason: {reason}", *self._way),
                hint="check the connection; a partial download is kept and resumed",
            )
        )
