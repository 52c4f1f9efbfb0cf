"""The judge of a server's life after its start: samples with their times in, problems out. Pure.

| problem | when |
|---|---|
| ``gpu-lost`` | a suspicion, and a check that shows the CPU, or shows nothing after a grave one |
| ``gpu-fault`` | the driver reports a fault of the hardware, and the server still computes there |
| ``gpu-fault`` | the server answers the canary otherwise than before, or with no numbers |
| ``hangs`` | it answers nobody and does nothing, or takes no new task for a long time |

A suspicion alone accuses no server: other programs' faults, a sleep and a device node that is made
again look the same. So each one asks for a check, which lets the server compute.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.launch.plan.report import DriverFault, Verdict

LOOK: float = 15.0
"""Seconds between two samples."""

HANGS: float = 30.0
"""Seconds without an answer and without work: with the pauses, found within a minute."""

HANGS_AT_WORK: Final = 900.0
"""Seconds in which a server that works, or may work, takes no task.

Between two tasks it may compute a batch of a prompt: minutes for a large model on a processor. A
GPU whose driver counts nothing may do that without a trace: a process that sleeps meanwhile
takes almost no processor time.
"""

AGAIN: Final = 300.0
"""Seconds after which a server that has lost its GPU is looked at again."""

_LONGEST_STEP = LOOK + 10.0
"""Seconds that count between two samples: this program may have been stopped meanwhile."""

_SLEPT = 2
"""Seconds of sleep that count; the two clocks are read one after the other."""

_FELL = 0.5
"""Part of the most GPU memory below which the rest is missed: weights and context stay there."""

LOST: Final = "gpu-lost"
FAULT: Final = "gpu-fault"
HANG: Final = "hangs"
OVER: Final = "over"
UNREAD: Final = "unread"
_DRIVERS: Final = "the GPU or its driver has a fault"

# NVIDIA's catalogue of Xid errors. Those that are not here are most often of one program, which
# need not be ours: 13, 31, 43, 45, 68, 69 and others.
_FELL_OFF = {79: "the GPU has fallen off the bus"}
_GRAVE = {
    48: "double-bit ECC error",
    62: "internal halt of a microcontroller",
    64: "no memory is left to replace bad rows",
    74: "NVLink error",
    95: "uncontained ECC error",
    109: "context switch timed out",
    110: "security fault",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "unrecovered ECC error",
    143: "the GPU does not initialise",
}
_HARDWARE = {92: "many single-bit ECC errors", 94: "contained ECC error"}


class LifeSample(NamedTuple):
    """A sample of a server that has served. None: not asked, or cannot be known.

    ``now`` and ``asleep`` are seconds, of the monotonic clock and of sleep since the boot.
    ``answers``: to ``/health``. ``takes_tasks``: its queue answers, which is empty between two
    computations. ``worked``: it computed since the last sample, or read its model. ``memory`` are
    the bytes of GPU memory of its processes. ``gone`` and ``refused`` are those of its device
    nodes that do not exist any more, and that cannot be opened any more.
    """

    now: float
    asleep: float = 0.0
    answers: bool | None = True
    takes_tasks: bool | None = None
    worked: bool | None = None
    memory: int | None = None
    gone: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    faults: tuple[DriverFault, ...] = ()


class ServerProblem(NamedTuple):
    """A problem that was found, or ``over`` for the end of one; ``facts`` are what showed it.

    ``unread`` is no problem: the answers cannot be checked now.
    ``ends``: a server with this problem serves nobody, so ``llm.on_gpu_loss`` may end it.
    """

    kind: str
    text: str
    facts: tuple[str, ...] = ()
    ends: bool = True


class _Suspicion(NamedTuple):
    """A reason for a check. ``grave``: it counts if the check shows nothing. ``hardware``: told."""

    text: str
    grave: bool = False
    hardware: bool = False


class LifeWatch:
    """The judge of one server's samples, in the order of their times.

    ``start`` is the verdict of its start: a server on the CPU has no GPU to lose. ``seen``: a look
    without the log, which later looks do not have, showed the GPU as well. ``elastic``: it frees
    its GPU memory by itself, as a router or a server that sleeps.
    """

    def __init__(self, start: Verdict, *, seen: bool = True, elastic: bool = False) -> None:
        self.problem: ServerProblem | None = None
        """The present problem, None if there is none."""
        self._on_gpu = start is not Verdict.ON_CPU
        self._shown = start in (Verdict.ON_GPU, Verdict.PARTLY)
        self._seen = seen
        self._elastic = elastic
        self._checked = 0.0
        self._last: LifeSample | None = None
        self._most = 0
        self._fell = False
        self._missing: frozenset[str] = frozenset()
        self._told: set[str] = set()
        self._wrong = False
        self._suspicions: list[_Suspicion] = []
        self._silent = self._closed = 0.0

    @property
    def wants_check(self) -> bool:
        """True if there is a suspicion: then call ``judge`` with the verdict of a new look.

        Also now and then after a loss, which may have been one for a moment.
        """
        lost = self.problem is not None and self.problem.kind == LOST
        due = lost and self._last is not None and self._last.now - self._checked >= AGAIN
        return bool(self._suspicions) or due

    @property
    def wants_answer(self) -> bool:
        """True if an answer of the server can tell more: it answers, and has not lost its GPU."""
        silent = self._last is None or _is_silent(self._last)
        return not silent and (self.problem is None or self.problem.kind == FAULT)

    def see(self, sample: LifeSample) -> ServerProblem | None:
        """Take one more sample; return a problem that is new, or over."""
        # Nothing is known from before the first sample.
        last = self._last or sample._replace(gone=(), refused=())
        if self._on_gpu:
            self._suspect(last, sample)
        self._last = sample
        return self._hang(last, sample)

    def _suspect(self, last: LifeSample, sample: LifeSample) -> None:
        if sample.asleep - last.asleep >= _SLEPT:
            slept = sample.asleep - last.asleep
            self._suspicions.append(_Suspicion(f"the machine slept for {slept:.0f} seconds"))
        for fault in sample.faults:
            self._suspicions.append(_of_driver(fault))
        # Twice in a row: while udev makes a node again it is missing for a moment.
        gone = {node for node in sample.gone if node in last.gone}
        refused = {node for node in sample.refused if node in last.refused}
        for node in sorted((gone | refused) - self._missing):
            text = "does not exist any more" if node in gone else "cannot be opened any more"
            self._suspicions.append(_Suspicion(f"{node} {text}", node in gone, node in gone))
        # A node that came back may go again.
        self._missing = frozenset(gone | refused)
        if sample.memory is None or self._elastic:
            return
        fell = sample.memory < self._most * _FELL
        if fell and not self._fell:
            text = f"its GPU memory fell from {self._most:,} to {sample.memory:,} bytes"
            self._suspicions.append(_Suspicion(text, grave=sample.memory == 0))
        self._fell = fell
        self._most = max(self._most, sample.memory)

    def judge(self, verdict: Verdict, *, answered: bool = False) -> ServerProblem | None:
        """Decide on the suspicions by a new look at the server; return a problem as ``see``.

        ``answered``: it computed the result of a request.
        """
        suspicions, self._suspicions = self._suspicions, []
        self._checked = self._last.now if self._last else 0.0
        lost = self.problem is not None and self.problem.kind == LOST
        facts = tuple(dict.fromkeys(each.text for each in suspicions))
        if verdict in (Verdict.ON_GPU, Verdict.PARTLY):
            if lost:
                return self._over("the server computes on the GPU again")
        elif lost:
            return None
        elif self._is_loss(suspicions, verdict, answered=answered):
            self.problem = ServerProblem(LOST, "the server has lost its GPU", facts)
            return self.problem
        hardware = [each.text for each in suspicions if each.hardware]
        new = tuple(text for text in dict.fromkeys(hardware) if text not in self._told)
        if not new:
            return None
        # Once for each text: a bad card reports the same every few seconds.
        self._told.update(new)
        fault = ServerProblem(FAULT, _DRIVERS, new, ends=False)
        # A fault under which the server goes on hides no graver problem.
        self.problem = self.problem or fault
        return fault

    def hear(self, wrong: str) -> ServerProblem | None:
        """Take note of what is wrong with an answer, empty if nothing is; return as ``see``."""
        before, self._wrong = self._wrong, bool(wrong)
        if wrong and not before:
            fault = ServerProblem(FAULT, "the server answers wrongly", (wrong,))
            # It is graver than a fault that the driver reports.
            if self.problem is None or self.problem.kind == FAULT:
                self.problem = fault
            return fault
        if before and not wrong and self.problem and self.problem.kind == FAULT:
            return self._over("the server answers rightly again")
        return None

    def _is_loss(self, suspicions: list[_Suspicion], verdict: Verdict, *, answered: bool) -> bool:
        # What nothing has shown at the start cannot be missed. Without an answer, a server that
        # frees its memory by itself may have no model loaded now.
        if not self._shown or (self._elastic and not answered):
            return False
        if any(each.grave for each in suspicions):
            # llama-server does not go on without its GPU: so an answer counts, unless this look
            # misses what the one at the start has shown.
            return self._seen or not answered
        return self._seen and verdict is Verdict.ON_CPU

    def _hang(self, last: LifeSample, sample: LifeSample) -> ServerProblem | None:
        step = min(max(0.0, sample.now - last.now), _LONGEST_STEP)
        silent = _is_silent(sample) and sample.worked is False
        # Without an answer to ``/health``, but at work, all its threads may be taken for hours.
        closed = _is_silent(sample) and not (sample.answers is False and sample.worked)
        # The time before the first such sample is not known.
        self._silent = self._silent + step if silent and _is_silent(last) else 0.0
        self._closed = self._closed + step if closed and _is_silent(last) else 0.0
        hangs = self.problem is not None and self.problem.kind == HANG
        if self._silent >= HANGS or self._closed >= HANGS_AT_WORK:
            # A server that lost its GPU may hang for that: then the cause stays the problem.
            if hangs or (self.problem and self.problem.kind == LOST):
                return None
            self.problem = _hanging(sample, max(self._silent, self._closed))
            return self.problem
        if hangs and not _is_silent(sample):
            return self._over("the server answers again")
        return None

    def _over(self, text: str) -> ServerProblem:
        self.problem = None
        return ServerProblem(OVER, text, ends=False)


def _is_silent(sample: LifeSample) -> bool:
    return sample.answers is False or sample.takes_tasks is False


def _hanging(sample: LifeSample, seconds: float) -> ServerProblem:
    words = "answered /health but took no task" if sample.answers else "did not answer"
    work = "and nothing tells whether it computed"
    if sample.worked is not None:
        work = "and computed without an end" if sample.worked else "and computed nothing"
    return ServerProblem(
        HANG, "the server hangs", (f"for {seconds:.0f} seconds it {words}, {work}",)
    )


def _of_driver(fault: DriverFault) -> _Suspicion:
    if fault.xid is None:
        return _Suspicion(f"{fault.device}: {fault.text}", grave=True, hardware=True)
    known = _FELL_OFF.get(fault.xid) or _GRAVE.get(fault.xid) or _HARDWARE.get(fault.xid)
    grave = fault.xid in _FELL_OFF or fault.xid in _GRAVE
    words = f" ({known})" if known else ""
    return _Suspicion(
        f"{fault.device}: the driver reports Xid {fault.xid}{words}", grave, known is not None
    )


def hint_for(problem: ServerProblem, *, is_ended: bool) -> str:
    """Return what to do about a problem; ``is_ended``: the user's setting has ended the server."""
    hint = {
        LOST: f"find the broken link: {TSUKU} doctor",
        HANG: f"look for a fault of the GPU's driver: {TSUKU} doctor",
        FAULT: f"the kernel's log says more (dmesg); then: {TSUKU} doctor",
    }[problem.kind]
    if problem.kind == FAULT and problem.text != _DRIVERS:
        hint = f"have the gate try the build again: {TSUKU} install --force"
    # A fault that the driver reports ends no server.
    if is_ended or not problem.ends:
        return hint
    return f"{hint}; to have it started again: {TSUKU} config set llm.on_gpu_loss restart"


FIRST_PAUSE: float = 1.0
"""Seconds before the first restart; each further one waits twice as long, up to five minutes."""


def restart_pause(failures: int) -> float:
    """Return the seconds to wait before a restart; ``failures`` is how many came in a row."""
    return min(_LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))


def failures_in_a_row(before: int, served: float) -> int:
    """Return the number with one more failure; ``served`` seconds end the row if they are many."""
    return 1 if served >= _LASTED else before + 1


_LONGEST_PAUSE = 300.0
_LASTED = 600.0
"""Seconds after which a server that was restarted counts as repaired."""
