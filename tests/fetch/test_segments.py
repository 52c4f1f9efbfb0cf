"""Gaps, segments and the number of connections: every byte is written exactly once."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.fetch.limits import Limits
from tsuku_llm.fetch.segments import Plan, Segment, gaps_of
from tsuku_llm.fetch.width import Width

SIZES = st.integers(0, 300)
NOTED = st.lists(st.tuples(st.integers(-9, 309), st.integers(-9, 309)), max_size=6)
LIMITS = Limits(first=4, connections=8, look=1.0)


def covered(gaps: list[tuple[int, int]]) -> set[int]:
    return {byte for start, end in gaps for byte in range(start, end)}


@given(SIZES, SIZES, NOTED)
def test_gaps_are_the_noted_ones_and_missing_bytes_on_the_disk(
    size: int, there: int, noted: list[tuple[int, int]]
) -> None:
    there = min(there, size)
    gaps = gaps_of(size, there, noted)
    assert covered(gaps) == {b for b in covered([*noted, (there, size)]) if 0 <= b < size}
    assert gaps == sorted(gaps)
    assert all(start < end for start, end in gaps)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(gaps))


LENGTHS = st.tuples(st.integers(2, 60), st.integers(60, 200))


@given(SIZES, NOTED, st.integers(1, 8), st.integers(), LENGTHS)
def test_every_byte_is_written_once(
    size: int, noted: list[tuple[int, int]], lanes: int, seed: int, lengths: tuple[int, int]
) -> None:
    """Lanes in any order and of any speed, some of which give up, some of which are outrun."""
    chance = random.Random(seed)  # noqa: S311 - an order, not a secret
    gaps = gaps_of(size, size, noted)
    plan = Plan(size, gaps, lengths)
    written: list[int] = []
    working: list[Segment] = []
    before: Segment | None = None
    while True:
        if len(working) < lanes and (segment := plan.take(lanes, before)):
            working.append(segment)
        if not working:
            break
        segment = chance.choice(working)
        place = segment.done
        length = plan.claim(segment, chance.randint(1, 90))
        if chance.random() < 0.5 and (other := plan.take(lanes)):
            working.append(other)
        written += range(place, place + length)
        plan.written(segment)
        assert plan.missing == len(covered(gaps)) - len(written)
        if segment.done == segment.end or chance.random() < 0.1:
            plan.release(segment)
            working.remove(segment)
            before = segment
    assert sorted(written) == sorted(covered(gaps))
    assert not plan.gaps
    assert not plan.work


def test_segments_are_taken_in_order_and_shrink_towards_the_end() -> None:
    plan = Plan(1000, [(0, 1000)], (10, 100))
    taken = []
    while segment := plan.take(4):
        taken.append((segment.done, segment.end))
        plan.claim(segment, 1000)
        plan.written(segment)
        plan.release(segment)
    assert [start for start, _ in taken] == [0, *[end for _, end in taken[:-1]]]
    lengths = [end - start for start, end in taken]
    assert lengths[0] == 100
    assert lengths[-1] < 20
    assert lengths[:-1] == sorted(lengths[:-1], reverse=True)


def test_a_connection_without_work_divides_the_longest_segment() -> None:
    plan = Plan(100, [(0, 100)], (60, 100))
    slow = plan.take(2)
    assert slow is not None
    plan.claim(slow, 10)
    helper = plan.take(2)
    assert helper is not None
    assert (slow.done, slow.end, helper.done, helper.end) == (0, 55, 55, 100)
    assert plan.claim(slow, 100) == 55
    assert plan.take(2) is None
    assert not plan.work


def bring(plan: Plan, segment: Segment, count: int) -> Segment:
    """So many bytes of a segment come; at its end it is through."""
    plan.claim(segment, count)
    plan.written(segment)
    if segment.done == segment.end:
        plan.release(segment)
    return segment


def beside_a_fast_one(before: int, meanwhile: int) -> tuple[Plan, Segment, Segment]:
    """The first segment of 100 bytes, before and while a lane fetched another; and that one."""
    plan = Plan(1000, [(0, 1000)], (40, 100))
    first = bring(plan, plan.take(2), before)
    fast = plan.take(2)
    bring(plan, first, meanwhile)
    return plan, first, bring(plan, fast, 100)


def test_a_fast_connection_takes_over_the_segment_that_delays_the_reader() -> None:
    plan, slow, fast = beside_a_fast_one(30, 33)
    taken = plan.take(2, fast)
    assert (taken.done, taken.end) == (63, 100)
    assert slow.outrun
    assert plan.claim(slow, 9) == 0
    assert plan.take(2).done == 200, "who has fetched nothing knows nothing of others"


@pytest.mark.parametrize(
    ("before", "meanwhile"), [(0, 34), (67, 33)], ids=["a_third_as_fast", "through"]
)
def test_a_segment_that_delays_nothing_is_not_taken_over(before: int, meanwhile: int) -> None:
    plan, first, fast = beside_a_fast_one(before, meanwhile)
    assert plan.take(2, fast).done == 200
    assert not first.outrun


def test_only_a_connection_with_enough_bytes_is_compared() -> None:
    plan = Plan(300, [(0, 100), (200, 239)], (40, 100))
    slow, other = plan.take(1), plan.take(1)
    assert plan.take(1, bring(plan, other, 39)).done == 50, "the longest is divided"
    assert not slow.outrun


def test_a_reopened_gap_comes_before_a_slow_segment() -> None:
    plan = Plan(1000, [(0, 1000)], (40, 100))
    first, slow, fast = plan.take(2), plan.take(2), plan.take(2)
    bring(plan, first, 100)
    plan.open(0, 40)
    assert plan.take(2, bring(plan, fast, 100)).done == 0
    assert not slow.outrun


def test_a_segment_covers_the_whole_file_only_if_it_is_the_only_one() -> None:
    plan = Plan(100, [(0, 100)], (10, 10))
    first = plan.take(2)
    assert first is not None
    assert plan.take_all(first)
    assert first.end == 100
    plan = Plan(100, [(0, 100)], (10, 10))
    first, second = plan.take(2), plan.take(2)
    assert first is not None
    assert second is not None
    assert not plan.take_all(first)
    resumed = Plan(100, [(50, 100)], (10, 10))
    first = resumed.take(2)
    assert first is not None
    assert not resumed.take_all(first)


def widths(speeds: list[int], *, limits: Limits = LIMITS) -> list[int]:
    """The lanes after each look, a second apart, when so many bytes came meanwhile."""
    width = Width(limits)
    width.answered()
    received, seen = 0, []
    for second, speed in enumerate([0, *speeds]):
        received += speed
        width.look(received, second, width.lanes)
        if second:
            seen.append(width.lanes)
        width.look(received, second, width.lanes)
    return seen


@pytest.mark.parametrize(
    ("speeds", "lanes"),
    [
        ([40, 60, 80, 80], [6, 8, 8, 8]),
        ([40, 40, 80, 80], [6, 6, 6, 6]),
        ([40, 41, 80, 80], [6, 6, 6, 6]),
        ([0, 60, 80, 80], [4, 4, 4, 4]),
    ],
    ids=["each_brings_more", "no_more", "hardly_more", "nothing_comes"],
)
def test_connections_are_added_while_they_raise_the_speed(
    speeds: list[int], lanes: list[int]
) -> None:
    assert widths(speeds) == lanes


def test_one_connection_until_a_range_request_succeeded() -> None:
    width = Width(LIMITS)
    for second in range(5):
        width.look(second * 100, second, 1)
        assert width.lanes == 1
    width.lost()
    width.answered()
    assert width.lanes == 4


def test_one_connection_after_a_refusal() -> None:
    width = Width(LIMITS)
    width.answered()
    width.refused()
    width.answered()
    for second in range(5):
        width.look(second * second * 100, second, 1)
    assert width.lanes == 1


def test_a_superseded_connection_is_not_replaced_for_a_while() -> None:
    width = Width(LIMITS)
    width.answered()
    width.outrun(0.0)
    seen = []
    for second in range(9):
        width.look(100 * second, second, width.lanes)
        seen.append(width.lanes)
    assert LIMITS.rest == 5.0
    assert seen == [3, 3, 3, 3, 3, 5, 5, 5, 5], "tried once more, and they bring no more"


def test_after_a_refusal_no_connection_is_added_again() -> None:
    width = Width(LIMITS)
    width.answered()
    width.outrun(0.0)
    width.refused()
    for second in range(20):
        width.look(second * second * 100, second, width.lanes)
        width.answered()
    assert width.lanes == 1


def test_a_lost_connection_is_not_replaced() -> None:
    width = Width(LIMITS)
    width.answered()
    width.lost()
    for second in range(5):
        width.look(second * second * 100, second, 3)
    assert width.lanes == 3


def test_the_speed_is_judged_only_with_all_connections_at_work() -> None:
    width = Width(LIMITS)
    width.answered()
    for second in range(5):
        width.look(second * 100, second, 3)
    assert width.lanes == 4
