"""The address of a server, and the decision whether it serves.

The question for its health uses a plain socket: importing an HTTP client takes longer than
most starts.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.launch.log import LogFacts, LogReader
from tsuku_llm.launch.planning import LaunchPlan

if TYPE_CHECKING:
    import socket
    import threading

DEFAULT_PORT = 8080

LIMIT = 2.0
"""Seconds for one answer."""

_SHORTEST, _LONGEST = 0.02, 0.5
"""Seconds between two questions for the server's health: the first and the longest pause."""

_STEP = 0.05
"""Seconds between two looks at the log: a connection may wait for this server already."""

_ALONE = 1.0
"""Seconds of good answers after which one counts even if the log does not say "listening".

Until then the answer may come from another server, on a port that ours could not get.
"""

_PORTS = 1 << 16
# A server that listens everywhere is asked over the loopback interface.
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared, not bound


class ServerAddress(NamedTuple):
    """The address of a server: a ``host`` ending in ``.sock`` is a Unix socket.

    ``port`` 0 is not known yet: the server chooses one. ``tls``: it is asked through TLS.
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


class Readiness:
    """The decision whether one server serves, from its log and its answers to ``/health``.

    Nothing else in this package decides it. Three threads use it: one copies the server's
    stderr and calls ``on_stderr``; one follows the start and calls ``wait``, and then ``confirm``
    or ``deny``; the supervisor reads ``served`` after the end. Each field is written by one
    thread, as a whole, so no lock is needed.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self._told = address_of(plan.argv, plan.env)
        self._log = LogReader()
        self._confirmed = False
        self._denied = False

    @property
    def facts(self) -> LogFacts:
        """The facts in the log so far."""
        return self._log.facts

    @property
    def address(self) -> ServerAddress:
        """The address where it listens, as the arguments or the log say."""
        # One look at the facts: the copying thread replaces them as a whole.
        port = self._log.facts.port
        return self._told if port is None else self._told._replace(port=port)

    @property
    def said(self) -> int:
        """The bytes of the log so far, without lines about our own questions."""
        return self._log.said

    @property
    def served(self) -> bool:
        """True if the server has served: its log says so, or its answers did."""
        return not self._denied and (self._confirmed or self._log.serves)

    def on_stderr(self, data: bytes) -> None:
        """Read the server's log until ``confirm``; ignore the rest."""
        # In the copying thread. A chunk that is read while the other thread confirms does no
        # harm: the facts have been judged by then.
        if not self._confirmed:
            self._log.feed(data)

    def wait(self, over: threading.Event, on_loading: Callable[[], None] = lambda: None) -> bool:
        """Ask until the server is ready; return False if ``over`` is set first.

        Calls ``on_loading`` after each question that is not answered with a yes, at least once
        in 10 seconds; what it raises ends the wait.
        """
        pause, alone, listens = _SHORTEST, 0.0, False
        # The supervisor sets ``over`` at the end of the server, which wakes this at once.
        while not self._pauses(over, pause, listens):
            # The copying thread goes on reading the log; the next round sees its new facts.
            listens = self._log.facts.listens
            address = self.address
            # With TLS the log is enough: our library may refuse what the server's clients accept.
            # A port of 0 is not known yet; a Unix socket needs none.
            known = address.port or address.is_unix
            if (address.tls and listens) or (known and is_healthy(address)):
                if listens or alone >= _ALONE:
                    return True
                alone += pause
            # The server may have ended during the question: then it does not load any more.
            if over.is_set():
                return False
            on_loading()
            pause = min(pause * 1.25, _LONGEST)
        return False

    def _pauses(self, over: threading.Event, seconds: float, listened: bool) -> bool:  # noqa: FBT001
        """Wait, but not once the log says that the server listens; tell whether it is over."""
        waited = 0.0
        while waited < seconds:
            # In short steps: the copying thread may read that line at any time.
            step = min(_STEP, seconds - waited)
            if over.wait(step):
                return True
            waited += step
            if self._log.facts.listens and not listened:
                break
        return False

    def confirm(self) -> None:
        """Note that the server has served, and stop reading its log."""
        self._confirmed = True

    def deny(self) -> None:
        """Note that the server ended at its first request: its log promised too much."""
        self._denied = True


def is_healthy(address: ServerAddress) -> bool:
    """Tell whether ``/health`` is answered with 200 now; a server that is loading answers 503.

    The server takes a port above 65535 modulo 65536, and so do we.
    """
    # A refused connection, a timeout or a name that does not resolve mean: not ready yet.
    with suppress(OSError, UnicodeError), closing(connect(address)) as plain:
        # ssl.SSLError is an OSError. The wrapped socket takes over the plain one's descriptor.
        connection = _through_tls(plain) if address.tls else plain
        request = f"GET {address.prefix}/health HTTP/1.0\r\nHost: {address.host}\r\n\r\n"
        # The status line comes first and is short; the rest of the answer is not needed.
        with closing(connection):
            connection.sendall(request.encode("utf-8", "surrogateescape"))
            status = connection.recv(64).split(b" ", 2)
        return len(status) > 1 and status[0].startswith(b"HTTP/") and status[1] == b"200"
    return False


def _through_tls(connection: socket.socket) -> socket.socket:
    """Begin TLS without looking at the certificate: no secret is sent, and the server is ours."""
    import ssl  # noqa: PLC0415 - few servers have a certificate

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection)


def is_taken(address: ServerAddress) -> bool:
    """Tell whether a program accepts connections at this address now."""
    with suppress(OSError, UnicodeError), closing(connect(address)):
        return True
    return False


def remove_dead_socket(address: ServerAddress) -> None:
    """Remove a Unix socket at which nobody listens any more; leave every other file."""
    if not address.is_unix or is_taken(address):
        return
    with suppress(OSError):
        if stat.S_ISSOCK(os.lstat(address.host).st_mode):
            os.unlink(address.host)  # noqa: PTH108 - a text


def connect(address: ServerAddress) -> socket.socket:
    """Connect to a server within ``LIMIT`` seconds. Raises OSError and UnicodeError."""
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
