"""A SOCKS5 proxy on the loopback (RFC 1928), and servers that only pretend to be one."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

GREETED = b"\x05\x00"
CONNECTED = b"\x05\x00\x00\x01" + bytes(6)


class SocksServer:
    """``asked`` has the host and port of every CONNECT.

    ``greeting`` answers the offered methods; ``reply``, where it is not what belongs there,
    the request to connect.
    """

    def __init__(self, greeting: bytes = GREETED, reply: bytes = CONNECTED) -> None:
        self.asked: list[tuple[str, int]] = []
        self._greeting = greeting
        self._reply = reply
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        """Serve until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.recv(257)
            client.sendall(self._greeting)
            if self._greeting != GREETED:
                return
            self.asked.append(_destination(client.recv(262)))
            client.sendall(self._reply)
            if self._reply == CONNECTED:
                with socket.create_connection(self.asked[-1]) as server:
                    back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                    back.start()
                    _pump(client, server)
                    back.join()


def _destination(request: bytes) -> tuple[str, int]:
    """From a CONNECT to a name or an IPv4 address."""
    *_, kind = request[:4]
    rest = request[5:] if kind == 3 else request[4:]
    host, port = rest[:-2], rest[-2:]
    name = host.decode("ascii") if kind == 3 else socket.inet_ntoa(host)
    return name, struct.unpack(">H", port)[0]


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def socks_server(greeting: bytes = GREETED, reply: bytes = CONNECTED) -> Iterator[SocksServer]:
    """Run one for the block."""
    server = SocksServer(greeting, reply)
    threading.Thread(target=server.run, daemon=True).start()
    try:
        yield server
    finally:
        server.close()
