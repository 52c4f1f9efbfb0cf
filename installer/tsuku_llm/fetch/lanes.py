"""An artifact over several connections at once.

Each has a thread of its own, a lane. The thread that fetches hashes what is there from
the start, keeps the note beside the part, tells the progress, and decides how many lanes
there are: one until the server has answered a range as it must, then more.
"""

from __future__ import annotations

from tsuku_llm.errors import DownloadError, HttpStatusError
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.lane import Crew, Lane, NoRanges
from tsuku_llm.fetch.prefix import WrongPiece
from tsuku_llm.fetch.retries import Retries
from tsuku_llm.fetch.segments import Plan
from tsuku_llm.fetch.transfer import Transfer
from tsuku_llm.fetch.width import Width

__all__ = ["NoRanges", "fetch_in_lanes"]

_TURN = 0.05
"""Seconds between two looks at what came."""

_HASHES = 16
"""Chunks that are hashed in one turn, if there are so many."""

_BUSY = frozenset({429, 503})


def fetch_in_lanes(transfer: Transfer, plan: Plan, url: str) -> None:
    """Close all gaps of ``plan`` from one source, and hash the whole.

    Raises ``NoRanges`` where one connection has to do it, from what is verified; wrong
    pieces as ``DigestMismatch``; and what ``fetch`` raises. What came stays in the part
    and the plan.
    """
    width = Width(transfer.network.limits)
    Retries(transfer.network, transfer.deadline).run(
        lambda: _Lanes(transfer, plan, url, width).run(),
        received=lambda: plan.size - plan.missing,
    )


class _Lanes:
    """The lanes of one artifact to one source, as the thread that fetches sees them."""

    def __init__(self, transfer: Transfer, plan: Plan, url: str, width: Width) -> None:
        self._transfer = transfer
        self._network = transfer.network
        self._part = transfer.part
        self._plan = plan
        self._url = url
        self._width = width
        self._crew = Crew(plan, self._part, url)
        self._further = 0
        self._crowded = False

    def run(self) -> None:
        self._part.mixed = True
        self._part.save(self._plan.gaps)
        try:
            while not self._part.complete:
                self._direct()
                if not self._hash():
                    self._crew.wait(_TURN)
                self._network.check()
                self._transfer.check_deadline(self._url)
            self._transfer.tell(self._plan.size)
        finally:
            self._crew.stop()
            self._give_back(0)

    def _direct(self) -> None:
        """See what came, judge the lanes that ended, and start others."""
        failure: Exception | None = None
        for lane in self._crew.ended():
            failure = lane.failure
            self._judge(lane)
        missing = sum(end - start for start, end in self._crew.gaps)
        self._transfer.tell(self._plan.size - missing)
        if self._crew.answered:
            self._width.answered()
        active = self._crew.active
        self._width.look(self._plan.size - missing, self._network.clock(), active)
        self._crew.wanted = self._width.lanes
        self._give_back(active - 1)
        if failure and missing and not active:
            while self._hash():  # wrong bytes that came before count more than the failure
                pass
            raise self._alone(failure)
        self._start(active)

    def _judge(self, lane: Lane) -> None:
        failure = lane.failure
        error = failure.error if isinstance(failure, Transient) else failure
        if lane.outrun:
            self._width.outrun(self._network.clock())
        if error is None:
            return
        if not isinstance(error, DownloadError):
            raise error
        if isinstance(error, HttpStatusError) and error.status in _BUSY:
            self._width.refused()
        elif lane.received < self._network.limits.gain:
            self._width.lost()

    def _alone(self, failure: Exception) -> Exception:
        """What was refused to one of several may be given to a single one: once more, then."""
        if not self._crowded or not isinstance(failure, HttpStatusError):
            return failure
        self._width.refused()
        return Transient(failure)

    def _start(self, active: int) -> None:
        while active < self._width.lanes and self._crew.work:
            if active and not self._network.further_connection():
                return
            self._further += bool(active)
            self._crowded = self._crowded or bool(active)
            Lane(self._transfer, self._url, self._crew).start()
            active += 1

    def _give_back(self, further: int) -> None:
        while self._further > max(0, further):
            self._network.drop_connection()
            self._further -= 1

    def _hash(self) -> bool:
        """Hash some of what is there from the start; whether there is more of it."""
        gaps = self._crew.gaps
        end = gaps[0][0] if gaps else self._plan.size
        for _ in range(_HASHES):
            if self._part.size == end:
                return False
            try:
                self._part.hash_on(end)
            except WrongPiece as piece:
                self._fetch_again(piece)
                return True
        return True

    def _fetch_again(self, piece: WrongPiece) -> None:
        """A piece alone; after some tries the source is given up."""
        self._crew.open(piece.start, piece.end)
        self._transfer.again(self._url, piece)
