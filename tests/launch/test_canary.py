"""The canary request, to a server that answers as llama-server does."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tsuku_llm.ground.safe_text import Secret
from tsuku_llm.launch.ask.canary import ask_canary
from tsuku_llm.launch.ask.health import api_key
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.report import CanaryResult
from tsuku_llm.launch.plan.wishes import Wishes

ANSWERED = CanaryResult(answered=True)


class Answering(http.server.HTTPServer):
    """A server that answers each path with a status, 0 for none, and notes what it was asked."""

    def __init__(self, statuses: dict[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = statuses
        self.asked: list[tuple[str, str | None, dict[str, object]]] = []

    @property
    def address(self) -> ServerAddress:
        return ServerAddress("127.0.0.1", self.server_port)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Answering

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        if status := self.server.statuses.get(self.path, 404):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"{}")


@contextmanager
def answering(**statuses: int) -> Iterator[Answering]:
    with Answering({f"/{path}": status for path, status in statuses.items()}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_few_tokens_are_asked_for_and_nothing_is_kept() -> None:
    with answering(completion=200) as server:
        assert ask_canary(server.address, Wishes()) == ANSWERED
    ((path, key, body),) = server.asked
    assert (path, key) == ("/completion", None)
    assert (body["n_predict"], body["cache_prompt"]) == (4, False)


@pytest.mark.parametrize(
    ("statuses", "result", "paths"),
    [
        ({"completion": 501, "embedding": 200}, ANSWERED, ["/completion", "/embedding"]),
        ({"completion": 500}, CanaryResult(problem="answered with HTTP status 404"), None),
        (
            {"completion": 401},
            CanaryResult(problem="answered with HTTP status 401"),
            ["/completion"],
        ),
        ({"completion": 0}, CanaryResult(problem="not answered: no HTTP", lost=True), None),
    ],
)
def test_a_server_that_refuses_completions_is_asked_for_an_embedding(
    statuses: dict[str, int], result: CanaryResult, paths: list[str] | None
) -> None:
    with answering(**statuses) as server:
        assert ask_canary(server.address, Wishes()) == result
    assert paths is None or [path for path, _, _ in server.asked] == paths


def test_the_servers_own_key_and_prefix_are_used(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\nfrom-a-file\nother\n")
    with answering(completion=200) as server:
        ask_canary(server.address, Wishes(key=Secret("one,two"), key_file=str(keys)))
        ask_canary(server.address, Wishes(key_file=str(keys)))
        ask_canary(server.address._replace(prefix="/v"), Wishes())
    assert [(path, key) for path, key, _ in server.asked] == [
        ("/completion", "Bearer one"),
        ("/completion", "Bearer from-a-file"),
        ("/v/completion", None),
        ("/v/embedding", None),
    ]


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"# keys of the team\n\nsk-one\nsk-two\n", "sk-one"),
        (b"#sk-zero\nsk-one", "sk-one"),
        (b"\n\n#\n# x\nsk-one\n", "sk-one"),
        (b"sk one \n", "sk one "),
        (b" # sk\nsk-one\n", " # sk"),
        (b"# keys\r\nsk-one\r\n", "sk-one"),
        (b"sk#one\n", "sk#one"),
        ("# Schl\u00fcssel\nsk-\u00fc\n".encode(), "sk-\u00fc"),
        (b"# \xff\nsk-one\n", "sk-one"),
        (b"# only a comment\n", None),
        (b"", None),
    ],
)
def test_N03_a_file_of_keys_is_read_as_the_server_reads_it(
    content: bytes, key: str | None, tmp_path: Path
) -> None:
    """``--api-key-file`` in common/arg.cpp of b11434: no empty lines, none that begin with "#"."""
    file = tmp_path / "keys"
    file.write_bytes(content)
    assert api_key(Wishes(key_file=str(file))) == (None if key is None else Secret(key))


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("one", "one"),
        ("one,two", "one"),
        (",two", "two"),
        ('"a,b",c', "a,b"),
        ('"a""b"', 'a"b'),
        ('"",c', "c"),
        (",", None),
        ("a b", "a b"),
    ],
)
def test_N03_several_keys_are_read_as_the_server_reads_them(given: str, key: str | None) -> None:
    assert api_key(Wishes(key=Secret(given))) == (None if key is None else Secret(key))


def test_a_server_that_is_gone_is_lost() -> None:
    with answering() as server:
        address = server.address
    assert ask_canary(address, Wishes()).lost


def test_a_server_with_tls_is_not_asked() -> None:
    result = ask_canary(ServerAddress("127.0.0.1", 1, tls=True), Wishes())
    assert result == CanaryResult(problem="the server wants TLS")
