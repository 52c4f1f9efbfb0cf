"""Answers of chat completions, as upstream's server writes them (tools/server/README.md)."""

import json
import re
from collections.abc import Generator, Iterable
from itertools import chain, count, cycle

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tsuku_llm.ground.errors import LaunchError
from tsuku_llm.ground.safe_text import Secret
from tsuku_llm.launch.ask.chat import Piece, bounded, stream_answer
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


@pytest.mark.parametrize("kind", ["status", "event"])
def test_a_fault_of_the_servers_own_is_no_refusal(httpserver: HTTPServer, kind: str) -> None:
    """The answer was cut off by this in llama.cpp#26381 and #27733, of every kind of model."""
    words = "The model produced output that does not match the expected peg-native format"
    error = json.dumps({"error": {"code": 500, "message": words, "type": "server_error"}})
    body, status = (error, 500) if kind == "status" else (f"data: {error}\n\n", 200)
    httpserver.expect_request(f"/llm{PATH}").respond_with_data(body, status)
    with pytest.raises(LaunchError) as failed:
        answer(httpserver)
    assert failed.value.message == f"the server could not answer: {words}"
    assert failed.value.hint.startswith("ask again")


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


def said(words: Iterable[str], *, is_thought: bool = False) -> Generator[Piece, None, None]:
    for word in words:
        yield Piece(word, is_thought)


def test_an_answer_ends_after_4096_tokens_without_its_thoughts() -> None:
    thoughts = said((f"{number} " for number in range(9000)), is_thought=True)
    words = said(f"{number} " for number in count())

    def both() -> Generator[Piece, None, None]:
        yield from thoughts
        yield from words

    *pieces, last = bounded(both())
    assert len(pieces) == 9000 + 4096
    assert (last.text, last.stopped[:44]) == ("", "the answer was stopped after 4096 tokens: as")
    assert next(words, None) is None  # the connection is closed


@pytest.mark.parametrize("passage", ["and ", "☺☺", "A sentence of some words.\n" * 15])
@pytest.mark.parametrize("is_thought", [False, True])
def test_an_answer_ends_if_it_only_repeats_itself(passage: str, is_thought: bool) -> None:
    words = said(
        chain(["To begin with: "], cycle(re.findall("(?s).{1,4}", passage))), is_thought=is_thought
    )
    *pieces, last = bounded(words)
    assert last.stopped == "the answer was stopped: the model only repeats itself"
    text = "".join(piece.text for piece in pieces)
    assert 4096 <= len(text) <= 4096 + 15 + 64 * 4


@pytest.mark.parametrize(
    "line", ["0, 0, 0, 0, 0, 0, 0, 0,\n", "All work and no play makes Jack dull\n"]
)
def test_a_hundred_equal_lines_are_an_answer(line: str) -> None:
    answered = [*said(chain("Here they are:\n", line * 100, "That is all."))]
    assert [*bounded(said(piece.text for piece in answered))] == answered
