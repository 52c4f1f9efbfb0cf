"""The warm-up's requests, to a server whose driver compiles at the first prompt of each kind."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tsuku_llm.ground.safe_text import Secret
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.wishes import Wishes
from tsuku_llm.launch.run.warm_up import ENOUGH, LIMIT, SIZES, WarmUp


@dataclass
class Device:
    """A device that reads ``speed`` tokens a second; its time passes only while it computes.

    ``compiling`` is how long the driver needs for each kind of batch when it first meets it.
    """

    speed: float = 100_000.0
    compiling: float = 0.0
    now: float = 0.0
    kinds: set[str] = field(default_factory=set)

    def clock(self) -> float:
        return self.now

    def compute(self, tokens: int) -> None:
        # As ggml-vulkan: up to 8 columns one by one, and three sizes of tiles.
        kinds = (8, 32, 64, 512)
        kind = next((f"up to {most}" for most in kinds if tokens <= most), "several batches")
        if kind not in self.kinds:
            self.kinds.add(kind)
            self.now += self.compiling
        self.now += tokens / self.speed


class Llama(http.server.HTTPServer):
    """A server on that device: ``refuses`` are paths, ``most`` is its context in tokens."""

    def __init__(self, device: Device, refuses: tuple[str, ...], most: int, ends_at: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.device, self.refuses, self.most, self.ends_at = device, refuses, most, ends_at
        self.asked: list[tuple[str, int]] = []
        self.bodies: list[dict[str, object]] = []
        self.keys: list[str | None] = []

    @property
    def address(self) -> ServerAddress:
        return ServerAddress("127.0.0.1", self.server_port)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Llama

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = body.get("prompt") or body["content"]
        server = self.server
        server.bodies.append(body)
        server.keys.append(self.headers["Authorization"])
        server.asked.append((self.path, len(tokens)))
        if 0 < server.ends_at <= len(tokens):
            return
        status = 200
        if self.path in server.refuses:
            status = 501
        elif len(tokens) > server.most:
            status = 400
        else:
            server.device.compute(len(tokens))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"{}")


@contextmanager
def llama(
    device: Device, *, refuses: tuple[str, ...] = (), most: int = 4096, ends_at: int = 0
) -> Iterator[Llama]:
    with Llama(device, refuses, most, ends_at) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def sizes(server: Llama) -> list[int]:
    return [size for _, size in server.asked]


@pytest.mark.parametrize("prompt", [1, 5, 20, 50, 200, 512, 2000, 3000])
def test_after_a_warm_up_no_prompt_is_more_than_twice_as_slow_as_the_second(prompt: int) -> None:
    device = Device(compiling=7.0)
    with llama(device) as server:
        warm_up = WarmUp(server.address, Wishes(), clock=device.clock)
        warm_up.first()
        assert not warm_up.rest().problem
    before = device.now
    device.compute(prompt)
    first = device.now - before
    before = device.now
    device.compute(prompt)
    assert first <= 2 * (device.now - before)


def test_where_all_is_compiled_each_size_is_asked_for_once() -> None:
    device = Device()
    with llama(device) as server:
        warm_up = WarmUp(server.address, Wishes(key=Secret("a,b")), clock=device.clock)
        assert not warm_up.first().problem
        assert sizes(server) == [1]
        assert not warm_up.rest().problem
    # A short one at the end: a long prompt in its slot would be saved at the user's first request.
    assert sizes(server) == [1, *SIZES, 1]
    assert {path for path, _ in server.asked} == {"/completion"}
    assert all(body["cache_prompt"] is False for body in server.bodies)
    assert set(server.keys) == {"Bearer a"}


def test_a_slow_device_is_not_kept_busy_with_prompts_that_take_long() -> None:
    """Half a token a second, as a large model of which little is on the GPU."""
    device = Device(speed=2.0)
    with llama(device) as server:
        warm_up = WarmUp(server.address, Wishes(), clock=device.clock)
        warm_up.first()
        result = warm_up.rest()
    assert "take too long here" in result.problem
    assert max(sizes(server)) <= 16
    assert device.now < 45
    # Compiling is not slowness: the same device with a compiler that takes a minute.
    fast = Device(compiling=60.0)
    with llama(fast) as server:
        warm_up = WarmUp(server.address, Wishes(), clock=fast.clock)
        warm_up.first()
        assert not warm_up.rest().problem
    assert max(sizes(server)) == SIZES[-1]


def test_a_warm_up_begins_no_prompt_after_its_limit() -> None:
    """A driver that compiles for four minutes at each kind of batch."""
    device = Device(compiling=240.0)
    with llama(device) as server:
        warm_up = WarmUp(server.address, Wishes(), clock=device.clock)
        warm_up.first()
        result = warm_up.rest()
    assert result.problem == "compiling takes more than 600 seconds"
    assert not result.unanswered
    assert ENOUGH < device.now < ENOUGH + LIMIT


def test_a_server_for_embeddings_is_warmed_up_with_embeddings() -> None:
    with llama(Device(), refuses=("/completion",), most=512) as server:
        warm_up = WarmUp(server.address, Wishes())
        assert not warm_up.first().problem
        result = warm_up.rest()
    assert result.problem == "a prompt of 1100 tokens was answered with HTTP status 400"
    assert server.asked[0] == ("/completion", 1)
    assert server.asked[1:] == [("/embedding", size) for size in (1, *SIZES, 1)]


def test_a_small_context_ends_the_growth() -> None:
    with llama(Device(), most=100) as server:
        warm_up = WarmUp(server.address, Wishes())
        warm_up.first()
        result = warm_up.rest()
    assert (result.problem, result.unanswered) == (
        "a prompt of 128 tokens was answered with HTTP status 400",
        False,
    )
    assert sizes(server)[-2:] == [128, 1]


def test_a_server_that_refuses_everything_is_left_alone() -> None:
    with llama(Device(), refuses=("/completion", "/embedding")) as server:
        assert "HTTP status 501" in WarmUp(server.address, Wishes()).first().problem
    assert len(server.asked) == 2


@pytest.mark.parametrize("ends_at", [1, 64])
def test_a_server_that_ends_meanwhile_is_lost(ends_at: int) -> None:
    with llama(Device(), ends_at=ends_at) as server:
        warm_up = WarmUp(server.address, Wishes())
        assert warm_up.first().unanswered is (ends_at == 1)
        assert warm_up.rest().unanswered


def test_a_key_that_cannot_be_read_ends_the_warm_up_alone(tmp_path: Path) -> None:
    with llama(Device()) as server:
        result = WarmUp(server.address, Wishes(key_file=str(tmp_path / "none"))).first()
    assert "not answered" in result.problem
    assert server.asked == []
