"""What systemd is told: the datagrams, at a socket of the test's."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.instances.notify import Notifier, message

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="systemd is Linux's")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        yield listening


def test_a_message_reaches_the_manager(manager: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "PATH": "/bin"}
    notifier = Notifier.from_environ(environ)
    notifier.send(ready="1", status="on gpu; 20 % of it")
    assert manager.recv(4096) == b"READY=1\nSTATUS=on gpu; 20 % of it"
    assert environ == {"PATH": "/bin"}


@pytest.mark.skipif(sys.platform != "linux", reason="abstract addresses are Linux's")
def test_an_abstract_address_is_reached() -> None:
    name = f"tsuku-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(60)
        Notifier(f"@{name}").send(watchdog="1")
        assert listening.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize("address", ["", "/no/such/socket", "vsock:2:1234", "relative"])
def test_without_a_manager_nothing_happens(address: str) -> None:
    Notifier.from_environ({"NOTIFY_SOCKET": address}).send(ready="1")


def test_a_manager_that_does_not_read_does_not_stop_us(manager: socket.socket) -> None:
    notifier = Notifier(manager.getsockname())
    for _ in range(10_000):
        notifier.send(watchdog="1")


@pytest.mark.parametrize(
    ("extra", "pulse"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 20.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 20.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_wants_three_beats_in_its_time(
    extra: dict[str, str], pulse: float | None
) -> None:
    environ = {"NOTIFY_SOCKET": "/run/x", **extra}
    assert Notifier.from_environ(environ).pulse == pulse
    assert not environ


@given(status=st.text())
def test_a_status_is_always_one_field(status: str) -> None:
    said = message(ready="1", status=status).split(b"\n")
    assert len(said) == 2
    assert said[1].startswith(b"STATUS=")
    said[1].decode()
