"""The answers of a server in its life: real ones of a real model, right and wrong, are played.

``canary_answers.json`` has what Gemma 3 270M (Q4_K_M) answered to the canary with b10068 on the
processor: in several settings, and with the wrong kernels of ``support/c/wrong_kernels.c``.
"""

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tsuku_llm.launch.compute.canary_answer import (
    OTHER,
    Answer,
    AnswerStep,
    KnownAnswers,
    deviation,
    read_completion,
    read_embedding,
    what_is_wrong,
)
from tsuku_llm.launch.gpu.life import FAULT, LOOK, OVER, LifeSample, LifeWatch, ServerProblem
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.report import CanaryResult, Verdict
from tsuku_llm.launch.plan.wishes import Wishes
from tsuku_llm.launch.run.answer_watch import AnswerWatch

REAL = json.loads((Path(__file__).parent / "canary_answers.json").read_bytes())
RIGHT, WRONG = REAL["right"], REAL["wrong"]
PLAIN = RIGHT["plain"]
MODEL = Wishes(names_model=True)
WITHIN = 60.0
ONE_LOOK = 7.0
"""Seconds that the rest of a look takes at most."""


def answer_of(body: dict[str, Any]) -> Answer:
    return read_completion(json.dumps(body).encode())


def repeated(body: dict[str, Any]) -> dict[str, Any]:
    """What a server says that reads nothing: the same at each place."""
    steps = body["completion_probabilities"]
    return {"completion_probabilities": [steps[0]] * len(steps)}


def flat(body: dict[str, Any]) -> dict[str, Any]:
    """What is left of a product of zeros: all tokens are alike, and the first one is taken."""
    rows = [{"id": number, "logprob": -12.4767} for number in range(10)]
    step = {"id": 0, "top_logprobs": rows}
    return {"completion_probabilities": [step] * len(body["completion_probabilities"])}


LATE = {
    **WRONG,
    "reads-nothing": repeated(PLAIN),
    "zeros": flat(PLAIN),
    "one-number-is-none": {
        "completion_probabilities": [
            {"id": 1, "top_logprobs": [{"id": 1, "logprob": -0.1}, {"id": 2, "logprob": None}]}
        ]
    },
}
NOT_SEEN = {"attention-scale", "gate-scale", "q4_k", "q6_k"}
"""Faults that move this answer less than another setting does."""


# --- one answer ------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", RIGHT)
def test_right_answers_in_all_settings_are_right(setting: str) -> None:
    answer = answer_of(RIGHT[setting])
    assert len(answer) == 4
    assert what_is_wrong(answer) == ""
    assert what_is_wrong(answer, answer_of(PLAIN)) == ""
    assert deviation(answer, answer_of(PLAIN)) < OTHER / 3


@pytest.mark.parametrize("fault", sorted(LATE.keys() - NOT_SEEN))
def test_a_wrong_answer_is_wrong(fault: str) -> None:
    assert what_is_wrong(answer_of(LATE[fault]), answer_of(PLAIN))


@pytest.mark.parametrize("fault", ["reads-nothing", "zeros", "product-nan", "one-number-is-none"])
def test_an_answer_that_cannot_be_right_needs_none_before_it(fault: str) -> None:
    assert what_is_wrong(answer_of(LATE[fault]))


def test_a_model_that_repeats_itself_as_it_goes_on_is_right() -> None:
    """A model may say "a a a a"; its numbers are others at each place."""
    steps = tuple(AnswerStep(7, (7, 8), (0.5 - at / 100, 1.0 + at / 100)) for at in range(4))
    assert what_is_wrong(steps) == ""


def test_another_token_by_a_hair_is_right_and_the_text_after_it_is_not_compared() -> None:
    before = (AnswerStep(7, (7, 8), (0.69, 0.70)), AnswerStep(9, (9, 1), (0.1, 3.0)))
    after = (AnswerStep(8, (8, 7), (0.69, 0.70)), AnswerStep(1, (1, 9), (0.1, 9.0)))
    assert what_is_wrong(after, before) == ""
    far = (AnswerStep(8, (8, 7), (0.2, 4.0)), *after[1:])
    assert "another token at place 1" in what_is_wrong(far, before)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"completion_probabilities": [{}]}'])
def test_a_server_that_tells_nothing_is_not_judged(content: bytes) -> None:
    assert read_completion(content) == ()
    assert what_is_wrong((), answer_of(PLAIN)) == ""


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b'[{"index": 0, "embedding": [[0.5, -0.25]]}]', False),
        (b'[{"index": 0, "embedding": [[0.5, null]]}]', True),
        (b'{"embedding": [null]}', True),
        (b"x", False),
    ],
)
def test_an_embedding_without_numbers_is_wrong(content: bytes, *, wrong: bool) -> None:
    assert bool(what_is_wrong(read_embedding(content))) is wrong


# --- a life ----------------------------------------------------------------------------------


@dataclass
class Served:
    """A server with slots, whose answers are those of ``answers`` from the request ``begins`` on.

    ``requests`` are what the canary asked, each with the number of its slot.
    """

    answers: dict[str, Any] = field(default_factory=lambda: PLAIN)
    begins: int = 0
    slots: list[dict[str, Any]] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    tells_slots: bool = True
    task: int = 0

    def __post_init__(self) -> None:
        self.slots = [{"id": number, "is_processing": False} for number in range(4)]

    def serve(self, slot: int, tokens: int = 2000, *, busy: bool = False) -> None:
        """Answer a client."""
        self.task += 1
        used = {"id_task": self.task, "n_prompt_tokens": tokens, "is_processing": busy}
        self.slots[slot] = {"id": slot, **used}

    def complete(self, slot: int) -> dict[str, Any]:
        self.requests.append(slot)
        self.serve(slot, tokens=18)
        return self.answers if self.task > self.begins else PLAIN


class _Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._say(self.server.served.slots if self.server.served.tells_slots else {"error": 501})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._say(self.server.served.complete(body["id_slot"]))

    def _say(self, document: object) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())


class _Server(http.server.HTTPServer):
    served: Served


@pytest.fixture(scope="module")
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Life:
    """The life of a server that is looked at as ``launch.run.monitor`` does, by a fixed clock."""

    def __init__(self, server: _Server, served: Served, known: KnownAnswers | None = None) -> None:
        server.served = self.served = served
        self.kept: list[Answer] = []
        address = ServerAddress(port=server.server_port)
        self.answers = AnswerWatch(address, MODEL, known or KnownAnswers(), self.kept.append)
        self.watch = LifeWatch(Verdict.ON_GPU)
        self.now = 0.0
        self.told: list[tuple[float, ServerProblem]] = []

    def look(self) -> None:
        self.now += LOOK
        self.watch.see(LifeSample(self.now, worked=True))
        if self.watch.wants_answer:
            wrong = self.answers.look()
            problem = self.answers.told if wrong is None else self.watch.hear(wrong)
            if problem:
                self.told.append((self.now, problem))

    @property
    def kinds(self) -> list[str]:
        return [problem.kind for _, problem in self.told]


@pytest.mark.parametrize("begins", [3, 40])
@pytest.mark.parametrize("fault", sorted(LATE.keys() - NOT_SEEN))
def test_a_fault_that_begins_late_is_found_once_within_a_minute(
    server: _Server, fault: str, begins: int
) -> None:
    life = Life(server, Served(LATE[fault], begins))
    since: float | None = None
    for _ in range(60):
        life.served.serve(0)
        if since is None and life.served.task > begins:
            since = life.now
        life.look()
    assert life.kinds == [FAULT]
    at, problem = life.told[0]
    assert since is not None
    assert at - since + ONE_LOOK <= WITHIN
    assert problem.text == "the server answers wrongly"
    assert problem.ends
    assert problem.facts
    assert life.watch.problem == problem


def test_there_are_ten_late_faults() -> None:
    assert len(LATE.keys() - NOT_SEEN) >= 10


@pytest.mark.parametrize("fault", sorted(NOT_SEEN))
def test_a_fault_that_the_short_answer_does_not_show_is_the_gates(
    server: _Server, fault: str
) -> None:
    """``test_wrong_kernels`` shows that the reference models do."""
    life = Life(server, Served(LATE[fault], 3))
    for _ in range(10):
        life.served.serve(0)
        life.look()
    assert life.kinds == []


def test_a_server_that_is_right_in_every_setting_is_never_accused(server: _Server) -> None:
    for setting in RIGHT.values():
        life = Life(server, Served(setting, 5))
        for _ in range(10):
            life.served.serve(0)
            life.look()
        assert life.kinds == []


def test_another_answer_beside_a_client_accuses_nobody(server: _Server) -> None:
    """A model with recurrent layers may answer anything then: llama.cpp issue 29002."""
    life = Life(server, Served(LATE["product-rows"], 3))
    life.look()
    for _ in range(10):
        life.served.serve(0, busy=True)
        life.look()
    assert len(life.served.requests) > 10
    assert life.kinds == []
    # Nobody is served now, and it is as wrong as before.
    life.served.serve(0)
    life.look()
    assert life.kinds == [FAULT]


@pytest.mark.parametrize("fault", ["product-nan", "reads-nothing", "zeros"])
def test_no_numbers_and_repetition_are_wrong_beside_a_client_too(
    server: _Server, fault: str
) -> None:
    life = Life(server, Served(LATE[fault], 3))
    life.look()
    for _ in range(10):
        life.served.serve(0, busy=True)
        life.look()
    assert life.kinds == [FAULT]


def test_a_first_answer_beside_a_client_is_not_kept(server: _Server) -> None:
    life = Life(server, Served(LATE["product-rows"]))
    life.served.serve(0, busy=True)
    result = CanaryResult(answered=True, answer=answer_of(LATE["product-rows"]))
    assert life.answers.first(result) == ""
    assert life.kept == []
    life.served.answers = PLAIN
    life.served.serve(0)
    life.look()
    assert (life.kept, life.kinds) == ([answer_of(PLAIN)], [])


def test_one_wrong_answer_alone_accuses_nobody(server: _Server) -> None:
    life = Life(server, Served())
    life.look()
    life.served.serve(0)
    life.served.answers, life.served.begins = LATE["product-rows"], life.served.task
    begun = life.served.complete

    def once(slot: int) -> dict[str, Any]:
        found = begun(slot)
        life.served.answers = PLAIN
        return found

    life.served.complete = once  # type: ignore[method-assign]
    life.look()
    assert life.kinds == []


def test_a_server_that_answers_rightly_again_is_well_again(server: _Server) -> None:
    life = Life(server, Served(LATE["product-rows"], 3))
    for _ in range(6):
        life.served.serve(0)
        life.look()
    life.served.answers = PLAIN
    life.served.serve(0)
    life.look()
    assert life.kinds == [FAULT, OVER]
    assert life.watch.problem is None


def test_another_build_that_answers_nearly_the_same_is_right(server: _Server) -> None:
    known = KnownAnswers(other=answer_of(PLAIN), build="b100-cpu")
    life = Life(server, Served(RIGHT["no flash attention"]), known)
    life.look()
    assert life.kinds == []
    assert len(life.kept) == 1


def test_a_server_that_nobody_uses_is_asked_once(server: _Server) -> None:
    life = Life(server, Served())
    for _ in range(10):
        life.look()
    assert len(life.served.requests) == 1
    assert life.kept == [answer_of(PLAIN)]


def test_no_clients_text_gives_way_and_that_is_told_once(server: _Server) -> None:
    life = Life(server, Served())
    life.look()
    for slot in range(4):
        life.served.serve(slot)
    for _ in range(20):
        life.served.serve(2)
        life.look()
    assert life.kinds == ["unread"]
    assert "not checked" in life.told[0][1].text
    assert len(life.served.requests) == 1
    # A slot that was emptied is free again.
    life.served.serve(1, tokens=0)
    life.look()
    assert life.served.requests[1:] == [1]


def test_the_canary_takes_one_slot_only(server: _Server) -> None:
    life = Life(server, Served())
    for _ in range(10):
        life.served.serve(0)
        life.look()
    assert set(life.served.requests) == {3}


def test_a_busy_server_is_not_asked_before_it_was_right_once(server: _Server) -> None:
    life = Life(server, Served())
    life.served.serve(0, busy=True)
    life.look()
    assert life.served.requests == []


@pytest.mark.parametrize(
    "wishes", [Wishes(), Wishes(names_model=True, sleeps=True)], ids=["router", "sleeps"]
)
def test_a_router_and_a_server_that_sleeps_are_not_asked(server: _Server, wishes: Wishes) -> None:
    server.served = Served()
    address = ServerAddress(port=server.server_port)
    assert AnswerWatch(address, wishes, KnownAnswers(), lambda _: None).look() is None
    assert server.served.requests == []


def test_a_server_that_hides_its_slots_is_not_asked(server: _Server) -> None:
    life = Life(server, Served(tells_slots=False))
    life.look()
    assert life.served.requests == []


# --- what earlier starts answered ------------------------------------------------------------


def test_a_build_that_answers_otherwise_than_at_an_earlier_start_is_wrong(server: _Server) -> None:
    life = Life(server, Served(LATE["product-rows"]), KnownAnswers(own=answer_of(PLAIN)))
    life.look()
    assert life.kinds == [FAULT]
    assert life.told[0][1].ends
    assert life.kept == []


def test_another_build_that_answers_otherwise_is_told_and_not_ended(server: _Server) -> None:
    """Upstream may have mended what the model means: which of the two is right is not known."""
    known = KnownAnswers(other=answer_of(PLAIN), build="b100-cpu")
    life = Life(server, Served(LATE["product-rows"]), known)
    life.answers.first(CanaryResult(answered=True, answer=answer_of(LATE["product-rows"])))
    told = life.answers.told
    assert told
    assert (told.kind, told.ends) == (FAULT, False)
    assert "b100-cpu" in told.facts[0]
    assert len(life.kept) == 1
