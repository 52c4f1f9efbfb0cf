"""A real OCI registry (Debian's docker-registry) over TLS, open, with a password or with tokens."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from support.certificates import Authority, Certificate
from support.tools import require_tool

USER, PASSWORD = "operator", "pass:word"
_HTPASSWD = f"{USER}:$2b$04$GCtnUNWFkcY7RsMtlEyC9.lzbAimXCTx9yodR1i7Na93Uu3nDoFwy\n"
"""That user with that password; docker-registry reads bcrypt only."""

_CONFIG = """\
version: 0.1
log: {{level: info, formatter: json}}
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
http:
  addr: {address}
  tls: {{certificate: {chain}, key: {key}}}
{auth}
"""


@dataclass(frozen=True)
class Registry:
    """A running registry; ``requests`` are its log, ``tokens`` what a token server was asked."""

    host: str
    authority: Path
    root: Path
    log: Path
    tokens: list[str] = field(default_factory=list)

    def place(self, name: str = "llm/mirror") -> str:
        return f"oci://{self.host}/{name}"

    def requests(self) -> list[tuple[str, str, int]]:
        """What was asked so far: method, path and status."""
        found = []
        for line in self.log.read_text("utf-8").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if "http.response.status" in entry:
                    uri = entry["http.request.uri"]
                    method = entry["http.request.method"]
                    found.append((method, uri, entry["http.response.status"]))
        return found

    def blobs(self) -> set[str]:
        """The digests of everything that was pushed."""
        return {path.parent.name for path in self.root.glob("docker/registry/v2/blobs/**/data")}


def docker_config(folder: Path, host: str, password: str = PASSWORD, **more: Any) -> dict[str, str]:
    """Write docker's file of credentials; return the environment that names it."""
    folder.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    document = {"auths": {host: {"auth": auth}}, **more}
    (folder / "config.json").write_text(json.dumps(document))
    return {"DOCKER_CONFIG": str(folder)}


@contextlib.contextmanager
def registry(folder: Path, access: str = "open") -> Iterator[Registry]:
    """Run a registry; ``access`` is open, basic or token."""
    program = require_tool("docker-registry")
    folder.mkdir(parents=True)
    authority = Authority(folder / "ca")
    certificate = authority.issue("localhost")
    tokens: list[str] = []
    with contextlib.ExitStack() as stack:
        auth = ""
        if access == "basic":
            (folder / "htpasswd").write_text(_HTPASSWD)
            auth = f"auth: {{htpasswd: {{realm: tests, path: {folder / 'htpasswd'}}}}}"
        elif access == "token":
            signing = _token_key(folder)
            realm = stack.enter_context(_token_server(certificate, signing, tokens))
            auth = (
                f"auth: {{token: {{realm: {realm}, service: tests, issuer: tests, "
                f"rootcertbundle: {folder / 'token.pem'}}}}}"
            )
        port = _free_port()
        config = folder / "config.yml"
        config.write_text(
            _CONFIG.format(
                root=folder / "storage",
                address=f"127.0.0.1:{port}",
                chain=certificate.chain,
                key=certificate.key,
                auth=auth,
            )
        )
        log = folder / "log"
        with log.open("wb") as file:
            child = subprocess.Popen(
                [program, "serve", str(config)], stdout=file, stderr=file, cwd=folder
            )
        stack.callback(child.wait, 30)
        stack.callback(child.terminate)
        _wait_for(port, child)
        yield Registry(f"localhost:{port}", authority.path, folder / "storage", log, tokens)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _wait_for(port: int, child: subprocess.Popen[bytes]) -> None:
    while child.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise AssertionError("the registry has ended")


# --- tokens ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Signing:
    key: ec.EllipticCurvePrivateKey
    certificate: bytes


def _token_key(folder: Path) -> _Signing:
    # The registry is written in Go, and has the machine's real day also under ``ci/at``.
    lasting = timedelta(days=14_600)
    issue = Authority(folder / "token-ca").issue
    certificate = issue("token", since=-lasting, until=lasting, self_signed=True)
    (folder / "token.pem").write_bytes(certificate.chain.read_bytes())
    key = serialization.load_pem_private_key(certificate.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    loaded = x509.load_pem_x509_certificate(certificate.chain.read_bytes())
    return _Signing(key, loaded.public_bytes(serialization.Encoding.DER))


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _token(signing: _Signing, scopes: list[str]) -> str:
    """A JSON web token with all that was asked for, as docker's specification has it."""
    header = {
        "typ": "JWT",
        "alg": "ES256",
        "x5c": [base64.b64encode(signing.certificate).decode()],
    }
    access = []
    for scope in scopes:
        kind, name, actions = scope.split(":", 2)
        access.append({"type": kind, "name": name, "actions": actions.split(",")})
    claims = {
        "iss": "tests",
        "sub": USER,
        "aud": "tests",
        "exp": 1 << 32,
        "nbf": 0,
        "iat": 0,
        "jti": "1",
        "access": access,
    }
    text = f"{_b64(json.dumps(header).encode())}.{_b64(json.dumps(claims).encode())}"
    r, s = decode_dss_signature(signing.key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{text}.{_b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


@contextlib.contextmanager
def _token_server(certificate: Certificate, signing: _Signing, tokens: list[str]) -> Iterator[str]:
    """Run a token server that knows the one user; it notes each scope that it grants."""
    expected = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query).get("scope", [])
            given = self.headers.get("Authorization")
            # Without credentials everybody may read, as on public registries.
            allowed = given == f"Basic {expected}" or (
                given is None and not any("push" in scope for scope in asked)
            )
            self._answer(allowed, asked)

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            form = parse_qs(self.rfile.read(length).decode())
            allowed = form.get("refresh_token") == ["identity"]
            self._answer(allowed, form.get("scope", []))

        def _answer(self, allowed: bool, asked: list[str]) -> None:
            tokens.extend(asked if allowed else ["refused"])
            body = json.dumps({"token": _token(signing, asked)} if allowed else {}).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://localhost:{server.server_port}/token"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)
