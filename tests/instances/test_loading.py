"""Whether a server that loads goes on: the clock and the counts are the test's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.instances.loading import (
    LEAST,
    LONGEST_STEP,
    NOISE,
    LoadSample,
    LoadWatch,
    sample_loading,
)

STILL = LoadSample(100, 10 * LEAST, 50 * LEAST, 3 * LEAST)


def given_up_at(limit: float, *samples: LoadSample | None) -> int | None:
    """The look, one each second, at which the server is given up."""
    watch = LoadWatch(limit)
    ends = [now for now, sample in enumerate(samples) if watch.is_over(now, sample)]
    return ends[0] if ends else None


def test_a_server_that_hangs_is_given_up_exactly_after_the_limit() -> None:
    assert given_up_at(5, *[STILL] * 20) == 5


def test_a_server_without_a_limit_is_never_given_up() -> None:
    assert given_up_at(0, *[STILL] * 1000) is None


@pytest.mark.parametrize(
    "progress",
    [
        {"log": STILL.log + 1},
        {"moved": STILL.moved + 10 * LEAST},
        {"memory": STILL.memory + LEAST},
        {"gpu_memory": 4 * LEAST},
    ],
    ids=lambda each: next(iter(each)),
)
def test_each_sign_of_progress_restarts_the_limit(progress: dict[str, int]) -> None:
    went_on = STILL._replace(**progress)
    assert given_up_at(5, *[STILL] * 4, *[went_on] * 20) == 4 + 5


def test_gpu_memory_that_is_counted_late_is_progress() -> None:
    before = STILL._replace(gpu_memory=None)
    assert given_up_at(5, *[before] * 4, *[STILL] * 20) == 4 + 5


def test_a_slow_disk_is_no_hang() -> None:
    """300 kB a second, for hours: a large model on a network's disk."""
    slow = [STILL._replace(moved=300_000 * now) for now in range(20_000)]
    assert given_up_at(300, *slow) is None


def test_answers_to_our_own_questions_are_no_progress() -> None:
    """Two questions a second, each read and answered in some 400 bytes; threads wake meanwhile."""
    asked = [STILL._replace(moved=STILL.moved + 1000 * now) for now in range(20_000)]
    assert given_up_at(300, *asked) == 300
    assert given_up_at(10_000, *asked) == 10_000


def test_memory_that_comes_and_goes_is_no_progress() -> None:
    swinging = [STILL._replace(memory=50 * LEAST * (1 + now % 2)) for now in range(100)]
    assert given_up_at(20, *swinging) == 1 + 20
    # A line in its log is progress; that its memory is back where it was is none.
    high = STILL._replace(memory=100 * LEAST)
    logged = STILL._replace(log=STILL.log + 1)
    assert given_up_at(5, high, logged, *[high._replace(log=logged.log)] * 20) == 1 + 5


def test_a_server_that_cannot_be_looked_at_is_not_given_up() -> None:
    assert given_up_at(5, *[None] * 100) is None


def test_time_in_which_the_machine_slept_does_not_count() -> None:
    watch = LoadWatch(300)
    assert not watch.is_over(0, STILL)
    assert not watch.is_over(10_000, STILL)
    assert [watch.is_over(10_000 + now, STILL) for now in (289, 300)] == [False] * 2


@given(
    limit=st.integers(1, 60),
    steps=st.lists(
        # Quarters of a second: their sums are exact.
        st.tuples(
            st.integers(1, int(4 * LONGEST_STEP)).map(lambda quarters: quarters / 4),
            st.sampled_from(["none", "log", "moved"]),
        ),
        min_size=1,
        max_size=120,
    ),
)
def test_it_is_given_up_after_the_limit_without_progress_and_never_before(
    limit: int, steps: list[tuple[float, str]]
) -> None:
    watch, sample, now, last = LoadWatch(limit), STILL, 0.0, 0.0
    assert not watch.is_over(now, sample)
    for step, sign in steps:
        now += step
        if sign == "log":
            sample = sample._replace(log=sample.log + 1)
        if sign == "moved":
            sample = sample._replace(moved=sample.moved + 2 * LEAST + NOISE * 2000)
        last = last if sign == "none" else now
        assert watch.is_over(now, sample) is (now - last >= limit)
        assert watch.seconds == now


def test_a_process_is_sampled_and_what_it_writes_counts() -> None:
    before = sample_loading(os.getpid(), 7)
    with Path(os.devnull).open("wb") as sink:
        sink.write(bytes(4 * LEAST))
    after = sample_loading(os.getpid(), 8)
    assert before
    assert after
    assert (before.log, after.log) == (7, 8)
    assert before.memory > LEAST
    assert after.moved - before.moved >= 4 * LEAST
    assert after.written - before.written >= 4 * LEAST - 1
    assert sample_loading(2**22 + 1, 0) is None


def test_what_a_child_takes_and_writes_counts() -> None:
    """A script starts the server and waits; the server loads in a child."""
    before = sample_loading(os.getpid(), 0)
    write = f"import sys; open('/dev/null', 'wb').write(bytes({4 * LEAST})); print('.', flush=True)"
    line = [sys.executable, "-c", f"{write}; sys.stdin.read()"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b".\n"
        after = sample_loading(os.getpid(), 0)
        child.communicate()
    assert before
    assert after
    assert after.moved - before.moved >= 4 * LEAST
    assert after.memory - before.memory >= 4 * LEAST
