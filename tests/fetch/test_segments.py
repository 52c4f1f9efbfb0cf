"""Gaps, segments and the number of connections: every byte is written once, come what may."""

import itertools
import random
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.fetch.artifacts.segments import (
    ConnectionScaler,
    Segment,
    SegmentPlan,
    gaps_of,
)

SIZES = st.integers(0, 300)
COOLDOWN = 5.0
NOTED = st.lists(st.tuples(st.integers(-9, 309), st.integers(-9, 309)), max_size=6)


def scaler(*, ranges: bool = True) -> ConnectionScaler:
    """One that takes a sample each second; unless told otherwise, a range was answered."""
    made = ConnectionScaler(initial=4, most=8, sample_interval=1.0, cooldown=COOLDOWN)
    made.sample(0, 0.0, 1, ranges=ranges)
    return made


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
    size: int, noted: list[tuple[int, int]], connections: int, seed: int, lengths: tuple[int, int]
) -> None:
    """Lanes in any order and of any speed, some of which give up, some of which are superseded."""
    chance = random.Random(seed)  # noqa: S311 - an order, not a secret
    gaps = gaps_of(size, size, noted)
    plan = SegmentPlan(size, gaps, lengths)
    written: list[int] = []
    working: list[Segment] = []
    before: Segment | None = None
    while True:
        if len(working) < connections and (segment := plan.take(connections, before)):
            working.append(segment)
        if not working:
            break
        segment = chance.choice(working)
        place = segment.done
        length = plan.claim(segment, chance.randint(1, 90))
        if chance.random() < 0.5 and (other := plan.take(connections)):
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


def test_the_plan_locks_itself() -> None:
    """Eight threads, some of which give their segments back unfinished, write each byte once."""
    plan = SegmentPlan(100_000, [(0, 100_000)], (20, 300))
    written: list[tuple[int, int]] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - an order, not a secret
        segment: Segment | None = None
        while segment := plan.take(8, segment):
            while segment.done < segment.end and chance.random() < 0.98:
                place = segment.done
                written.append((place, place + plan.claim(segment, chance.randint(1, 90))))
                plan.written(segment)
            plan.release(segment)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert not plan.gaps
    assert sum(end - start for start, end in written) == 100_000
    assert len(covered(written)) == 100_000


def test_segments_are_taken_in_order_and_shrink_towards_the_end() -> None:
    plan = SegmentPlan(1000, [(0, 1000)], (10, 100))
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
    plan = SegmentPlan(100, [(0, 100)], (60, 100))
    slow = plan.take(2)
    assert slow is not None
    plan.claim(slow, 10)
    helper = plan.take(2)
    assert helper is not None
    assert (slow.done, slow.end, helper.done, helper.end) == (0, 55, 55, 100)
    assert plan.claim(slow, 100) == 55
    assert plan.take(2) is None
    assert not plan.work


def bring(plan: SegmentPlan, segment: Segment, count: int) -> Segment:
    """So many bytes of a segment come; at its end it is through."""
    plan.claim(segment, count)
    plan.written(segment)
    if segment.done == segment.end:
        plan.release(segment)
    return segment


def beside_a_fast_one(before: int, meanwhile: int) -> tuple[SegmentPlan, Segment, Segment]:
    """The first segment of 100 bytes, before and while another one came; and that other one."""
    plan = SegmentPlan(1000, [(0, 1000)], (40, 100))
    first = bring(plan, plan.take(2), before)
    fast = plan.take(2)
    bring(plan, first, meanwhile)
    return plan, first, bring(plan, fast, 100)


def test_a_fast_connection_takes_over_the_segment_that_delays_the_reader() -> None:
    plan, slow, fast = beside_a_fast_one(30, 33)
    taken = plan.take(2, fast)
    assert (taken.done, taken.end) == (63, 100)
    assert slow.superseded
    assert plan.claim(slow, 9) == 0
    assert plan.take(2).done == 200, "who has fetched nothing knows nothing of others"


@pytest.mark.parametrize(
    ("before", "meanwhile"), [(0, 34), (67, 33)], ids=["a_third_as_fast", "through"]
)
def test_a_segment_that_delays_nothing_is_not_taken_over(before: int, meanwhile: int) -> None:
    plan, first, fast = beside_a_fast_one(before, meanwhile)
    assert plan.take(2, fast).done == 200
    assert not first.superseded


def test_only_a_connection_with_enough_bytes_is_compared() -> None:
    plan = SegmentPlan(300, [(0, 100), (200, 239)], (40, 100))
    slow, other = plan.take(1), plan.take(1)
    assert plan.take(1, bring(plan, other, 39)).done == 50, "the longest is divided"
    assert not slow.superseded


def test_a_reopened_gap_comes_before_a_slow_segment() -> None:
    plan = SegmentPlan(1000, [(0, 1000)], (40, 100))
    first, slow, fast = plan.take(2), plan.take(2), plan.take(2)
    bring(plan, first, 100)
    plan.open(0, 40)
    assert plan.take(2, bring(plan, fast, 100)).done == 0
    assert not slow.superseded


def test_a_segment_covers_the_whole_file_only_if_it_is_the_only_one() -> None:
    plan = SegmentPlan(100, [(0, 100)], (10, 10))
    first = plan.take(2)
    assert first is not None
    assert plan.take_all(first)
    assert first.end == 100
    plan = SegmentPlan(100, [(0, 100)], (10, 10))
    first, second = plan.take(2), plan.take(2)
    assert first is not None
    assert second is not None
    assert not plan.take_all(first)
    resumed = SegmentPlan(100, [(50, 100)], (10, 10))
    first = resumed.take(2)
    assert first is not None
    assert not resumed.take_all(first)


def test_a_segment_that_begins_later_does_not_cover_the_whole_file() -> None:
    """The whole file begins with its first byte, which this segment would write elsewhere."""
    plan = SegmentPlan(100, [(0, 100)], (10, 10))
    first, second = plan.take(2), plan.take(2)
    assert first is not None
    assert second is not None
    plan.release(first)
    assert plan.missing == 100
    assert not plan.take_all(second)
    assert second.end == 20


def numbers(speeds: list[int]) -> list[int]:
    """The connections after each sample, a second apart, when so many bytes came meanwhile."""
    rule = scaler()
    received, seen = 0, []
    for second, speed in enumerate([0, *speeds]):
        received += speed
        rule.sample(received, second, rule.connections, ranges=True)
        if second:
            seen.append(rule.connections)
        rule.sample(received, second, rule.connections, ranges=True)
    return seen


@pytest.mark.parametrize(
    ("speeds", "connections"),
    [
        ([40, 60, 80, 80], [6, 8, 8, 8]),
        ([40, 40, 80, 80], [6, 6, 6, 6]),
        ([40, 41, 80, 80], [6, 6, 6, 6]),
        ([0, 60, 80, 80], [4, 4, 4, 4]),
    ],
    ids=["each_brings_more", "no_more", "hardly_more", "nothing_comes"],
)
def test_connections_are_added_while_they_raise_the_speed(
    speeds: list[int], connections: list[int]
) -> None:
    assert numbers(speeds) == connections


def test_one_connection_until_a_range_request_succeeded() -> None:
    rule = scaler(ranges=False)
    for second in range(5):
        rule.sample(second * 100, second, 1, ranges=False)
        assert rule.connections == 1
    rule.failed()
    rule.sample(500, 5, 1, ranges=True)
    assert rule.connections == 4


def test_one_connection_after_a_refusal() -> None:
    rule = scaler()
    rule.refused()
    for second in range(5):
        rule.sample(second * second * 100, second, 1, ranges=True)
    assert rule.connections == 1


def test_a_connection_that_was_superseded_is_done_without_for_a_while() -> None:
    rule = scaler()
    rule.superseded(0.0)
    seen = []
    for second in range(9):
        rule.sample(100 * second, second, rule.connections, ranges=True)
        seen.append(rule.connections)
    assert COOLDOWN == 5.0
    assert seen == [3, 3, 3, 3, 3, 5, 5, 5, 5], "tried once more, and they bring no more"


def test_after_a_refusal_no_cooldown_is_long_enough() -> None:
    rule = scaler()
    rule.superseded(0.0)
    rule.refused()
    for second in range(20):
        rule.sample(second * second * 100, second, rule.connections, ranges=True)
    assert rule.connections == 1


def test_a_lost_connection_is_not_replaced() -> None:
    rule = scaler()
    rule.failed()
    for second in range(5):
        rule.sample(second * second * 100, second, 3, ranges=True)
    assert rule.connections == 3


def test_a_sample_needs_all_connections() -> None:
    rule = scaler()
    for second in range(5):
        rule.sample(second * 100, second, 3, ranges=True)
    assert rule.connections == 4
