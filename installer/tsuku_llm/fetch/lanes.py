"""The download of one artifact over several connections at once.

Each connection has a thread, a lane. The downloading thread is the one that calls
``fetch_in_lanes``. It hashes the file from the start, writes the first and last note,
reports the progress, and decides how many lanes there are. There is one until the server
has answered a range correctly, then more.
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
"""Seconds between two turns of the downloading thread, if there is nothing to hash."""

_HASHES = 16
"""Chunks that are hashed in one turn at most."""

_BUSY = frozenset({429, 503})


def fetch_in_lanes(transfer: Transfer, plan: Plan, url: str) -> None:
    """Close all gaps of ``plan`` from one source, and hash the whole file.

    Raises ``NoRanges`` if one connection must do it, from the verified bytes on;
    ``DigestMismatch`` for wrong pieces; and the errors of ``fetch``. The received bytes stay
    in the part and the plan.
    """
    # Made once, not for each attempt: a retry must not forget what the server refused.
    width = Width(transfer.network.limits)
    Retries(transfer.network, transfer.deadline).run(
        lambda: _Lanes(transfer, plan, url, width).run(),
        received=lambda: plan.size - plan.missing,
    )


class _Lanes:
    """One attempt at one source: the downloading thread's side of the lanes.

    Its methods run in the downloading thread only. The lanes see ``_crew``, not this.
    """

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
        # No lane runs yet, so these need no lock. The note must be on the disk before a lane
        # writes after a gap: without it, the next run would take the gap for bytes.
        self._part.mixed = True
        self._part.save(self._plan.gaps)
        try:
            while not self._part.complete:
                self._direct()
                # Sleep only if all bytes before the first gap are hashed.
                if not self._hash():
                    self._crew.wait(_TURN)
                self._network.check()  # another thread may have stopped the network
                self._transfer.check_deadline(self._url)
            self._transfer.tell(self._plan.size)
        finally:
            # Also after an error, and before the caller goes on: it will truncate or close the
            # part, and no lane may write to it then.
            self._crew.stop()
            self._give_back(0)

    def _direct(self) -> None:
        """Report the progress, judge the lanes that have ended, and start others."""
        # Lanes go on while this runs, so each answer of the crew may be older than the next one.
        # Nothing here depends on two of them being of the same moment.
        failure: Exception | None = None
        for lane in self._crew.ended():
            failure = lane.failure
            self._judge(lane)
        missing = sum(end - start for start, end in self._crew.gaps)
        self._transfer.tell(self._plan.size - missing)
        if self._crew.answered:
            self._width.answered()
        # A lane that ended since the call of ended() is judged in the next turn.
        active = self._crew.active
        self._width.look(self._plan.size - missing, self._network.clock(), active)
        self._crew.wanted = self._width.lanes  # lanes above this number end at their next take()
        # One of the active lanes uses the artifact's first connection, which is not given back.
        self._give_back(active - 1)
        # As long as other lanes work, they also do the failed lane's segment.
        if failure and missing and not active:
            while self._hash():  # wrong bytes that came before are a worse error than the failure
                pass
            raise self._alone(failure)
        self._start(active)

    def _judge(self, lane: Lane) -> None:
        # The lane has left the crew, so its thread changes none of its attributes any more.
        failure = lane.failure
        error = failure.error if isinstance(failure, Transient) else failure
        if lane.outrun:
            self._width.outrun(self._network.clock())
        if error is None:
            return
        # Not the network's fault (NoRanges, a full disk, a bug): other lanes cannot do better.
        if not isinstance(error, DownloadError):
            raise error
        if isinstance(error, HttpStatusError) and error.status in _BUSY:
            self._width.refused()
        elif lane.received < self._network.limits.gain:
            self._width.lost()

    def _alone(self, failure: Exception) -> Exception:
        """Retry with a single connection: a server that refuses parallel requests may accept one.

        Returns the error to raise: ``Transient`` for that retry, else the failure itself.
        """
        # Only if there were several, and once: the next attempt begins with _crowded False.
        if not self._crowded or not isinstance(failure, HttpStatusError):
            return failure
        self._width.refused()
        return Transient(failure)

    def _start(self, active: int) -> None:
        while active < self._width.lanes and self._crew.work:
            # The first lane uses the connection that the download has reserved for the artifact.
            # Each further one needs one of those that all artifacts of the run share; if there is
            # none, the next turn asks again.
            if active and not self._network.further_connection():
                return
            self._further += bool(active)
            self._crowded = self._crowded or bool(active)
            Lane(self._transfer, self._url, self._crew).start()
            active += 1

    def _give_back(self, further: int) -> None:
        # Not in the lane's thread: the counter `_further` then needs no lock.
        while self._further > max(0, further):
            self._network.drop_connection()
            self._further -= 1

    def _hash(self) -> bool:
        """Hash some bytes before the first gap; return whether there are more of them."""
        # The bytes before the first gap are written, and no lane writes there: a gap opens
        # there again only by _fetch_again(), in this thread. So reading needs no lock.
        gaps = self._crew.gaps
        end = gaps[0][0] if gaps else self._plan.size
        # A limited number: between two turns, lanes must be judged and started.
        for _ in range(_HASHES):
            if self._part.size == end:
                return False
            try:
                self._part.hash_on(end)
            except WrongPiece as piece:
                self._fetch_again(piece)
                return True  # the gaps are different now: begin again
        return True

    def _fetch_again(self, piece: WrongPiece) -> None:
        """Let a lane download a wrong piece again; give up the source after some attempts."""
        # First, even if again() raises: the next source or run must know that it is missing.
        self._crew.open(piece.start, piece.end)
        self._transfer.again(self._url, piece)
