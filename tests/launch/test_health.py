"""Where a server listens, by its words and variables, and whether it is ready."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tsuku_llm.launch.health import Readiness, ServerAddress, address_of, is_healthy
from tsuku_llm.launch.planning import LaunchPlan


@pytest.mark.parametrize(
    ("words", "env", "address"),
    [
        ("", {}, ServerAddress("127.0.0.1", 8080)),
        ("--port 9 --host ::1", {}, ServerAddress("::1", 9)),
        ("--port 9 --port 10", {}, ServerAddress("127.0.0.1", 10)),
        ("", {"LLAMA_ARG_PORT": "9", "LLAMA_ARG_HOST": "h"}, ServerAddress("h", 9)),
        ("--port 10", {"LLAMA_ARG_PORT": "9"}, ServerAddress("127.0.0.1", 10)),
        ("--port x", {}, ServerAddress("127.0.0.1", 8080)),
        ("--port", {}, ServerAddress("127.0.0.1", 8080)),
        ("--api-prefix /v", {}, ServerAddress(prefix="/v")),
        ("--ssl_cert_file c.pem", {}, ServerAddress(tls=True)),
        ("--host /run/a.sock", {}, ServerAddress("/run/a.sock", 8080)),
    ],
)
def test_the_address_comes_from_arguments_and_variables(
    words: str, env: dict[str, str], address: ServerAddress
) -> None:
    assert address_of(words.split(), env) == address
    assert address.is_unix == address.host.endswith(".sock")


@contextmanager
def answering(listening: socket.socket, answer: bytes) -> Iterator[list[bytes]]:
    """A server that gives one answer to one request."""
    requests: list[bytes] = []

    def serve() -> None:
        client, _ = listening.accept()
        with client:
            requests.append(client.recv(4096))
            client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield requests
    finally:
        thread.join()
        listening.close()


@pytest.mark.parametrize(
    ("answer", "healthy"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n{}", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", False),
        (b"", False),
        (b"SSH-2.0-OpenSSH 200", False),
    ],
)
def test_only_status_200_is_ready(answer: bytes, healthy: bool) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with answering(listening, answer) as requests:
        address = ServerAddress("0.0.0.0", listening.getsockname()[1], "/v")  # noqa: S104
        assert is_healthy(address) is healthy
    assert requests[0].startswith(b"GET /v/health HTTP/1.0\r\n")


def test_a_unix_socket_is_asked_too(tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "a.sock"))
    listening.listen()
    with answering(listening, b"HTTP/1.1 200 OK\r\n\r\n"):
        assert is_healthy(ServerAddress(str(tmp_path / "a.sock")))


@pytest.mark.parametrize("host", ["127.0.0.1", "a..b", "x" * 70, "\udcff", "/absent.sock"])
def test_a_refused_connection_is_not_ready(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert not is_healthy(ServerAddress(host, port))
    assert not is_healthy(ServerAddress(host, 80000))


@pytest.mark.parametrize("mark", [b"main: model loaded", b"srv: listening on"])
def test_a_log_shows_that_a_server_serves_before_its_line_is_complete(
    mark: bytes, tmp_path: Path
) -> None:
    readiness = Readiness(LaunchPlan(("/server",), tmp_path, {}, "cpu"))
    readiness.on_stderr(b"load: a model is loaded now\n" + mark[:-3])
    assert not readiness.served
    readiness.on_stderr(mark[-3:])
    assert readiness.served


def test_a_server_that_was_confirmed_has_served_and_its_log_is_not_read_on(tmp_path: Path) -> None:
    readiness = Readiness(LaunchPlan(("/server", "--port", "0"), tmp_path, {}, "cpu"))
    readiness.on_stderr(b"listening on http://127.0.0.1:81\n")
    readiness.confirm()
    readiness.on_stderr(b"listening on http://127.0.0.1:82\n")
    assert readiness.served
    assert readiness.address.port == 81
