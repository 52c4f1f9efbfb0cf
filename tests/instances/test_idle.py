import os
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.instances.idle import (
    BUSY_SECONDS,
    ActivitySample,
    IdleWatch,
    sample_activity,
)
from tsuku_llm.launch.gpu.proc import unix_connections

CLIENT = frozenset({("server", "client")})
OTHER = frozenset({("server", "other")})


def ended_at(timeout: float, *samples: ActivitySample) -> int | None:
    """The look, one each second, at which the server is ended."""
    watch = IdleWatch(timeout)
    ends = [now for now, sample in enumerate(samples) if watch.is_over(now, sample)]
    return ends[0] if ends else None


def test_an_idle_server_ends_exactly_after_the_timeout() -> None:
    assert ended_at(5, *[ActivitySample(7.0)] * 20) == 5


def test_work_restarts_the_timeout() -> None:
    worked = [
        ActivitySample(7.0),
        ActivitySample(7.0),
        ActivitySample(7.0),
        *[ActivitySample(7.0 + BUSY_SECONDS)] * 20,
    ]
    assert ended_at(5, *worked) == 3 + 5


def test_a_completion_is_work_and_a_monitors_request_is_not() -> None:
    """Measured of b10434 on 2026-11-21: 0.08 ms for ``/health`` and 0.18 ms for ``/metrics``."""
    assert ended_at(5, *[ActivitySample(0.05 * now) for now in range(20)]) is None
    assert ended_at(5, *[ActivitySample(0.002 * now) for now in range(20)]) == 5


def test_requests_of_a_monitor_are_not_work() -> None:
    asked = [
        ActivitySample(now * BUSY_SECONDS / 10, CLIENT if now % 2 else frozenset())
        for now in range(20)
    ]
    assert ended_at(6, *asked) == 6


def test_a_lasting_connection_keeps_the_server_up_without_work() -> None:
    waiting = [ActivitySample(1.0, CLIENT)] * 10
    assert ended_at(5, *waiting) is None
    assert ended_at(5, *waiting, *[ActivitySample(1.0)] * 10) == 9 + 5


def test_a_new_connection_is_not_cut_off() -> None:
    assert (
        ended_at(5, *[ActivitySample(1.0)] * 5, ActivitySample(1.0, CLIENT), ActivitySample(1.0))
        == 6
    )
    assert (
        ended_at(
            5,
            *[ActivitySample(1.0)] * 5,
            ActivitySample(1.0, CLIENT),
            ActivitySample(1.0, OTHER),
            ActivitySample(1.0),
        )
        == 7
    )


@given(
    timeout=st.integers(1, 60),
    work=st.lists(st.floats(0, 0.1), min_size=1, max_size=120),
)
def test_the_server_never_ends_within_the_timeout_after_work(
    timeout: int, work: list[float]
) -> None:
    watch, last, processor = IdleWatch(timeout), 0, 0.0
    for now, share in enumerate(work):
        processor += share
        if share >= BUSY_SECONDS * 1.01:
            last = now
        if watch.is_over(now, ActivitySample(processor)):
            assert now - last >= timeout
            return


@pytest.mark.parametrize(("timeout", "pause"), [(1, 0.125), (48, 6.0), (3600, 6.0)])
def test_the_server_is_checked_often_enough_and_not_more(timeout: int, pause: float) -> None:
    assert IdleWatch(timeout).pause == pause


# --- connections to a Unix socket ------------------------------------------------------------

TABLE = """\
Num       RefCount Protocol Flags    Type St Inode Path
00000000ab08c3b9: 00000003 00000000 00000000 0001 03 2171512 /run/a b/llm.sock
0000000031bf1baf: 00000002 00000000 00010000 0001 01 2171509 /run/a b/llm.sock
00000000aaaaaaaa: 00000002 00000000 00000000 0001 03 2171513 /run/a b/llm.sock.other
00000000bbbbbbbb: 00000003 00000000 00000000 0001 03    9999
00000000cccccccc: 00000003 00000000 00000000 0001 03   10000 @/tmp/.X11-unix/X0
00000000dddddddd: 00000003 00000000 00000000 0001 02       0 /run/a b/llm.sock
"""
"""As Linux 6.8 prints it; drivers and the desktop have connections of their own."""


def test_only_connections_to_the_servers_socket_count() -> None:
    table = TABLE.splitlines(keepends=True)
    assert unix_connections("/run/a b/llm.sock", table) == {"2171512", "0"}
    assert unix_connections("/run/another.sock", table) == frozenset()


@given(st.lists(st.text()))
def test_any_table_can_be_read(lines: list[str]) -> None:
    assert unix_connections("/run/llm.sock", lines) == frozenset()


@pytest.mark.skipif(sys.platform == "win32", reason="the server has no Unix sockets there")
def test_an_open_request_at_a_unix_socket_is_seen(tmp_path: Path) -> None:
    path = str(tmp_path / "llm.sock")

    def seen() -> frozenset[object]:
        sample = sample_activity(os.getpid(), [path])
        assert sample
        return frozenset(sample.connections)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        assert seen() == frozenset()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            accepted, _ = listening.accept()
            with accepted:
                first = seen()
                assert len(first) == 1
                assert seen() == first, "the same connection, at each look"
        assert seen() == frozenset()


def test_a_process_that_has_ended_has_no_sample() -> None:
    assert sample_activity(2**22 + 1) is None
    assert sample_activity(2**22 + 1, ["/run/llm.sock"]) is None
