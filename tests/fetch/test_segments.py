"""Gaps, segments and the number of connections: every byte is written once, come what may."""

import itertools
import random
import sys
import threading

from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.fetch.artifacts.segments import (
    Allowance,
    Segment,
    SegmentPlan,
    gaps_of,
)

SIZES = st.integers(0, 300)
NOTED = st.lists(st.tuples(st.integers(-9, 309), st.integers(-9, 309)), max_size=6)


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
    """Lanes in any order and of any speed, some of which give up."""
    chance = random.Random(seed)  # noqa: S311 - an order, not a secret
    gaps = gaps_of(size, size, noted)
    plan = SegmentPlan(size, gaps, lengths)
    written: list[int] = []
    working: list[Segment] = []
    while True:
        if len(working) < connections and (segment := plan.take(connections)):
            working.append(segment)
        if not working:
            break
        segment = chance.choice(working)
        length = min(chance.randint(1, 90), segment.end - segment.done)
        if chance.random() < 0.5 and (other := plan.take(connections)):
            working.append(other)
        written += range(segment.done, segment.done + length)
        plan.written(segment, length)
        assert plan.missing == len(covered(gaps)) - len(written)
        if segment.done == segment.end or chance.random() < 0.1:
            plan.release(segment)
            working.remove(segment)
    assert sorted(written) == sorted(covered(gaps))
    assert not plan.gaps
    assert not plan.work


def test_the_plan_locks_itself() -> None:
    """Eight threads, some of which give their segments back unfinished, write each byte once."""
    plan = SegmentPlan(100_000, [(0, 100_000)], (20, 300))
    written: list[tuple[int, int]] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - an order, not a secret
        while segment := plan.take(8):
            while segment.done < segment.end and chance.random() < 0.98:
                length = min(chance.randint(1, 90), segment.end - segment.done)
                written.append((segment.done, segment.done + length))
                plan.written(segment, length)
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
        plan.written(segment, segment.end - segment.done)
        plan.release(segment)
    assert [start for start, _ in taken] == [0, *[end for _, end in taken[:-1]]]
    lengths = [end - start for start, end in taken]
    assert lengths[0] == 100
    assert lengths[-1] < 20
    assert lengths[:-1] == sorted(lengths[:-1], reverse=True)


def test_a_reopened_gap_comes_first() -> None:
    plan = SegmentPlan(1000, [(0, 1000)], (40, 100))
    first = plan.take(2)
    plan.written(first, 100)
    plan.release(first)
    plan.open(0, 40)
    assert plan.take(2).done == 0


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


def test_one_connection_until_a_range_request_succeeded() -> None:
    allowance = Allowance(8)
    allowance.failed()
    assert allowance.connections == 1
    allowance.answered()
    assert allowance.connections == 8


def test_a_lost_connection_is_not_replaced() -> None:
    allowance = Allowance(3)
    for left in (2, 1, 1):
        allowance.answered()
        allowance.failed()
        allowance.answered()
        assert allowance.connections == left


def test_one_connection_after_a_refusal() -> None:
    allowance = Allowance(8)
    allowance.answered()
    allowance.refused()
    allowance.answered()
    assert allowance.connections == 1
