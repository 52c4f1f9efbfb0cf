"""The life of a server after its start: tables of samples for losses, and days without one."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsuku_llm.launch.gpu.life import (
    FAULT,
    HANG,
    HANGS_AT_WORK,
    LOOK,
    LOST,
    OVER,
    LifeSample,
    LifeWatch,
    ServerProblem,
    failures_in_a_row,
    hint_for,
    restart_pause,
)
from tsuku_llm.launch.plan.report import DriverFault, Verdict

ON_GPU, PARTLY, ON_CPU, UNKNOWN = Verdict.ON_GPU, Verdict.PARTLY, Verdict.ON_CPU, Verdict.UNKNOWN
GIB = 1 << 30
HEALTHY = LifeSample(0.0, worked=True, memory=10 * GIB)
IDLE = HEALTHY._replace(worked=False)
NODE = "/dev/nvidia0"


def xid(number: int) -> tuple[DriverFault, ...]:
    return (DriverFault(number, "GPU 0"),)


class Life:
    """A server's life: each sample comes ``LOOK`` seconds after the one before."""

    def __init__(
        self,
        check: Verdict = UNKNOWN,
        *,
        start: Verdict = ON_GPU,
        seen: bool = True,
        elastic: bool = False,
        answered: bool = False,
    ) -> None:
        self.watch = LifeWatch(start, seen=seen, elastic=elastic)
        self.check = check
        self.answered = answered
        self.checks = 0
        self.now = 0.0
        self.told: list[tuple[float, ServerProblem]] = []

    def goes_on(self, *samples: LifeSample) -> None:
        for sample in samples:
            self.now += LOOK
            self._hear(self.watch.see(sample._replace(now=self.now)))
            if self.watch.wants_check:
                self.checks += 1
                self._hear(self.watch.judge(self.check, answered=self.answered))

    def _hear(self, problem: ServerProblem | None) -> None:
        if problem:
            self.told.append((self.now, problem))

    @property
    def kinds(self) -> list[str]:
        return [problem.kind for _, problem in self.told]


# Each loss as its samples and what a look at the server shows then; a sample lasts until the end.
LOSSES: dict[str, tuple[LifeSample, Verdict, str]] = {
    "fallen-off-the-bus": (HEALTHY._replace(faults=xid(79)), UNKNOWN, LOST),
    "the-library-says-lost": (
        IDLE._replace(faults=(DriverFault(None, "GPU 0", "the driver has lost it"),)),
        UNKNOWN,
        LOST,
    ),
    "the-system-processor-hangs": (HEALTHY._replace(faults=xid(119)), UNKNOWN, LOST),
    "uncontained-ecc": (HEALTHY._replace(faults=xid(95)), ON_CPU, LOST),
    "ecc-that-the-server-survives": (HEALTHY._replace(faults=xid(48)), ON_GPU, FAULT),
    "device-node-gone": (HEALTHY._replace(gone=(NODE,)), UNKNOWN, LOST),
    "cgroup-without-the-device": (HEALTHY._replace(refused=(NODE,)), ON_CPU, LOST),
    "wake-from-sleep": (HEALTHY._replace(asleep=3600.0), ON_CPU, LOST),
    "memory-gone": (HEALTHY._replace(memory=0), UNKNOWN, LOST),
    "memory-moved-away": (HEALTHY._replace(memory=4 * GIB), ON_CPU, LOST),
    "program-fault-of-this-server": (HEALTHY._replace(faults=xid(31)), ON_CPU, LOST),
    "stopped": (IDLE._replace(answers=False), UNKNOWN, HANG),
    "hangs-while-health-says-200": (IDLE._replace(takes_tasks=False), UNKNOWN, HANG),
}


@pytest.mark.parametrize(("sample", "check", "kind"), LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("start", [ON_GPU, PARTLY])
def test_a_loss_is_found_once_and_within_a_minute(
    sample: LifeSample, check: Verdict, kind: str, start: Verdict
) -> None:
    life = Life(check, start=start)
    life.goes_on(*[HEALTHY] * 5)
    before = life.now
    # What a driver reports comes once, in the sample after it; anything else stays as it is.
    life.goes_on(sample, *[sample._replace(faults=())] * 100)
    assert life.kinds == [kind]
    # The answers of a sample take 7 seconds at most.
    assert life.told[0][0] - before + 7 <= 60
    assert life.watch.problem == life.told[0][1]
    assert all(problem.facts for _, problem in life.told)


def test_a_server_that_computes_for_minutes_takes_no_task_and_is_not_accused() -> None:
    """A prompt of 2,000 tokens on a processor, between two tasks."""
    busy = HEALTHY._replace(takes_tasks=False)
    life = Life()
    life.goes_on(*[busy] * int(HANGS_AT_WORK / LOOK))
    assert life.kinds == []
    life.goes_on(busy, busy)
    assert life.kinds == [HANG]
    assert "computed without an end" in life.told[0][1].facts[0]


@pytest.mark.parametrize("silence", [{"answers": False}, {"takes_tasks": False}])
def test_a_server_of_which_nothing_shows_whether_it_works_has_the_time_of_one_that_works(
    silence: dict[str, bool],
) -> None:
    """A GPU without a count may compute a long prompt while the process sleeps."""
    silent = HEALTHY._replace(worked=None, **silence)
    life = Life()
    life.goes_on(*[silent] * int(HANGS_AT_WORK / LOOK))
    assert life.kinds == []
    life.goes_on(silent, silent)
    assert life.kinds == [HANG]
    assert "nothing tells whether it computed" in life.told[0][1].facts[0]


def test_a_server_whose_threads_are_all_taken_answers_nobody_and_works() -> None:
    life = Life()
    life.goes_on(*[HEALTHY._replace(answers=False)] * 10_000)
    assert life.kinds == []


def test_a_server_that_answers_again_is_well_again() -> None:
    life = Life()
    life.goes_on(*[IDLE._replace(answers=False)] * 10, HEALTHY)
    assert life.kinds == [HANG, OVER]
    assert life.watch.problem is None


def test_a_gpu_that_comes_back_is_told() -> None:
    life = Life(ON_CPU)
    life.goes_on(HEALTHY, HEALTHY._replace(asleep=60.0))
    life.check = ON_GPU
    life.goes_on(HEALTHY._replace(asleep=60.0), HEALTHY._replace(asleep=90.0))
    assert life.kinds == [LOST, OVER]


def test_a_paused_supervisor_accuses_no_server() -> None:
    """Ctrl-Z stops both, and the first look after it may come before the server's answer."""
    watch = LifeWatch(ON_GPU)
    for now, sample in ((15.0, IDLE), (30.0, IDLE), (9000.0, IDLE._replace(answers=False))):
        assert watch.see(sample._replace(now=now)) is None
    assert watch.see(IDLE._replace(now=9015.0, answers=False)) is None


def test_a_server_that_lost_its_gpu_for_a_moment_is_looked_at_again() -> None:
    """A look while the driver wakes up may show nothing; status must not say so for weeks."""
    life = Life(ON_CPU)
    life.goes_on(HEALTHY, *[HEALTHY._replace(asleep=60.0)] * 100)
    assert life.kinds == [LOST]
    life.check = ON_GPU
    life.goes_on(*[HEALTHY._replace(asleep=60.0)] * 21)
    assert life.kinds == [LOST, OVER]
    # A minute of the canary's time in hours.
    assert life.checks <= 8


@pytest.mark.parametrize("check", [ON_CPU, UNKNOWN])
def test_a_sleeping_server_that_cannot_be_asked_has_lost_nothing(check: Verdict) -> None:
    """Its memory is empty because it freed it, and its model takes minutes to load again."""
    life = Life(check, elastic=True)
    life.goes_on(HEALTHY, HEALTHY._replace(asleep=3600.0), HEALTHY._replace(asleep=3600.0))
    assert (life.checks, life.kinds) == (1, [])


@pytest.mark.parametrize("check", [ON_CPU, UNKNOWN])
def test_a_gpu_that_only_the_log_showed_is_not_missed_by_a_look_without_it(check: Verdict) -> None:
    """In a container: a list that could not be read speaks for the CPU now as it did then."""
    life = Life(check, seen=False, answered=True)
    asleep = HEALTHY._replace(asleep=3600.0)
    # Another program's GPU fails, as nothing tells whose it is.
    life.goes_on(HEALTHY, asleep, asleep._replace(faults=xid(79)), asleep)
    assert life.kinds == [FAULT]


def test_a_gpu_that_only_the_log_showed_is_lost_with_a_fault_and_no_answer() -> None:
    life = Life(UNKNOWN, seen=False)
    life.goes_on(HEALTHY, HEALTHY._replace(faults=xid(79)))
    assert life.kinds == [LOST]


@pytest.mark.parametrize("kind", [LOST, HANG, FAULT])
def test_a_hint_names_no_setting_that_has_ended_the_server(kind: str) -> None:
    problem = ServerProblem(kind, "it is so", ends=kind != FAULT)
    assert "on_gpu_loss" not in hint_for(problem, is_ended=True)
    assert ("on_gpu_loss" in hint_for(problem, is_ended=False)) is (kind != FAULT)


def test_a_node_that_is_made_again_is_no_loss() -> None:
    life = Life(UNKNOWN)
    life.goes_on(HEALTHY, HEALTHY._replace(gone=(NODE,)), HEALTHY)
    assert (life.kinds, life.checks) == ([], 0)


def test_a_router_and_a_server_that_sleeps_may_free_their_memory() -> None:
    life = Life(ON_CPU, elastic=True)
    life.goes_on(HEALTHY, HEALTHY._replace(memory=0))
    assert (life.kinds, life.checks) == ([], 0)


@pytest.mark.parametrize("start", [ON_CPU, UNKNOWN])
@pytest.mark.parametrize("check", Verdict)
def test_a_server_that_was_not_shown_on_a_gpu_cannot_lose_it(
    start: Verdict, check: Verdict
) -> None:
    life = Life(check, start=start)
    for sample, _, kind in LOSSES.values():
        if kind != HANG:
            life.goes_on(HEALTHY, sample, sample._replace(faults=()), HEALTHY)
    assert LOST not in life.kinds


def test_a_fault_is_told_once() -> None:
    life = Life(ON_GPU)
    life.goes_on(*[HEALTHY._replace(faults=xid(94))] * 50)
    assert life.kinds == [FAULT]


# --- no false alarm ---------------------------------------------------------------------------

DAY = int(24 * 3600 / LOOK)

# What happens around a healthy server, as samples that follow each other.
ORDINARY: tuple[Sequence[LifeSample], ...] = (
    [HEALTHY] * 200,
    [IDLE] * 500,
    # Saturated for an hour; a long prompt; one late answer while idle.
    [HEALTHY._replace(answers=False)] * 240,
    [HEALTHY._replace(takes_tasks=False)] * 50,
    [IDLE._replace(answers=False)],
    [IDLE._replace(takes_tasks=False)],
    # The same without a count of the GPU's work.
    [HEALTHY._replace(answers=False, worked=None)] * 50,
    [HEALTHY._replace(takes_tasks=False, worked=None)] * 50,
    # A look that could see nothing.
    [LifeSample(0.0, answers=None)] * 10,
    # The memory grows with the work, and other programs fail.
    [HEALTHY._replace(memory=11 * GIB), HEALTHY._replace(memory=9 * GIB)] * 20,
    [HEALTHY._replace(faults=xid(13))],
    [HEALTHY._replace(faults=xid(31)), HEALTHY._replace(faults=xid(43))],
    [HEALTHY._replace(gone=(NODE,))],
    [HEALTHY._replace(refused=(NODE,))] * 100,
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(ORDINARY), min_size=1, max_size=60),
    st.sampled_from([ON_GPU, PARTLY, UNKNOWN]),
    st.sampled_from([ON_GPU, PARTLY, UNKNOWN]),
)
def test_a_day_of_a_healthy_server_has_no_alarm(
    parts: list[Sequence[LifeSample]], check: Verdict, start: Verdict
) -> None:
    life = Life(check, start=start)
    life.goes_on(*a_day(parts))
    assert life.told == []
    assert life.watch.problem is None


def a_day(parts: Sequence[Sequence[LifeSample]]) -> Iterator[LifeSample]:
    """The parts again and again for 24 hours, with an hour of sleep at noon."""
    count = 0
    while count < DAY:
        for part in parts:
            for sample in (*part, HEALTHY):
                count += 1
                yield sample._replace(asleep=3600.0 if count > DAY // 2 else 0.0)


@given(
    st.lists(
        st.builds(
            LifeSample,
            now=st.just(0.0),
            asleep=st.floats(0, 1e6),
            answers=st.none() | st.booleans(),
            takes_tasks=st.none() | st.booleans(),
            worked=st.none() | st.booleans(),
            memory=st.none() | st.integers(0, 1 << 40),
            gone=st.sampled_from([(), (NODE,)]),
            refused=st.sampled_from([(), (NODE,)]),
            faults=st.sampled_from([(), xid(79), xid(31), xid(94)]),
        ),
        max_size=60,
    ),
    st.sampled_from(Verdict),
    st.sampled_from(Verdict),
)
def test_what_was_told_and_the_present_problem_agree(
    samples: list[LifeSample], check: Verdict, start: Verdict
) -> None:
    life = Life(check, start=start)
    life.goes_on(*samples)
    present = life.watch.problem
    assert life.told or present is None
    if life.kinds and life.kinds[-1] == OVER:
        assert present is None
    # A hang or a loss is never told twice without an end between.
    for before, after in zip(life.kinds, life.kinds[1:], strict=False):
        assert before != after or before == FAULT


@given(st.integers(1, 1000))
def test_the_pauses_before_restarts_grow_up_to_five_minutes(failures: int) -> None:
    assert restart_pause(1) == 1.0
    assert restart_pause(failures) <= restart_pause(failures + 1) <= 300.0


def test_a_server_that_lasts_begins_a_new_row_of_failures() -> None:
    assert failures_in_a_row(5, served=10.0) == 6
    assert failures_in_a_row(5, served=3600.0) == 1
