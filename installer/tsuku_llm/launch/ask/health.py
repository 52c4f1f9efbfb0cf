"""The decision whether a server serves, and questions to it.

They use a plain socket: importing an HTTP client takes longer than most starts.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.foreign import read_foreign
from tsuku_llm.ground.safe_text import Secret
from tsuku_llm.launch.ask.log import LogReader
from tsuku_llm.launch.plan.addresses import (
    LAST_PORT,
    Listeners,
    ServerAddress,
    address_of,
    csv_fields,
)
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.wishes import Wishes, wishes_in

if TYPE_CHECKING:
    import socket
    import threading

LIMIT = 2.0
"""Seconds for one answer."""

_SHORTEST, _LONGEST = 0.02, 0.5
"""Seconds between two questions for the server's health: the first and the longest pause."""

_STEP = 0.05
"""Seconds between two looks at the log: a connection may wait for this server already."""

_WAIT = 1.0
"""Seconds between two calls of ``on_wait``."""

_LARGEST_FILE = 1 << 20
"""Bytes of a file of keys."""

_LARGEST_ANSWER = 1 << 20
"""Bytes of an answer that are read: an embedding has thousands of numbers."""

_MISSING = 1.0
"""Seconds after the first good answer in which a signal may still be missed, on a busy machine.

Upstream's server says that it is healthy before it can be told to end: a signal between both is
lost (``is_ready`` and ``start_loop`` in tools/server/server.cpp, b11434). The rows L1 and L2 of
``ci/bench`` end a server at its first good answer: with b10068 one lived on.
"""

_ALONE = 1.0
"""Seconds of good answers after which one counts even if the log does not say "listening".

Until then the answer may come from another server, on a port that ours could not get.
"""


class Readiness:
    """The decision whether one server serves, from its log and its answers to ``/health``.

    Nothing else in this package decides it. Three threads use it: one copies the server's
    stderr and calls ``on_stderr``; one follows the start and calls ``wait``, and then ``confirm``
    or ``deny``; the supervisor asks ``missed``, and reads ``served`` after the end. Each field is
    written by one thread, as a whole, so no lock is needed.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self._told = address_of(plan.argv, plan.env)
        self._wishes = wishes_in(plan.argv, plan.env)
        self.log = LogReader()
        """The reader of the server's log, with the facts in it so far."""
        self._confirmed = False
        self._denied = False
        self._listeners: Listeners | None = None
        self._ready_at: float | None = None

    @property
    def address(self) -> ServerAddress:
        """The address where it listens: its own sockets tell, else its log or its arguments."""
        # One look at the facts: the copying thread replaces them as a whole.
        port = self.log.facts.port
        said = self._told if port is None else self._told._replace(port=port)
        return said.at(self._listeners.own) if self._listeners else said

    @property
    def served(self) -> bool:
        """True if the server has served: its log says so, or its answers did."""
        return not self._denied and (self._confirmed or self.log.serves)

    def on_stderr(self, data: bytes) -> None:
        """Read the server's log until ``confirm``; ignore the rest."""
        # In the copying thread. A chunk that is read while the other thread confirms does no
        # harm: the facts have been judged by then.
        if not self._confirmed:
            self.log.feed(data)

    def wait(
        self,
        over: threading.Event,
        on_loading: Callable[[], None] = lambda: None,
        find_listeners: Callable[[], Listeners | None] = lambda: None,
    ) -> bool:
        """Ask until the server is ready; return False if ``over`` is set first.

        Calls ``on_loading`` after each question that is not answered with a yes, at least once
        in 10 seconds; what it raises ends the wait. ``find_listeners`` is asked for the sockets of
        the server's process, which count before what the log and the arguments say.
        """
        pause, alone, listens = _SHORTEST, 0.0, False
        # The supervisor sets ``over`` at the end of the server, which wakes this at once.
        while not self._pauses(over, pause, listened=listens):
            # The copying thread goes on reading the log; the next round sees its new facts.
            listens = self.log.facts.listens
            self._listeners = found = find_listeners()
            address = self.address
            foreign = self._is_foreign(address)
            # With TLS the log is enough: our library may refuse what the server's clients accept.
            # A port of 0 is not known yet; a Unix socket needs none.
            known = not foreign and (address.port or address.is_unix)
            if (address.tls and listens) or (known and is_healthy(address, self._wishes)):
                # At a socket of the server's own the answer is its own.
                if listens or alone >= _ALONE or (found and found.own):
                    self._ready_at = time.monotonic()
                    return True
                alone += pause
            # The server may have ended during the question: then it does not load any more.
            if over.is_set():
                return False
            on_loading()
            pause = min(pause * 1.25, _LONGEST)
        return False

    def _pauses(self, over: threading.Event, seconds: float, *, listened: bool) -> bool:
        """Wait, but not once the log says that the server listens; tell whether it is over."""
        waited = 0.0
        while waited < seconds:
            # In short steps: the copying thread may read that line at any time.
            step = min(_STEP, seconds - waited)
            if over.wait(step):
                return True
            waited += step
            if self.log.facts.listens and not listened:
                break
        return False

    def missed(self, seconds: float) -> bool:
        """Tell whether a signal of so many seconds ago came too early for the server to hear it.

        Then it serves as if nothing had happened. Called in the supervisor's thread.
        """
        sent = time.monotonic() - seconds
        if self._ready_at is not None and sent > self._ready_at + _MISSING:
            return False
        address = self.address
        return not self._is_foreign(address) and is_healthy(address, self._wishes)

    def _is_foreign(self, address: ServerAddress) -> bool:
        """Tell whether another program has the port: its answers say nothing about our server."""
        found = self._listeners
        return bool(found and not found.own and address.port in found.ports)

    def confirm(self) -> None:
        """Note that the server has served, and stop reading its log."""
        self._confirmed = True

    def deny(self) -> None:
        """Note that the server ended at its first request: its log promised too much."""
        self._denied = True


def is_healthy(address: ServerAddress, wishes: Wishes) -> bool:
    """Tell whether ``/health`` is answered with 200 now; a server that is loading answers 503.

    Upstream asks for no key there, but with ``--api-prefix`` it does: its list of public paths has
    none with a prefix (``get_public_endpoints`` in tools/server/server-http.cpp, b11434).
    """
    key: Secret | None = None
    if address.prefix:
        with suppress(OSError):  # a file of keys that is gone
            key = api_key(wishes)
    # A refused connection, a timeout or a name that does not resolve mean: not ready yet.
    with suppress(OSError, ValueError):
        return exchange(address, "/health", key=key, limit=LIMIT)[0] == 200
    return False


def has_page(address: ServerAddress) -> bool | None:
    """Tell whether the server has a web page; None if it gives no answer.

    A build may lack the page, and builds differ in the variables that turn it off.
    """
    with suppress(OSError, ValueError):
        # Any other answer comes from the page: it may want a key, or a client that unpacks gzip.
        return exchange(address, "/", limit=LIMIT)[0] != 404
    return None


def api_key(wishes: Wishes) -> Secret | None:
    """Return one of the keys for the server's API. Raises OSError."""
    # Upstream reads several keys as a row of CSV, and drops empty ones (common/arg.cpp, b11434).
    for key in csv_fields(wishes.key.reveal() if wishes.key else ""):
        if key:
            return Secret(key)
    if wishes.key_file:
        # As upstream reads it: lines, without empty ones and those that begin with "#". Blanks
        # belong to a key. The "\r" of a file of Windows cannot: no header can have it. Not from a
        # pipe: the server would then not get what we have read.
        for line in read_foreign(wishes.key_file, _LARGEST_FILE).split(b"\n"):
            key = line.rstrip(b"\r").decode("utf-8", "surrogateescape")
            if key and not key.startswith("#"):
                return Secret(key)
    return None


def require_keys(wishes: Wishes) -> None:
    """Refuse a key file that contains no key.

    Upstream's server then wants no key (b11434, as it ran). Raises UsageError. A file that cannot
    be read is refused by the server itself, with its own words.
    """
    with suppress(OSError):
        if wishes.key_file and api_key(wishes) is None:
            raise UsageError(
                f"{wishes.key_file} has no key: the server would answer everybody",
                hint="write a key into it, each in a line of its own; or leave out --api-key-file",
            )


def exchange(
    address: ServerAddress,
    path: str,
    body: object = None,
    key: Secret | None = None,
    *,
    limit: float,
    on_wait: Callable[[], None] = lambda: None,
) -> tuple[int, bytes]:
    """Return the HTTP status of the answer, and its content. Raises OSError and ValueError.

    Without a ``body`` it is a GET. ``limit`` is in seconds. ``on_wait`` is called once a second
    until the answer comes; what it raises ends the request.
    """
    content = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    head = f"{method} {address.prefix}{path} HTTP/1.0\r\nHost: {address.host}\r\n"
    if content:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    if key:
        head += f"Authorization: Bearer {key.reveal()}\r\n"
    deadline = time.monotonic() + limit
    answer = b""
    # The wrapped socket takes over the plain one's descriptor. ssl.SSLError is an OSError.
    with (
        closing(connect(address)) as plain,
        closing(_through_tls(plain) if address.tls else plain) as connection,
    ):
        connection.settimeout(limit)
        connection.sendall(head.encode("utf-8", "surrogateescape") + b"\r\n" + content)
        # The server closes the connection after the answer: then everything is computed.
        while len(answer) < _LARGEST_ANSWER:
            connection.settimeout(max(0.001, min(_WAIT, deadline - time.monotonic())))
            try:
                data = connection.recv(1 << 16)
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
                on_wait()
                continue
            if not data:
                break
            answer += data
    # A server that ends meanwhile sends nothing.
    words = answer[:64].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ConnectionError("no HTTP")
    return int(words[1]), answer.partition(b"\r\n\r\n")[2]


def _through_tls(connection: socket.socket) -> socket.socket:
    """Begin TLS without looking at the certificate: the server is ours, on this machine."""
    import ssl  # noqa: PLC0415 - few servers have a certificate

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection)


def remove_dead_sockets(address: ServerAddress) -> None:
    """Remove each Unix socket of a server at which no process listens any more.

    A killed server leaves its socket's file, and the next one could not bind it. Everything else
    stays: a file of another kind or of another user, and a socket that may be alive.
    """
    for path in address.sockets:
        with suppress(OSError, UnicodeError):
            found = os.lstat(path)
            ours = sys.platform == "win32" or found.st_uid in (0, os.geteuid())
            if not (ours and stat.S_ISSOCK(found.st_mode)):
                continue
            try:
                # A busy server answers late, or with another error: only a refusal is a proof.
                connect(address._replace(host=path)).close()
            except ConnectionRefusedError:
                # Another start may have removed it and bound the same name since.
                if os.path.samestat(found, os.lstat(path)):
                    os.unlink(path)


def connect(address: ServerAddress) -> socket.socket:
    """Connect to a server within ``LIMIT`` seconds. Raises OSError and UnicodeError."""
    import socket  # noqa: PLC0415 - a server that ends at once is not asked

    if address.is_unix and sys.platform != "win32":
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(LIMIT)
            connection.connect(address.host)
        except BaseException:
            connection.close()
            raise
        return connection
    # A port that the server says may be too large: then nobody listens there.
    if address.port > LAST_PORT:
        raise ConnectionRefusedError(address.port)
    return socket.create_connection((address.reachable_host, address.port), LIMIT)
