"""What is read of a server that serves: its clients, its work, its device nodes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tsuku_llm.launch.gpu.life_sampling import (
    LifeSampler,
    Work,
    gpus_are_idle,
    has_worked,
    is_connected,
)
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.report import Verdict

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

# As a machine printed it: a socket that listens at 8080 (1F90), and a connection to it.
LISTENS = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
ACCEPTED = "   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0\n"
CLIENTS_END = "   2: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0\n"
CLOSED = "   3: 0100007F:1F90 0100007F:C351 06 00000000:00000000 03:00000000 00000000     0\n"
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"

UNIX_LISTENS = "0000000000000000: 00000002 00000000 00010000 0001 01 1234 /run/a b.sock\n"
UNIX_ACCEPTED = "0000000000000000: 00000003 00000000 00000000 0001 03 1235 /run/a b.sock\n"


@pytest.mark.parametrize(
    ("lines", "connected"),
    [
        ((HEADER, LISTENS), False),
        ((HEADER, LISTENS, ACCEPTED, CLIENTS_END), True),
        ((HEADER, LISTENS, CLOSED), False),
        ((HEADER, CLIENTS_END), False),
        (("", "x", "a b"), False),
    ],
)
def test_a_client_is_an_open_connection_to_the_servers_port(
    lines: tuple[str, ...], connected: bool
) -> None:
    assert is_connected(ServerAddress(port=8080), lines) is connected


def test_a_client_at_a_unix_socket_is_the_end_that_was_accepted() -> None:
    address = ServerAddress(host="/run/a b.sock")
    assert not is_connected(address, ("Num RefCount\n", UNIX_LISTENS))
    assert is_connected(address, (UNIX_LISTENS, UNIX_ACCEPTED))


def sampler_of_us(folder: Path, port: int, *words: str) -> LifeSampler:
    plan = LaunchPlan(("llama-server", *words), folder, {}, "vulkan")
    return LifeSampler(os.getpid(), ServerAddress(port=port), plan, (), Verdict.UNKNOWN)


def test_work_between_two_samples_is_seen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as refuses:
        port = refuses.getsockname()[1]
    sampler = sampler_of_us(tmp_path, port, "-m", "x.gguf")
    first = sampler.sample()
    assert (first.answers, first.worked, first.takes_tasks) == (False, None, None)
    end = sum(os.times()[:2]) + 0.1
    while sum(os.times()[:2]) < end:
        pass
    assert sampler.sample().worked is True
    sampler.close()


def test_a_router_and_a_server_that_sleeps_are_elastic(tmp_path: Path) -> None:
    assert sampler_of_us(tmp_path, 1).elastic
    assert sampler_of_us(tmp_path, 1, "-m", "x", "--sleep-idle-seconds", "60").elastic
    assert not sampler_of_us(tmp_path, 1, "-m", "x", "--sleep-idle-seconds", "-1").elastic


# --- work -------------------------------------------------------------------------------------

BEFORE = Work(now=100.0, processor=50.0, reads=7, engines=1000)
# 15 seconds later, as an H200 showed a process that waited asleep for a kernel of 20 seconds.
ASLEEP = BEFORE._replace(now=115.0, processor=50.01)
IN_A_LOOP = BEFORE._replace(now=115.0, processor=65.0)
COMPUTING = BEFORE._replace(now=115.0, processor=170.0)


@pytest.mark.parametrize(
    ("now", "idle", "whole", "worked"),
    [
        (ASLEEP, True, True, False),
        (ASLEEP, True, False, False),
        # A long prompt on a GPU whose driver counts nothing.
        (ASLEEP, False, True, None),
        (ASLEEP, False, False, None),
        (IN_A_LOOP, True, True, False),
        (IN_A_LOOP, False, True, True),
        # Layers on the processor.
        (IN_A_LOOP, True, False, True),
        (COMPUTING, True, True, True),
        (ASLEEP._replace(engines=1001), False, True, True),
        (ASLEEP._replace(reads=8), True, True, True),
    ],
)
def test_what_counts_as_work(now: Work, *, idle: bool, whole: bool, worked: bool | None) -> None:
    assert has_worked(BEFORE, now, idle=idle, whole=whole) is worked


@pytest.mark.parametrize(
    ("nodes", "drm", "nvidia", "idle"),
    [
        ((), False, False, True),
        (None, True, True, False),
        (("/dev/dri/renderD128",), True, False, True),
        (("/dev/dri/renderD128",), False, True, False),
        (("/dev/nvidia0",), True, False, False),
        (("/dev/nvidia0",), False, True, True),
        # A laptop with two: the processor's own is counted, and does nothing.
        (("/dev/dri/renderD128", "/dev/nvidia0"), True, False, False),
        (("/dev/dri/renderD128", "/dev/nvidia0"), True, True, True),
        # ROCm's work is not in the counts of the same card.
        (("/dev/dri/renderD128", "/dev/kfd"), True, True, False),
        # In WSL all GPUs are behind one node.
        (("/dev/dxg",), True, True, False),
        (("/dev/mali0",), True, True, False),
    ],
)
def test_gpus_are_idle_if_each_open_one_is_counted(
    nodes: tuple[str, ...] | None, *, drm: bool, nvidia: bool, idle: bool
) -> None:
    assert gpus_are_idle(nodes, drm=drm, nvidia=nvidia) is idle


# --- clients ----------------------------------------------------------------------------------


def test_a_client_of_a_child_of_a_script_is_seen(tmp_path: Path) -> None:
    """The script has no sockets, and its child, which it waits for, has all of them."""
    code = (
        "import socket, sys; server = socket.create_server(('127.0.0.1', 0));"
        "print(server.getsockname()[1], flush=True); held = server.accept(); sys.stdin.read()"
    )
    line = ["sh", "-c", '"$0" -c "$1"; exit', sys.executable, code]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout
        port = int(script.stdout.readline())
        plan = LaunchPlan(("llama-server", "-m", "x"), tmp_path, {}, "vulkan")
        sampler = LifeSampler(script.pid, ServerAddress(port=port), plan, (), Verdict.UNKNOWN)
        assert not sampler.has_clients()
        with socket.create_connection(("127.0.0.1", port)):
            assert sampler.has_clients()
        sampler.close()
        script.communicate()
