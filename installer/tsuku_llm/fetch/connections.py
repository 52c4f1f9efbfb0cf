"""The connections below httpcore's pools: every wait on them ends at the deadline.

httpcore's own backend tries the addresses of a host one after the other, waits for the name
server without a limit, and counts a read time-out anew with every byte.
"""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpcore
import httpx
from httpcore._backends.sync import SyncStream  # it has no public way from a socket to a stream

from tsuku_llm.fetch.limits import Limits, Timing
from tsuku_llm.fetch.race import Resolver, in_turns, race
from tsuku_llm.fetch.tls import certificate_error

_SLICE = 0.5
"""Seconds after which a wait looks whether it is still wanted."""

_QUIET = 3.0
"""Seconds of waiting after which people are told what for."""

_GATHERED = 1 << 17
"""Bytes of a body that one read gives at most, where so many have come.

Each connection holds about six times as much, with h11's copies.
"""

_NAP = 0.005
"""Seconds that a body is left to gather, as long as there is more of it to come than one read."""

_HEADER_BYTES = 1 << 18

_NO_MORE = (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLZeroReturnError, ssl.SSLEOFError)
"""Nothing yet, or the end, which the next read sees as well."""


class Watch(threading.local):
    """What the exchange that this thread is in may still use.

    ``tell`` puts a line before people. ``at_proxy`` says that what the thread talks to at the
    moment is the proxy, which has not let it through to the host yet.
    """

    def __init__(self, timing: Timing, limits: Limits, tell: Callable[[str], None]) -> None:
        self.clock = timing.clock
        self.check: Callable[[], None] = lambda: None
        self.deadline = math.inf
        self.at_proxy = False
        self.header_bytes: float = 0
        self.coming = 0
        self.buffer = memoryview(bytearray(_GATHERED))  # one for each thread
        self._limits = limits
        self._tell = tell
        self._began = 0.0
        self._peer = ""

    def begin(self, deadline: float, check: Callable[[], None], peer: str) -> None:
        """Start an exchange with ``peer``, a host or a proxy, up to the answer's headers."""
        self.check = check
        self._began = self.clock()
        self.deadline = min(deadline, self._began + self._limits.answer)
        self.header_bytes = _HEADER_BYTES
        self._peer = peer

    def headers_of(self, response: httpx.Response, deadline: float) -> None:
        """They are through, and say how long the body is, or do not."""
        length = response.headers.get("content-length", "")
        self.deadline = deadline
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

    def ends(self, timeout: float | None) -> float:
        """When a wait has to end that may take so many seconds.

        A SOCKS handshake comes without a number: it has as long as a connection attempt.
        """
        patience = self._limits.connect if timeout is None else timeout
        return min(self.clock() + patience, self.deadline)

    def left(self, ends: float, late: Exception, doing: str = "") -> float:
        """Seconds until ``ends``; raises ``late`` where there are none, and what ``check`` does.

        ``doing`` is what people are told once the exchange has taken some seconds.
        """
        self.check()
        now = self.clock()
        if now >= ends:
            raise late
        if doing and now - self._began >= _QUIET:
            self._tell(doing)
        return ends - now

    def answering(self) -> str:
        """What a wait for the answer is told as; nothing in a body, which shows its progress."""
        return "" if self.in_body else f"waiting for {self._peer} to answer"


class Backend(httpcore.NetworkBackend):
    """TCP connections for one pool, to the address that answers first.

    ``proxy_layers`` is how many times TLS begins on a connection until the host talks instead
    of the proxy: 0 without a proxy, 1 with one, 2 with one that itself speaks TLS.
    """

    def __init__(self, watch: Watch, resolver: Resolver, proxy_layers: int) -> None:
        self._watch = watch
        self._resolver = resolver
        self._proxy_layers = proxy_layers
        self._won: dict[str, socket.AddressFamily] = {}
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
        local_address: str | None = None,  # noqa: ARG002 - none is configured
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - none is configured
    ) -> httpcore.NetworkStream:
        """Look up a host and race its addresses; both count against the same time."""
        self._watch.at_proxy = self._proxy_layers > 0
        ends = self._watch.ends(timeout)

        def left(doing: str, failing: str) -> float:
            late = httpcore.ConnectTimeout(failing)
            return min(self._watch.left(ends, late, doing), _SLICE)

        try:
            found = self._resolver.addresses(
                host, port, lambda: left(f"looking up {host}", "the name server does not answer")
            )
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"the name cannot be resolved: {error}") from error
        addresses = in_turns(found, self._won.get(host))
        several = len(addresses) > 1
        count = f"{len(addresses)} addresses, none answers" if several else "it does not answer"
        failing = f"none of its {len(addresses)} addresses answers" if several else count
        try:
            connection = race(
                addresses,
                self._watch.clock,
                lambda: left(f"connecting to {host} ({count})", failing),
            )
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        self._won[host] = connection.family
        stream = SyncStream(connection)
        self._streams.append(stream)
        return Stream(stream, self._watch, self._proxy_layers)


class Stream(httpcore.NetworkStream):
    """A connection whose reads end at the deadline of the exchange, however they drip.

    It is of no more use after the first failure, whether of a read or of a write.
    """

    def __init__(self, inner: httpcore.NetworkStream, watch: Watch, proxy_layers: int) -> None:
        self._inner = inner
        self._watch = watch
        self._proxy_layers = proxy_layers
        self._failure: Exception | None = None

    def read(  # type: ignore[override]  # h11 takes any bytes-like object
        self, max_bytes: int, timeout: float | None = None
    ) -> bytes | memoryview:
        """Read what has come; in a body more than was asked for, good until the next read."""
        if self._failure:
            raise httpcore.ReadError(str(self._failure)) from self._failure
        self._watch.at_proxy = self._proxy_layers > 0
        ends, late = self._watch.ends(timeout), httpcore.ReadTimeout("the time is up")
        while True:
            left = self._watch.left(ends, late, self._watch.answering())
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

        The next ``read`` raises what goes wrong here. It would not see that by itself: after
        an alert OpenSSL gives the end of the data, and a failed system call may end well the
        next time, in the middle of a record.
        """
        tls, buffer = self._inner.get_extra_info("ssl_object"), self._watch.buffer
        try:
            self._inner.get_extra_info("socket").settimeout(0)
            while size < _GATHERED and (more := tls.read(_GATHERED - size, buffer[size:])):
                size += more
        except _NO_MORE:
            pass
        except OSError as error:
            self._failure = error
        return size

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all of it."""
        self._watch.at_proxy = self._proxy_layers > 0
        late = httpcore.WriteTimeout("the time is up")
        try:
            self._inner.write(buffer, self._watch.left(self._watch.ends(timeout), late))
        except httpcore.WriteError as error:
            self._failure = error  # httpcore goes on to read: the request was not sent, none comes
            raise

    def close(self) -> None:
        """Close the socket."""
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        """Shake hands, with the host or with a proxy. Raises ``TlsError``."""
        behind = max(0, self._proxy_layers - 1)
        self._watch.at_proxy = behind > 0
        late = httpcore.ConnectTimeout("it does not answer in TLS")
        left = self._watch.left(self._watch.ends(timeout), late)
        try:
            inner = self._inner.start_tls(ssl_context, server_hostname, left)
        except httpcore.ConnectTimeout as error:
            raise late from error
        except httpcore.ConnectError as error:
            cause = error.__cause__  # httpcore's pool would cut it off
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
                raise certificate_error(cause, server_hostname or "the server") from cause
            raise
        return Stream(inner, self._watch, behind)

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks of the socket below."""
        return self._inner.get_extra_info(info)
