"""The address of a server, and the question whether it is ready.

The question uses a plain socket: importing an HTTP client takes longer than most starts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket

DEFAULT_PORT = 8080

LIMIT = 2.0
"""Seconds for one answer."""

_PORTS = 1 << 16
# A server that listens everywhere is asked over the loopback interface.
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared, not bound


class ServerAddress(NamedTuple):
    """The address of a server: a ``host`` ending in ``.sock`` is a Unix socket.

    ``port`` 0 is not known yet: the server chooses one. ``tls``: the server is not asked;
    its log tells when it is ready.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    prefix: str = ""
    tls: bool = False

    @property
    def is_unix(self) -> bool:
        """True if the address is a socket in the file system."""
        return self.host.endswith(".sock")


def address_of(arguments: Sequence[str], env: Mapping[str, str]) -> ServerAddress:
    """Return the address for these arguments and variables; an argument overrides a variable."""

    def chosen(option: str, variable: str) -> str | None:
        value = env.get(variable)
        # As llama-server reads them: the last one counts, and "_" may stand for "-".
        for word, following in pairwise(arguments):
            value = following if word.replace("_", "-") == option else value
        return value

    port = chosen("--port", "LLAMA_ARG_PORT") or ""
    return ServerAddress(
        host=chosen("--host", "LLAMA_ARG_HOST") or "127.0.0.1",
        port=int(port) if port.isdecimal() else DEFAULT_PORT,
        prefix=chosen("--api-prefix", "LLAMA_ARG_API_PREFIX") or "",
        tls=chosen("--ssl-cert-file", "LLAMA_ARG_SSL_CERT_FILE") is not None,
    )


def is_healthy(address: ServerAddress) -> bool:
    """Tell whether ``/health`` is answered with 200 now; a server that is loading answers 503.

    The server takes a port above 65535 modulo 65536, and so do we.
    """
    # A refused connection, a timeout or a name that does not resolve mean: not ready yet.
    with suppress(OSError, UnicodeError), closing(_connected(address)) as connection:
        request = f"GET {address.prefix}/health HTTP/1.0\r\nHost: {address.host}\r\n\r\n"
        connection.sendall(request.encode("utf-8", "surrogateescape"))
        # The status line comes first and is short; the rest of the answer is not needed.
        status = connection.recv(64).split(b" ", 2)
        return len(status) > 1 and status[0].startswith(b"HTTP/") and status[1] == b"200"
    return False


def is_taken(address: ServerAddress) -> bool:
    """Tell whether a program accepts connections at this address now."""
    with suppress(OSError, UnicodeError), closing(_connected(address)):
        return True
    return False


def _connected(address: ServerAddress) -> socket.socket:
    import socket  # noqa: PLC0415 - ``serve --exec`` asks nobody

    if address.is_unix and sys.platform != "win32":
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(LIMIT)
            connection.connect(address.host)
        except BaseException:
            connection.close()
            raise
        return connection
    host = _ANY.get(address.host, address.host)
    return socket.create_connection((host, address.port % _PORTS), LIMIT)
