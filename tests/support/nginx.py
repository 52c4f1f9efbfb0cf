"""A real nginx with TLS on free ports of the loopback, serving a folder."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.certificates import Authority
from support.tools import require_tool

_CONFIG = """\
daemon off;
user root;
worker_processes 1;
pid {state}/nginx.pid;
error_log {state}/error.log info;
events {{ worker_connections 1000; }}
http {{
    log_format lines '$request_method $uri $status $body_bytes_sent $connection "$http_range"';
    access_log {state}/access.log lines;
    default_type application/octet-stream;
    client_body_temp_path {state}/body;
    proxy_temp_path {state}/proxy;
    fastcgi_temp_path {state}/fastcgi;
    uwsgi_temp_path {state}/uwsgi;
    scgi_temp_path {state}/scgi;
    limit_conn_zone $server_name zone=all:1m;
    server {{
        listen {address}:{plain};
        listen {address}:{secure} ssl;
        server_name {host};
        ssl_certificate {chain};
        ssl_certificate_key {key};
        root {root};
        location = /mark {{ return 204; }}
        {extra}
    }}
}}
"""


@dataclass(frozen=True)
class Logged:
    """A line of the access log: ``sent`` is the body's bytes, ``connection`` its number."""

    method: str
    path: str
    status: int
    sent: int
    connection: int
    range: str


@dataclass(frozen=True)
class Nginx:
    """``url`` is https, ``plain_url`` http; ``authority`` is the CA to trust."""

    url: str
    plain_url: str
    authority: Path
    root: Path
    state: Path

    def requests(self) -> list[Logged]:
        """What was asked so far. Asks for a mark itself and waits for its line in the log."""
        with urllib.request.urlopen(f"{self.plain_url}/mark", timeout=600):  # noqa: S310 - our own loopback
            pass
        lines: list[str] = []
        while not lines or lines[-1].split()[1] != "/mark":
            os.sched_yield()
            lines = (self.state / "access.log").read_text("utf-8").splitlines()
        return [_logged(line) for line in lines if line.split()[1] != "/mark"]


def _logged(line: str) -> Logged:
    method, path, status, sent, connection, asked = line.split(" ", 5)
    asked = asked.strip('"').removeprefix("-")
    return Logged(method, path, int(status), int(sent), int(connection), asked)


@contextlib.contextmanager
def serving(
    root: Path, state: Path, extra: str = "", sockets: Sequence[socket.socket] = ()
) -> Iterator[Nginx]:
    """Run nginx for a folder; ``extra`` is put into its server block.

    The sockets are ours and listen before nginx starts, which takes them over as in a
    binary upgrade: no other program can take the port, and no test has to wait. Two
    ``sockets`` of another address (and network) can replace those of the loopback.
    """
    state.mkdir(parents=True, exist_ok=True)
    authority = Authority(state / "ca")
    with contextlib.ExitStack() as stack:
        sockets = sockets or [
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
            for _ in range(2)
        ]
        address = sockets[0].getsockname()[0]
        host = "localhost" if address == "127.0.0.1" else address
        certificate = authority.issue(host)
        plain, secure = (sock.getsockname()[1] for sock in sockets)
        config = state / "nginx.conf"
        config.write_text(
            _CONFIG.format(
                user="user root;\n" if os.geteuid() == 0 else "",
                state=state,
                root=root,
                address=address,
                host=host,
                plain=plain,
                secure=secure,
                chain=certificate.chain,
                key=certificate.key,
                extra=extra,
            ),
            encoding="utf-8",
        )
        with running(config, sockets):
            yield Nginx(
                f"https://{host}:{secure}",
                f"http://{host}:{plain}",
                authority.path,
                root,
                state,
            )


@contextlib.contextmanager
def running(config: Path, sockets: Sequence[socket.socket]) -> Iterator[None]:
    """Run nginx with a configuration that listens at exactly these addresses of ours."""
    program, state = require_tool("nginx"), config.parent
    for sock in sockets:
        sock.setblocking(False)  # nginx takes this for granted
    descriptors = [sock.fileno() for sock in sockets]
    child = subprocess.Popen(
        [program, "-e", str(state / "error.log"), "-p", str(state), "-c", str(config)],
        env={**os.environ, "NGINX": "".join(f"{number};" for number in descriptors)},
        pass_fds=descriptors,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        child.terminate()
        child.wait(30)
