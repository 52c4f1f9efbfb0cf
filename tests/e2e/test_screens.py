"""What a user sees while an install downloads: in real terminals of several widths."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.builds import Packed
from support.http_faults import Exchange, FaultServer, asked_range, head
from support.program import COMMAND
from support.release_server import ReleaseServer, User, release_server
from support.screens import screen

NAME = "llama-b11429-bin-ubuntu-cuda-13.4-x64"
RUNTIME = "cudart-llama-bin-ubuntu-cuda-13.4-x64"
SIZE = 4_000_000


@dataclass
class Held:
    """A host that sends half of each archive, and the rest when the test says so."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    go_on: threading.Event = field(default_factory=threading.Event)

    def behave(self, exchange: Exchange) -> None:
        body = self.bodies[exchange.request.path.rpartition("/")[2]]
        start, end = asked_range(exchange.request, len(body))
        fields: dict[str, object] = {"Content_Length": end - start, "ETag": '"1"'}
        if start:
            fields["Content_Range"] = f"bytes {start}-{end - 1}/{len(body)}"
        exchange.send(head("206 Partial Content" if start else "200 OK", **fields))
        middle = max(start, len(body) // 2)
        exchange.send(body[start:middle])
        while not self.go_on.wait(0.05):
            if exchange.server.closing.is_set():
                return
        exchange.send(self.bodies[exchange.request.path.rpartition("/")[2]][middle:end])


@dataclass(frozen=True)
class Offer:
    """A release with two archives, which a user may install."""

    shop: ReleaseServer
    held: Held
    user: User
    server: Packed


@contextmanager
def offered(folder: Path) -> Iterator[Offer]:
    held = Held()
    with ExitStack() as stack:
        host = stack.enter_context(FaultServer([held.behave]))
        extra = (
            "location /held/ { proxy_buffering off; proxy_http_version 1.1; "
            f"proxy_pass http://127.0.0.1:{host.port}; }}"
        )
        shop = stack.enter_context(release_server(folder / "site", extra))
        server = shop.stand_in(NAME, padding=SIZE)
        runtime = shop.companion(RUNTIME)
        held.bodies = {each.path.name: each.path.read_bytes() for each in (server, runtime)}
        shop.publish("b11429", {"cpu": shop.variant(server, runtime, folder="held")})
        yield Offer(shop, held, shop.user(folder / "home"), server)


@pytest.fixture
def offer(tmp_path: Path) -> Iterator[Offer]:
    with offered(tmp_path) as made:
        yield made


HALF = re.compile(r"2\.\d\d/4\.\d\d MB")
"""The half of the server's archive, as its line tells it."""


def is_half(text: str) -> bool:
    return bool(HALF.search(text)) and "cudart" in text


@pytest.mark.parametrize(
    ("columns", "name", "bar"),
    [
        (40, "llama-…cuda-13.4-x64", False),
        (80, "llama-b11429-bin-ubuntu-cuda-13.4-x64", True),
        (200, f"{NAME}.tar.gz", True),
    ],
)
def test_each_archive_has_a_line_that_can_be_read(
    offer: Offer, tmp_path: Path, columns: int, name: str, bar: bool
) -> None:
    with screen(tmp_path / "t", (*COMMAND, "install"), offer.user.env, columns=columns) as seen:
        lines = seen.wait_for(is_half)
        [ours] = [line for line in lines if HALF.search(line)]
        assert ours.startswith(f"{name} ")
        assert ("█" in ours) is bar
        assert len(ours) < columns
        offer.held.go_on.set()
        assert seen.exit_code() == 0
        assert not HALF.search(seen.text)


def test_another_size_of_the_terminal_draws_again(offer: Offer, tmp_path: Path) -> None:
    with screen(tmp_path / "t", (*COMMAND, "install"), offer.user.env, columns=80) as seen:
        seen.wait_for(is_half)
        # No byte arrives: only the new size makes another line of it.
        seen.resize(40)
        narrow = seen.wait_for(lambda text: "…" in text and "█" not in text)
        assert len(HALF.findall("\n".join(narrow))) == 1
        assert sum(line.startswith("cudart") for line in narrow) == 1
        seen.resize(200)
        wide = seen.wait_for(lambda text: f"{NAME}.tar.gz" in text)
        assert len(HALF.findall("\n".join(wide))) == 1
        offer.held.go_on.set()
        assert seen.exit_code() == 0


def test_after_ctrl_c_no_line_of_a_download_stays(offer: Offer, tmp_path: Path) -> None:
    with screen(tmp_path / "t", (*COMMAND, "install"), offer.user.env, columns=80) as seen:
        seen.wait_for(is_half)
        seen.keys("C-c")
        assert seen.exit_code() == 130
        assert seen.lines[-1] == "error[interrupted]: stopped on request"
        assert "MB" not in seen.text
    assert offer.user.versions() == []


def test_after_an_error_no_line_of_a_download_stays(offer: Offer, tmp_path: Path) -> None:
    name = offer.server.path.name
    with screen(tmp_path / "t", (*COMMAND, "install"), offer.user.env, columns=80) as seen:
        seen.wait_for(is_half)
        # The rest is not what was signed.
        offer.held.bodies[name] = bytes(len(offer.held.bodies[name]))
        offer.held.go_on.set()
        assert seen.exit_code() in (4, 5)
        assert "█" not in seen.text
        assert any(line.startswith("error[") for line in seen.lines)
