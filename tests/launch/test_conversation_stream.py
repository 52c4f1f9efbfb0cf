"""Answers of chat completions, as upstream's server writes them (tools/server/README.md)."""

import json

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tsuku_llm.ground.errors import LaunchError
from tsuku_llm.ground.safe_text import Secret
from tsuku_llm.launch.ask.chat import Piece, stream_answer
from tsuku_llm.launch.plan.addresses import ServerAddress

PATH = "/v1/chat/completions"
QUESTION = {"role": "user", "content": "Why?"}


def event(**delta: str | None) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"


def answer(server: HTTPServer, key: Secret | None = None) -> list[Piece]:
    return [*stream_answer(ServerAddress(server.host, server.port, "/llm"), key, [QUESTION])]


def test_an_answer_comes_in_pieces_after_its_thoughts(httpserver: HTTPServer) -> None:
    asked: list[Request] = []
    events = [
        event(role="assistant", content=None),
        event(reasoning_content="Hm."),
        ": a comment\n\n",
        event(content="Be"),
        'data:{"choices":[{"delta":{"content":"cause ☺"}}]}\n\n',
        event(),
        'data: {"choices":[],"usage":{"total_tokens":3}}\n\n',
        "data: [DONE]\n\n",
        event(content="never read"),
    ]

    def told(request: Request) -> Response:
        asked.append(request)
        return Response((each.encode() for each in events), content_type="text/event-stream")

    httpserver.expect_request(f"/llm{PATH}", method="POST").respond_with_handler(told)
    assert answer(httpserver, Secret("key")) == [
        Piece("Hm.", is_thought=True),
        Piece("Be"),
        Piece("cause ☺"),
    ]
    assert asked[0].headers["Authorization"] == "Bearer key"
    # ChatML's marks: Gemma 3 270M has no template, and wrote them without an end (b10068).
    marks = ["<|im_start|>", "<|im_end|>"]
    assert asked[0].get_json() == {"messages": [QUESTION], "stream": True, "stop": marks}


@pytest.mark.parametrize("kind", ["status", "event"])
def test_a_refusal_has_the_words_of_the_server(httpserver: HTTPServer, kind: str) -> None:
    # llama.cpp b11434, tools/server/server-context.cpp: a prompt that is too long.
    words = "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing"
    error = json.dumps({"error": {"code": 400, "message": words}})
    body, status = (error, 400) if kind == "status" else (f"data: {error}\n\n", 200)
    httpserver.expect_request(f"/llm{PATH}").respond_with_data(body, status)
    with pytest.raises(LaunchError, match="the server refused the question: request ") as refused:
        answer(httpserver)
    assert words in refused.value.message
    assert "-c 8192" in refused.value.hint


@pytest.mark.parametrize(
    "body", ["", event(content="Be"), "data: no JSON\n\n", "data: []\n\n", "data: {"]
)
def test_an_answer_that_breaks_off_is_an_error(httpserver: HTTPServer, body: str) -> None:
    httpserver.expect_request(f"/llm{PATH}").respond_with_data(body)
    with pytest.raises((OSError, ValueError)):
        answer(httpserver)


def test_a_server_that_is_gone_is_an_error() -> None:
    with pytest.raises(OSError, match="refused"):
        [*stream_answer(ServerAddress(port=1), None, [QUESTION])]
