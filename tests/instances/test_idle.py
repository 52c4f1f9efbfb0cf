import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.instances.idle import BUSY_SECONDS, ActivitySample, IdleWatch

CLIENT = frozenset({("server", "client")})
OTHER = frozenset({("server", "other")})


def ended_at(timeout: float, *samples: ActivitySample) -> int | None:
    """The look, one each second, at which the server is ended."""
    watch = IdleWatch(timeout)
    ends = [now for now, sample in enumerate(samples) if watch.is_over(now, sample)]
    return ends[0] if ends else None


def test_without_work_it_ends_after_the_time_and_not_before() -> None:
    assert ended_at(5, *[ActivitySample(7.0)] * 20) == 5


def test_work_begins_the_time_anew() -> None:
    worked = [
        ActivitySample(7.0),
        ActivitySample(7.0),
        ActivitySample(7.0),
        *[ActivitySample(7.0 + BUSY_SECONDS)] * 20,
    ]
    assert ended_at(5, *worked) == 3 + 5


def test_what_a_completion_takes_is_work_and_what_a_monitor_takes_is_not() -> None:
    """Measured of b10434 on 2026-11-21: 0.08 ms for ``/health`` and 0.18 ms for ``/metrics``."""
    assert ended_at(5, *[ActivitySample(0.05 * now) for now in range(20)]) is None
    assert ended_at(5, *[ActivitySample(0.002 * now) for now in range(20)]) == 5


def test_the_questions_of_a_monitor_are_no_work() -> None:
    asked = [
        ActivitySample(now * BUSY_SECONDS / 10, CLIENT if now % 2 else frozenset())
        for now in range(20)
    ]
    assert ended_at(6, *asked) == 6


def test_a_connection_that_lasts_keeps_it_up_even_without_work() -> None:
    waiting = [ActivitySample(1.0, CLIENT)] * 10
    assert ended_at(5, *waiting) is None
    assert ended_at(5, *waiting, *[ActivitySample(1.0)] * 10) == 9 + 5


def test_nobody_is_cut_off_who_has_just_come() -> None:
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
def test_it_never_ends_within_the_time_after_work(timeout: int, work: list[float]) -> None:
    watch, last, processor = IdleWatch(timeout), 0, 0.0
    for now, share in enumerate(work):
        processor += share
        if share >= BUSY_SECONDS * 1.01:
            last = now
        if watch.is_over(now, ActivitySample(processor)):
            assert now - last >= timeout
            return


@pytest.mark.parametrize(("timeout", "pause"), [(1, 0.125), (48, 6.0), (3600, 6.0)])
def test_it_looks_often_enough_and_not_more(timeout: int, pause: float) -> None:
    assert IdleWatch(timeout).pause == pause
