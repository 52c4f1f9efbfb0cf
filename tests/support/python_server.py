"""A stand-in for llama-server in Python, which listens wherever the real one can.

It knows the options about the address and the page. Its name in a build is ``llama-server``.
"""

import http.server
import os
import signal
import socket
import ssl
import sys
from typing import Any


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the real server does: ``/health``, the models, and the page unless it is off."""

    prefix = ""
    page = True
    key = ""

    def address_string(self) -> str:
        """Return nothing: a client at a Unix socket has no address."""
        return ""

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer 404 for everything else, and without the prefix.

        As upstream's list of public paths (tools/server/server-http.cpp of b11434): with a prefix
        ``/health`` wants a key as well.
        """
        wanted = f"Bearer {self.key}" if self.key and self.path not in ("/health", "/") else None
        if wanted not in (None, self.headers.get("Authorization")):
            self.send_error(401)
            return
        known = {"/health": b'{"status":"ok"}', "/v1/models": b'{"data":[]}'}
        if self.page:
            known["/"] = b"<title>page</title>"
        body = known.get(self.path.removeprefix(self.prefix))
        if body is None or not self.path.startswith(self.prefix):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(http.server.HTTPServer):
    """A server at any address; ``getfqdn`` of the standard one may ask a name server."""

    def server_bind(self) -> None:
        """Bind only."""
        self.socket.bind(self.server_address)


def option(name: str, otherwise: str = "") -> str:
    """Return the value of an option, else of its variable."""
    variable = f"LLAMA_ARG_{name[2:].upper().replace('-', '_')}"
    words = sys.argv[1:]
    return words[words.index(name) + 1] if name in words else os.environ.get(variable, otherwise)


def main() -> None:
    """Listen and answer until a signal comes."""
    if "--list-devices" in sys.argv:
        sys.stdout.write("Available devices:\n  (none)\n")
        return
    if "--help" in sys.argv:
        return
    host, port = option("--host", "127.0.0.1"), int(option("--port", "8080"))
    Handler.prefix = option("--api-prefix").replace(" ", "%20")
    Handler.key = os.environ.get("LLAMA_API_KEY", "")
    Handler.page = "--no-ui" not in sys.argv and os.environ.get("LLAMA_ARG_UI") != "0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_unix = host.endswith(".sock")
    Server.address_family = socket.AF_UNIX if is_unix else family
    where: Any = host if is_unix else (host, port)
    server = Server(where, Handler)
    key, cert = option("--ssl-key-file"), option("--ssl-cert-file")
    scheme = "https" if key and cert else "http"
    if scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    name = f"[{host}]" if ":" in host else host
    told = f"unix://{host}"
    if not is_unix:
        told = f"{scheme}://{name}:{server.socket.getsockname()[1]}"
    if "--log-disable" not in sys.argv:
        sys.stderr.write(f"I srv  llama_server: listening on {told}\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.serve_forever()


if __name__ == "__main__":
    main()
