"""The connections below httpcore's pools: every wait on them ends at the deadline.

httpcore's own backend does not do that. It tries the addresses of a host one after the
other, waits for the name server without a limit, and restarts the read timeout with every
byte.
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
"""Seconds after which a wait checks whether its request was cancelled."""

_QUIET = 3.0
"""Seconds of waiting after which the user is told the reason."""

_GATHERED = 1 << 17
"""Bytes of a body that one read returns at most, if that many have arrived.

Each connection uses about six times as much memory, with h11's copies.
"""

_NAP = 0.005
"""Seconds to let more of a body arrive, while more is missing than one read can return."""

_HEADER_BYTES = 1 << 18
"""Bytes that may arrive before the end of an answer's headers."""

_NO_MORE = (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLZeroReturnError, ssl.SSLEOFError)
"""No data yet, or the end of the data, which the next read reports as well."""


class Watch(threading.local):
    """The time and bytes that this thread's current exchange may still use.

    ``tell`` shows a line to the user. ``at_proxy``: the thread still talks to the proxy,
    which has not yet connected it to the host.
    """

    def __init__(self, timing: Timing, limits: Limits, tell: Callable[[str], None]) -> None:
        # threading.local calls this again in each thread that uses the object. So every thread
        # has these attributes for itself, and none of them needs a lock.
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
        # Until the headers are complete, the shorter of the two limits holds.
        self.deadline = min(deadline, self._began + self._limits.answer)
        self.header_bytes = _HEADER_BYTES
        self._peer = peer

    def headers_of(self, response: httpx.Response, deadline: float) -> None:
        """Note that the headers are complete, and how long the body is, if they say so."""
        length = response.headers.get("content-length", "")
        self.deadline = deadline  # a body has more time than the headers
        self.header_bytes = math.inf  # see `in_body`
        self.coming = int(length) if length.isdecimal() else 0

    @property
    def in_body(self) -> bool:
        """Whether the headers are complete."""
        return self.header_bytes == math.inf

    def received(self, size: int) -> None:
        """Count received bytes; raise if the headers are longer than allowed."""
        self.coming -= size
        self.header_bytes -= size
        if self.header_bytes < 0:
            raise httpcore.RemoteProtocolError("the headers are too long")

    def ends(self, timeout: float | None) -> float:
        """Compute when a wait of at most ``timeout`` seconds must end.

        httpcore gives no timeout for a SOCKS handshake: it gets that of a connection attempt.
        """
        patience = self._limits.connect if timeout is None else timeout
        return min(self.clock() + patience, self.deadline)

    def left(self, ends: float, late: Exception, doing: str = "") -> float:
        """Return the seconds until ``ends``; raise ``late`` after that time.

        Also raises what ``check`` raises. ``doing`` is shown to the user once the exchange
        has taken some seconds.
        """
        self.check()  # another thread may have stopped the network or this lane
        now = self.clock()
        if now >= ends:
            raise late
        if doing and now - self._began >= _QUIET:
            self._tell(doing)
        return ends - now

    def answering(self) -> str:
        """Describe a wait for the answer; "" during a body, which has a progress bar."""
        return "" if self.in_body else f"waiting for {self._peer} to answer"


class Backend(httpcore.NetworkBackend):
    """TCP connections for one pool, to the address that answers first.

    ``proxy_layers`` counts the TLS handshakes of a connection until it reaches the host. It
    is 0 without a proxy, 1 with a proxy, 2 with a proxy that itself speaks TLS.
    """

    def __init__(self, watch: Watch, resolver: Resolver, proxy_layers: int) -> None:
        self._watch = watch
        self._resolver = resolver
        self._proxy_layers = proxy_layers
        # All threads that download share these two. Each use is one dict or list operation,
        # which Python makes atomic, so there is no lock.
        self._won: dict[str, socket.AddressFamily] = {}
        self._streams: list[httpcore.NetworkStream] = []

    def close(self) -> None:
        """Close every connection: httpcore forgets those that a SOCKS proxy refused."""
        # The network closes its client when no download uses it: no thread adds a stream now.
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
        """Look up a host and race its addresses; both together have one time limit."""
        self._watch.at_proxy = self._proxy_layers > 0
        ends = self._watch.ends(timeout)

        def left(doing: str, failing: str) -> float:
            late = httpcore.ConnectTimeout(failing)
            # Short waits: each one checks first whether another thread has stopped us.
            return min(self._watch.left(ends, late, doing), _SLICE)

        try:
            found = self._resolver.addresses(
                host, port, lambda: left(f"looking up {host}", "the name server does not answer")
            )
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"the name cannot be resolved: {error}") from error
        # Begin with the family that won before: a dead IPv6 route then costs its delay once.
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
        self._won[host] = connection.family  # another thread may overwrite it: it is only a hint
        stream = SyncStream(connection)
        self._streams.append(stream)
        return Stream(stream, self._watch, self._proxy_layers)


class Stream(httpcore.NetworkStream):
    """A connection whose reads end at the exchange's deadline, even if bytes drip in slowly.

    It cannot be used after its first failed read or write. One thread uses it at a time:
    its pool lends it to one request. A later request may come from another thread, and then
    that thread's values of the ``Watch`` count.
    """

    def __init__(self, inner: httpcore.NetworkStream, watch: Watch, proxy_layers: int) -> None:
        self._inner = inner
        self._watch = watch
        self._proxy_layers = proxy_layers
        self._failure: Exception | None = None

    def read(  # type: ignore[override]  # h11 takes any bytes-like object
        self, max_bytes: int, timeout: float | None = None
    ) -> bytes | memoryview:
        """Read what has arrived; in a body more than ``max_bytes``.

        The data is valid until this thread's next read.
        """
        if self._failure:  # of a write, or of _gather(), which could not raise it
            raise httpcore.ReadError(str(self._failure)) from self._failure
        self._watch.at_proxy = self._proxy_layers > 0
        ends, late = self._watch.ends(timeout), httpcore.ReadTimeout("the time limit is over")
        while True:
            left = self._watch.left(ends, late, self._watch.answering())
            try:
                data = self._inner.read(max_bytes, min(left, _SLICE))
            except httpcore.ReadTimeout:
                continue  # only this slice is over; left() raises at the deadline
            # Headers are short, and `coming` is not known before their end.
            gathered = self._with_more(data) if data and self._watch.in_body else data
            self._watch.received(len(gathered))
            return gathered

    def _with_more(self, data: bytes) -> bytes | memoryview:
        """Add to ``data`` what else of the body has arrived, even if more than was asked for.

        A TLS read returns one record, 16 KiB at most, and each return from ``read`` costs
        many times more than a further record. The result is valid until this thread's next
        ``read``: h11 copies what it gets.
        """
        if self._inner.get_extra_info("ssl_object") is None:
            return data
        self._watch.buffer[: len(data)] = data  # the buffer belongs to this thread
        size = self._gather(len(data))
        # Sleep only if a full buffer is still to come: small files and the end do not wait.
        if size < _GATHERED <= self._watch.coming - size:
            time.sleep(_NAP)
            size = self._gather(size)
        return self._watch.buffer[:size]

    def _gather(self, size: int) -> int:
        """Add what has arrived to the ``size`` bytes in the buffer; return the new size.

        The next ``read`` raises an error that happens here. It would not see the error by
        itself. After an alert, OpenSSL reports the end of the data. A failed system call may
        succeed the next time, in the middle of a record.
        """
        tls, buffer = self._inner.get_extra_info("ssl_object"), self._watch.buffer
        try:
            # Never wait here. httpcore sets its own timeout again before each read and write.
            self._inner.get_extra_info("socket").settimeout(0)
            while size < _GATHERED and (more := tls.read(_GATHERED - size, buffer[size:])):
                size += more
        except _NO_MORE:
            pass
        except OSError as error:
            self._failure = error
        return size

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write the whole buffer."""
        self._watch.at_proxy = self._proxy_layers > 0
        late = httpcore.WriteTimeout("the time limit is over")
        try:
            self._inner.write(buffer, self._watch.left(self._watch.ends(timeout), late))
        except httpcore.WriteError as error:
            # httpcore ignores this and reads an answer, which cannot come: the request was not
            # sent. The stored error ends that read at once.
            self._failure = error
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
        """Do the TLS handshake with the host or with a proxy. Raises ``TlsError``."""
        # One layer is done with this handshake; at the last one we talk to the host.
        behind = max(0, self._proxy_layers - 1)
        self._watch.at_proxy = behind > 0
        late = httpcore.ConnectTimeout("it does not answer the TLS handshake")
        left = self._watch.left(self._watch.ends(timeout), late)
        try:
            inner = self._inner.start_tls(ssl_context, server_hostname, left)
        except httpcore.ConnectTimeout as error:
            raise late from error
        except httpcore.ConnectError as error:
            cause = error.__cause__  # read it here: httpcore's pool removes it ("from None")
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
                raise certificate_error(cause, server_hostname or "the server") from cause
            raise
        return Stream(inner, self._watch, behind)

    def get_extra_info(self, info: str) -> Any:
        """Answer httpcore's questions about the socket below."""
        return self._inner.get_extra_info(info)
