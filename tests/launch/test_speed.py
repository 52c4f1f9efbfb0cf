"""The measurement of a server: what it says if the server refuses."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tsuku_llm.ground.errors import LaunchError
from tsuku_llm.launch.ask.speed import measure, read_along
from tsuku_llm.launch.compute.canary_answer import AnswerStep
from tsuku_llm.launch.plan.addresses import ServerAddress


@contextmanager
def answering(status: int, body: bytes) -> Iterator[int]:
    """A server with one answer to everything; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"code": 500, "message": "Invalid output"}}', "Invalid output"),
        (b"<h1>Bad gateway</h1>", "<h1>Bad gateway</h1>"),
        (b"", "it gave no reason"),
    ],
)
def test_a_refusal_has_the_servers_own_message(body: bytes, message: str) -> None:
    with answering(500, body) as port, pytest.raises(LaunchError) as failed:
        measure(ServerAddress("127.0.0.1", port))
    assert failed.value.message == f"the server refused to be measured: {message}"
    assert failed.value.facts == ("HTTP status 500 for /props",)
    assert "tsuku-llm serve" in failed.value.hint


@pytest.mark.parametrize("body", [b"{}", b"[]", b"no JSON"])
def test_a_strange_answer_is_told_without_a_word_of_python(body: bytes) -> None:
    with answering(200, body) as port, pytest.raises(LaunchError) as failed:
        measure(ServerAddress("127.0.0.1", port))
    assert failed.value.message == "the server's answers lack what a measurement needs"
    assert "Error" not in " ".join((*failed.value.facts, failed.value.hint))


def test_a_server_that_is_gone_is_told() -> None:
    with answering(200, b"{}") as port:
        pass
    with pytest.raises(LaunchError, match="broke off the connection"):
        measure(ServerAddress("127.0.0.1", port))


STEP = b'{"id": 7, "top_logprobs": [{"id": 7, "logprob": -0.25}, {"id": 9, "logprob": -2}]}'


def test_a_server_is_asked_for_the_next_token_after_each_token_of_a_text() -> None:
    body = b'{"tokens": [1, 2, 3], "completion_probabilities": [' + STEP + b"]}"
    with answering(200, body) as port:
        found = read_along(ServerAddress("127.0.0.1", port))
    assert found == (AnswerStep(7, (7, 9), (0.25, 2.0)),) * 3


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, STEP), (200, b"{}"), (200, b'{"tokens": [1, 2]}'), (200, b"no JSON"), (200, b"[]")],
)
def test_a_server_that_tells_no_probabilities_is_not_compared(status: int, body: bytes) -> None:
    with answering(status, body) as port:
        assert read_along(ServerAddress("127.0.0.1", port)) == ()
