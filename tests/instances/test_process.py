import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from support.processes import gone

from tsuku_llm.ground.processes.process import Process, processor_seconds
from tsuku_llm.instances.idle import sample_activity

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sleep and signals of POSIX")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            yield child
        finally:
            child.kill()


def test_a_process_is_identified_by_pid_and_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    process = Process.of(sleeper.pid)
    assert process == Process.of(sleeper.pid)
    assert process
    assert process.is_alive
    assert process != Process.of(os.getpid())


def test_another_process_with_the_same_pid_is_not_signalled(
    sleeper: subprocess.Popen[bytes],
) -> None:
    another = Process(sleeper.pid, "an-earlier-boot:17")
    assert not another.is_alive
    assert not another.send(signal.SIGKILL)
    assert another.is_gone_within(0)
    assert sleeper.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="threads have pids of their own on Linux")
def test_a_process_whose_pid_is_now_that_of_a_thread_has_ended() -> None:
    asked, over = threading.Event(), threading.Event()
    numbers: list[int] = []

    def wait() -> None:
        numbers.append(threading.get_native_id())
        asked.set()
        over.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    asked.wait()
    try:
        assert numbers[0] != os.getpid()
        assert not Process(numbers[0], "an-earlier-boot:17").send(signal.SIGKILL)
    finally:
        over.set()
        thread.join()


def test_a_signal_is_delivered_and_a_zombie_counts_as_ended(
    sleeper: subprocess.Popen[bytes],
) -> None:
    process = Process.of(sleeper.pid)
    assert process
    assert not process.is_gone_within(0)
    assert process.send(signal.SIGTERM)
    assert gone(sleeper.pid)
    assert not process.is_alive, "nobody has collected it, and yet it is gone"
    assert process.is_gone_within(0)
    sleeper.wait()
    assert not process.send(signal.SIGTERM)
    assert Process.of(sleeper.pid) is None


@pytest.mark.skipif(sys.platform != "linux", reason="how the test looks")
def test_the_work_and_the_connections_of_a_process_are_seen() -> None:
    code = (
        "import socket, sys\n"
        "a = socket.create_server(('127.0.0.1', 0))\n"
        "b = socket.create_connection(a.getsockname()); c = a.accept()\n"
        "while sum(__import__('os').times()[:2]) < 0.1: pass\n"
        "print('done', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == b"done\n"
        sight = sample_activity(child.pid)
        assert sight
        assert sight.processor >= 0.1
        assert len(sight.connections) == 2, "both ends are its own; the listening one is none"
        child.communicate()
    assert sample_activity(child.pid) is None


@pytest.mark.skipif(sys.platform != "linux", reason="what Linux is asked")
def test_C04_reading_our_start_time_loads_no_codec_from_disk() -> None:
    code = (
        "import os, sys\n"
        "from tsuku_llm.ground.processes.process import Process, processor_seconds\n"
        "before = set(sys.modules)\n"
        "assert Process.of(os.getpid())\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_processor_time_of_a_process_grows_with_its_work() -> None:
    """On macOS and Windows nothing else shows whether a server that answers nobody works."""
    before = processor_seconds(os.getpid())
    end = sum(os.times()[:2]) + 0.1
    while sum(os.times()[:2]) < end:
        pass
    now = processor_seconds(os.getpid())
    assert before is not None
    assert now is not None
    assert now - before >= 0.05
    assert processor_seconds(0x7FFFFFFF) is None
