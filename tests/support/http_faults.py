"""A raw-socket HTTP server on the loopback that answers as no server should.

A *behaviour* is a function of one exchange. The server calls its behaviours in turn, one
per connection, the last one again and again; a connection is closed when its behaviour
returns.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

_LARGEST_REQUEST = 1 << 16
_TLS_HELLO = b"\x16"


@dataclass(frozen=True)
class Request:
    """What was asked; header names are in lower case."""

    line: str
    headers: dict[str, str]

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]


@dataclass
class Exchange:
    """One connection with its request."""

    server: FaultServer
    connection: socket.socket
    request: Request

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def reset(self) -> None:
        """End the connection with RST instead of FIN."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def hang(self) -> None:
        """Say nothing until the server is closed or the client is gone."""
        self.connection.settimeout(0.05)
        while not self.server.closing.is_set():
            with contextlib.suppress(TimeoutError, ssl.SSLWantReadError):
                if not self.connection.recv(1):
                    return


Behaviour = Callable[[Exchange], None]


@dataclass
class FaultServer:
    """Used in a ``with`` statement; ``requests`` is what came so far."""

    behaviours: list[Behaviour] = field(default_factory=list)
    context: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((self.host, 0), backlog=64)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://{self.host}:{self.port}"

    def __enter__(self) -> FaultServer:
        self._spawn(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                self._spawn(partial(self._serve, connection))

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(30)
            if self.context:
                connection = self.context.wrap_socket(connection, server_side=True)
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        data = b""
        while not data.startswith(_TLS_HELLO) and b"\r\n\r\n" not in data:
            more = connection.recv(4096)
            if not more:
                return
            data += more
            if len(data) > _LARGEST_REQUEST:
                return
        request = _parsed(data)
        with self._lock:
            self.requests.append(request)
            turn = min(len(self.requests), len(self.behaviours)) - 1
        self.behaviours[turn](Exchange(self, connection, request))


def _parsed(data: bytes) -> Request:
    line, *rest = data.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    fields = (field.partition(":") for field in rest)
    return Request(line, {name.strip().lower(): value.strip() for name, _, value in fields})


def head(status: str, **headers: object) -> bytes:
    """A status line and headers; underscores in names become hyphens."""
    lines = [f"HTTP/1.1 {status}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def raw(*parts: bytes) -> Behaviour:
    """Send these bytes to every request, and close."""

    def behave(exchange: Exchange) -> None:
        for part in parts:
            exchange.send(part)

    return behave


def answer(status: str, body: bytes = b"", **headers: object) -> Behaviour:
    """A complete answer with its true length."""
    return raw(head(status, **{"Content_Length": len(body), **headers}) + body)


def asked_range(request: Request, length: int) -> tuple[int, int]:
    """The bytes of a file of this length that a request wants: the first, one behind the last."""
    first, _, last = request.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
    return int(first), min(length, int(last) + 1) if last else length


def places_asked(requests: Iterable[Request], length: int) -> set[int]:
    """Return the places in a file of this length that requests ask for, each once.

    Connections may ask for a place twice: one without work takes over the last part of
    another's segment, which depends on their speed.
    """
    return {place for request in requests for place in range(*asked_range(request, length))}


def good(body: bytes, *, cut: int | None = None, etag: str | None = None) -> Behaviour:
    """A proper server: Range, If-Range, ETag. It breaks off before byte ``cut`` of the file."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"' if etag is None else etag

    def behave(exchange: Exchange) -> None:
        asked = exchange.request.headers
        start, end, partial = 0, len(body), False
        if "range" in asked and asked.get("if-range", tag) == tag:
            start, end = asked_range(exchange.request, len(body))
            partial = True
        if start and start >= len(body):
            fields = {"Content_Length": 0, "Content_Range": f"bytes */{len(body)}"}
            exchange.send(head("416 Range Not Satisfiable", **fields))
            return
        headers: dict[str, object] = {
            "Content_Length": end - start,
            "ETag": tag,
            "Connection": "close",
        }
        if partial:
            headers["Content_Range"] = f"bytes {start}-{end - 1}/{len(body)}"
        exchange.send(head("206 Partial Content" if partial else "200 OK", **headers))
        exchange.send(body[start : end if cut is None else min(cut, end)])

    return behave
