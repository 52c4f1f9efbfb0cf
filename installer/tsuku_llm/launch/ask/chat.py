"""A conversation with a server: its answer to messages, piece by piece as it is computed.

The API is that of OpenAI's chat completions, as upstream's ``tools/server/README.md`` describes it.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from tsuku_llm.ground.errors import LaunchError
from tsuku_llm.ground.foreign import LARGEST, parse_object, read_answer
from tsuku_llm.ground.safe_text import Secret
from tsuku_llm.launch.ask.health import connect
from tsuku_llm.launch.ask.speed import server_message
from tsuku_llm.launch.plan.addresses import ServerAddress

Message = Mapping[str, str]
"""One message: its ``role`` (``user`` or ``assistant``) and its ``content``."""

_PATH = "/v1/chat/completions"
_OF_THE_SERVER = 500
"""The lowest HTTP status of a fault of the server's own."""
_SILENCE = 900.0
"""Seconds without a word: a slow processor reads a long question for minutes."""
_MARKS = ("<|im_start|>", "<|im_end|>")
"""Words that end an answer.

A model without a template gets ChatML's from upstream (common/chat.cpp,
``common_chat_templates_init``). It does not know how to end then, and writes the marks as text.
"""
_MOST = 4096
"""Pieces of an answer, about a token each, if the user bounds it with no ``-n``.

Upstream's server and its llama-cli go on until the context is full (``n_predict`` is -1 in
common/common.h); ollama stops after ten contexts (ollama/ollama#3918). A small model that was
trained to continue texts fills 32,768 tokens, which takes a processor minutes. Thoughts are not
counted: they may be long before a short answer.
"""
_TAIL = 4096
_LOOP = 400
"""An answer whose last ``_TAIL`` characters repeat one passage of at most ``_LOOP`` has no end.

ollama stops after the same token came 100 times; with 30 it cut answers that were right
(ollama/ollama#18374). So a passage of 40 characters may come 100 times here, too.
"""
_PAUSE = 64
"""Pieces between two looks for a loop, so that a fast server does not wait for them."""
_DATA = b"data:"
_END = b"[DONE]"


class Piece(NamedTuple):
    """A piece of an answer; ``is_thought`` if the model only thinks, before its answer.

    ``stopped`` is in the last one of an answer that was not at its end, and says why.
    """

    text: str
    is_thought: bool = False
    stopped: str = ""


def stream_answer(
    address: ServerAddress, key: Secret | None, messages: Sequence[Message]
) -> Generator[Piece, None, None]:
    """Ask for the answer to these messages; yield it as it comes.

    Closing the iterator closes the connection, and the server then stops computing. Raises
    ``LaunchError`` if the server refuses, and ``OSError`` or ``ValueError`` if the answer breaks
    off or is not understood.
    """
    from http.client import HTTPConnection, HTTPException

    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key.reveal()}"
    body = json.dumps({"messages": messages, "stream": True, "stop": _MARKS})
    with closing(HTTPConnection(address.reachable_host)) as connection:
        try:
            # Ours, as the server may listen at a Unix socket.
            connection.sock = connect(address)
            connection.sock.settimeout(_SILENCE)
            connection.request("POST", address.prefix + _PATH, body, headers)
            # The response owns the connection if the server closes that after its answer.
            with connection.getresponse() as response:
                if response.status != 200:
                    raise _refused(server_message(read_answer(response)), response.status)
                while line := response.readline(LARGEST):
                    # Other lines are comments, or empty ones between two events.
                    if not line.startswith(_DATA):
                        continue
                    data = line[len(_DATA) :].strip()
                    if data == _END:
                        return
                    yield from read_event(data)
        except HTTPException as error:
            raise OSError(str(error) or "the connection was closed") from error
    raise OSError("the connection was closed before the end of the answer")


def bounded(pieces: Generator[Piece, None, None]) -> Generator[Piece, None, None]:
    """Yield an answer until its end, ``_MOST`` pieces, or a passage that comes again and again."""
    words = 0
    tail = ""
    with closing(pieces):
        for number, piece in enumerate(pieces, 1):
            yield piece
            words += not piece.is_thought
            tail = (tail + piece.text)[-_TAIL:]
            if words == _MOST:
                why = f"the answer was stopped after {_MOST} tokens: ask for more of it, or allow "
                yield Piece("", stopped=f"{why}longer answers with: -- -n 20000")
                return
            if number % _PAUSE == 0 and len(tail) == _TAIL and _loops(tail):
                yield Piece("", stopped="the answer was stopped: the model only repeats itself")
                return


def _loops(text: str) -> bool:
    return any(text[length:] == text[:-length] for length in range(1, _LOOP + 1))


def read_event(data: bytes) -> Iterator[Piece]:
    """Yield the text in one event of an answer. Raises ``ValueError`` and ``LaunchError``."""
    event = parse_object(data)
    if "error" in event:
        error = event["error"]
        raise _refused(server_message(data), error.get("code") if isinstance(error, dict) else None)
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict):
            for key, is_thought in (("reasoning_content", True), ("content", False)):
                if isinstance(text := delta.get(key), str) and text:
                    yield Piece(text, is_thought)


def _refused(message: str, status: object) -> LaunchError:
    facts = (f"HTTP status {status} for {_PATH}",) if status else ()
    # llama.cpp#26381: now and then a server does not understand what its model has said.
    if isinstance(status, int) and status >= _OF_THE_SERVER:
        return LaunchError(
            f"the server could not answer: {message}",
            facts=facts,
            hint="ask again, or in other words; if it stays so, try another model or build",
        )
    return LaunchError(
        f"the server refused the question: {message}",
        facts=facts,
        hint="a question that is too long needs a larger context, such as -- -c 8192; "
        "a model that only makes embeddings answers none",
    )
