"""The connections below httpcore's pools: every wait on them ends at the deadline.

httpcore's own backend does not do that. It tries the addresses of a host one after the
other, waits for the name server without a limit, and restarts the read timeout with every
byte.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import Any

import httpcore

from tsuku_llm.fetch.http.limits import Limits, Timing
from tsuku_llm.fetch.http.race import Resolver, in_turns, race
from tsuku_llm.fetch.http.tls import certificate_error

_SLICE = 0.5
"""Seconds after which a wait checks whether its request was cancelled."""

_QUIET = 3.0
"""Seconds of waiting after which the user is told the reason."""

_HEADER_BYTES = 1 << 18
"""Bytes that may arrive before the end of an answer's headers."""


class ExchangeDeadline(threading.local):
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
        self._limits = limits
        self._tell = tell
        self._began = 0.0
        self.peer = ""

    def begin(self, deadline: float, check: Callable[[], None], peer: str) -> None:
        """Start an exchange with ``peer``, a host or a proxy, up to the answer's headers."""
        self.check = check
        self._began = self.clock()
        # Until the headers are complete, the shorter of the two limits holds.
        self.deadline = min(deadline, self._began + self._limits.answer)
        self.header_bytes = _HEADER_BYTES
        self.peer = peer

    def headers_complete(self, deadline: float) -> None:
        """Note that the body begins."""
        self.deadline = deadline  # a body has more time than the headers
        self.header_bytes = math.inf  # see `in_body`

    @property
    def in_body(self) -> bool:
        """Whether the headers are complete."""
        return self.header_bytes == math.inf

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
        self.check()  # another thread may have stopped the network or this connection
        now = self.clock()
        if now >= ends:
            raise late
        if doing and now - self._began >= _QUIET:
            self._tell(doing)
        return ends - now


class Backend(httpcore.NetworkBackend):
    """TCP connections for one pool, to the address that answers first.

    ``to_proxy``: its connections lead to a proxy, until that has connected them to the host.
    """

    def __init__(self, exchange: ExchangeDeadline, resolver: Resolver, *, to_proxy: bool) -> None:
        self._exchange = exchange
        self._resolver = resolver
        self._to_proxy = to_proxy
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
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Look up a host and race its addresses; both together have one time limit."""
        self._exchange.at_proxy = self._to_proxy
        ends = self._exchange.ends(timeout)

        def left(doing: str, failing: str) -> float:
            late = httpcore.ConnectTimeout(failing)
            # Short waits: each one checks first whether another thread has stopped us.
            return min(self._exchange.left(ends, late, doing), _SLICE)

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
                self._exchange.clock,
                lambda: left(f"connecting to {host} ({count})", failing),
            )
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        self._won[host] = connection.family  # another thread may overwrite it: it is only a hint
        stream = Stream(connection, self._exchange, to_proxy=self._to_proxy)
        self._streams.append(stream)
        return stream


class Stream(httpcore.NetworkStream):
    """A connection whose reads end at the exchange's deadline, even if bytes drip in slowly.

    It cannot be used after its first failed read or write. One thread uses it at a time:
    its pool lends it to one request. A later request may come from another thread, and then
    that thread's values of the ``ExchangeDeadline`` count.
    """

    def __init__(
        self, connection: socket.socket, exchange: ExchangeDeadline, *, to_proxy: bool
    ) -> None:
        self._connection = connection
        self._exchange = exchange
        self._to_proxy = to_proxy
        self._failure: OSError | None = None

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read what has arrived, at most ``max_bytes``; b"" at the end."""
        exchange = self._exchange
        exchange.at_proxy = self._to_proxy
        if self._failure:
            raise httpcore.ReadError(str(self._failure)) from self._failure
        ends, late = exchange.ends(timeout), httpcore.ReadTimeout("the time limit is over")
        # During a body there is a progress bar.
        doing = "" if exchange.in_body else f"waiting for {exchange.peer} to answer"
        data = None
        while data is None:
            left = exchange.left(ends, late, doing)
            self._connection.settimeout(min(left, _SLICE))
            try:
                data = self._connection.recv(max_bytes)
            except TimeoutError:
                continue  # only this slice is over; left() raises at the deadline
            except OSError as error:
                raise httpcore.ReadError(str(error)) from error
        if exchange.in_body:
            data = self._all_arrived(data, max_bytes)
        exchange.header_bytes -= len(data)
        if exchange.header_bytes < 0:
            raise httpcore.RemoteProtocolError("the headers are too long")
        return data

    def _all_arrived(self, data: bytes, max_bytes: int) -> bytes:
        """Add to ``data`` what else has arrived, without a wait.

        TLS reads one record at a time, 16 KiB at most, and each return from ``read`` costs many
        times more than a further record.
        """
        parts, size = [data], len(data)
        self._connection.settimeout(0)  # each read and write sets its own timeout
        try:
            while parts[-1] and size < max_bytes:
                parts.append(self._connection.recv(max_bytes - size))
                size += len(parts[-1])
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # no more has arrived
        except OSError as error:
            # The next read raises it, after these bytes. It would not see the error by itself:
            # after an alert, OpenSSL reports the end of the data, and a failed system call may
            # succeed the next time, in the middle of a record.
            self._failure = error
        return b"".join(parts)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write the whole buffer."""
        exchange = self._exchange
        exchange.at_proxy = self._to_proxy
        ends, late = exchange.ends(timeout), httpcore.WriteTimeout("the time limit is over")
        rest = memoryview(buffer)
        try:
            while rest:  # one call may send less than all
                self._connection.settimeout(exchange.left(ends, late))
                rest = rest[self._connection.send(rest) :]
        except TimeoutError as error:
            raise late from error
        except OSError as error:
            # httpcore ignores this and reads an answer, which cannot come: the request was not
            # sent. The stored error ends that read at once.
            self._failure = error
            raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        """Do the TLS handshake with the host. Raises ``TlsError``."""
        exchange = self._exchange
        exchange.at_proxy = False  # it has connected us to the host
        late = httpcore.ConnectTimeout("it does not answer the TLS handshake")
        with contextlib.ExitStack() as failed:
            failed.callback(self.close)
            self._connection.settimeout(exchange.left(exchange.ends(timeout), late))
            try:
                inner = ssl_context.wrap_socket(self._connection, server_hostname=server_hostname)
            except TimeoutError as error:
                raise late from error
            except OSError as error:
                if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                    raise certificate_error(error, server_hostname or "the server") from error
                raise httpcore.ConnectError(str(error)) from error
            failed.pop_all()  # the new stream owns the socket now
        return Stream(inner, exchange, to_proxy=False)

    def get_extra_info(self, info: str) -> Any:
        """Tell httpcore whether an idle connection can be read from, as it can at its end.

        Nothing else that httpcore asks for is needed: None as "ssl_object" means no HTTP/2.
        """
        if info != "is_readable":
            return None
        descriptor = self._connection.fileno()
        if descriptor < 0:  # closed by us
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            return bool(selector.select(0))
