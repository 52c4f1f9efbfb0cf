"""The download of one artifact over several connections at once.

Each connection has a thread, a lane. The downloading thread is the one that calls
``fetch_in_lanes``. It hashes the file from the start, writes the first and last note,
reports the progress, and decides how many lanes there are. There is one until the server
has answered a range correctly, then more.
"""

from __future__ import annotations

import threading

import httpx

from tsuku_llm.errors import DownloadError, HttpStatusError
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.http_get import (
    answered,
    check_framing,
    check_status,
    is_segment,
    segment_headers,
    validator_of,
)
from tsuku_llm.fetch.partial import Part
from tsuku_llm.fetch.pieces import WrongPiece
from tsuku_llm.fetch.retries import Retries
from tsuku_llm.fetch.segments import ConnectionScaler, Gap, Segment, SegmentPlan
from tsuku_llm.fetch.transfer import Transfer

_NOTES = 200
"""How many times the note is written during the download of a whole artifact."""


class NoRanges(Exception):
    """A server that answers ranges with something else, or with another version of the file."""


class Stopped(Exception):
    """Internal: the lane was told to stop."""


class Crew:
    """The state that the lanes to one source share; any thread may use it.

    ``validator`` names the version of the file that all lanes must get. ``address`` is the
    URL to which redirects led. ``wanted`` is the allowed number of lanes.
    """

    def __init__(self, plan: SegmentPlan, part: Part, url: str) -> None:
        self._plan = plan
        self._part = part
        self._url = url
        self._unnoted = 0
        # Guards the plan, its segments, the note on the disk and all attributes. The lanes and
        # the downloading thread use them. It is held while the small note is written, but never
        # during a request or a write of the file's bytes: those run in parallel.
        self._changed = threading.Condition()
        self._active = 0
        self._ended: list[Connection] = []
        self._stopped = False
        # These four are also used without the lock. Each is one reference, so a reader gets
        # the old value or the new one, and the old one is good as well.
        self.address = url
        self.validator = part.validator(url)
        self.answered = False
        self.wanted = 1

    def join(self) -> None:
        """Count one more lane."""
        with self._changed:
            self._active += 1

    def leave(self, lane: Connection) -> None:
        """Note that a lane has ended, so that the downloading thread judges it."""
        # One step under the lock: a lane is either active or ended, never neither.
        with self._changed:
            self._active -= 1
            self._ended.append(lane)
            self._changed.notify_all()  # the downloading thread may be in wait() or stop()

    def take(self, before: Segment | None) -> Segment | None:
        """Take a lane's next segment after the segment ``before``; None if the lane must end."""
        # Under the lock, no two lanes get the same bytes.
        with self._changed:
            # The width was reduced: this lane ends. Two lanes may come here before the first has
            # left, and both end; the downloading thread then starts one again.
            if self._active > self.wanted:
                return None
            return self._plan.take(self.wanted, before)

    def take_all(self, segment: Segment) -> bool:
        """Extend a segment to the whole file; return False if another lane has work or bytes."""
        with self._changed:
            return self._plan.take_all(segment)

    def claim(self, segment: Segment, length: int) -> int:
        """Reserve received bytes for writing; return how many the lane must write."""
        # From here on, take() in another lane cannot take these bytes over. So the lane can
        # write them after it has released the lock.
        with self._changed:
            return self._plan.claim(segment, length)

    def written(self, segment: Segment, length: int) -> None:
        """Mark the claimed bytes as written; save the note often, as a kill can come any time."""
        # After the write: the downloading thread hashes all bytes before the first gap, and
        # would otherwise hash bytes that are not there yet.
        with self._changed:
            self._plan.written(segment)
            self._unnoted += length
            if self._unnoted >= self._plan.size // _NOTES:
                self._note()

    def _note(self) -> None:
        # The caller holds the lock: two threads must not write the note at the same time.
        self._unnoted = 0
        self._part.remember(self._url, self.validator, self._plan.gaps)

    def release(self, segment: Segment) -> None:
        """Give back a segment; another lane can take the bytes that are not written."""
        with self._changed:  # the lane writes no more to it
            self._plan.release(segment)

    def open(self, start: int, end: int) -> None:
        """Mark bytes as missing, so that a lane downloads them again."""
        with self._changed:
            self._plan.open(start, end)

    def answer(self, address: str, validator: str | None) -> None:
        """Note a right answer: its address for all lanes, its validator if it is the first."""
        with self._changed:
            self.address = address
            # Only the first: later answers were compared with it. If two first answers come at
            # the same moment and differ, the digests find the mixture.
            if not self.answered:
                self.validator, self.answered = validator, True

    def check(self) -> None:
        """Raise ``Stopped`` if the lanes were told to stop."""
        # Without the lock: it changes once, and a lane that misses it checks again soon.
        if self._stopped:
            raise Stopped

    def stop(self) -> None:
        """Tell the lanes to stop, wait until all have ended, and note what is missing."""
        self._stopped = True
        with self._changed:
            # The wait releases the lock, which the lanes need to end. A lane that reads checks
            # twice a second; one in a TLS handshake or a write only after its timeout.
            self._changed.wait_for(lambda: not self._active)
            # Now no lane writes any more: the caller may truncate or close the part.
            self._note()

    def wait(self, seconds: float) -> None:
        """Wait at most some seconds, or until a lane has ended."""
        with self._changed:  # the wait releases the lock
            self._changed.wait_for(lambda: self._ended, seconds)

    def ended(self) -> list[Connection]:
        """Take the lanes that have ended since the last call."""
        with self._changed:  # swap, so that each lane is judged exactly once
            ended, self._ended = self._ended, []
        return ended

    @property
    def active(self) -> int:
        """The number of lanes that have not ended."""
        with self._changed:
            return self._active

    @property
    def work(self) -> bool:
        """Whether there is a segment for one more lane."""
        with self._changed:
            return self._plan.work

    @property
    def gaps(self) -> list[Gap]:
        """The bytes that are not written yet."""
        with self._changed:
            return self._plan.gaps


class Connection:
    """One thread with one connection at a time, which downloads segment after segment.

    ``failure`` is the error that ended it, or None. ``received`` counts its bytes. It also
    ends, and is ``outrun``, if another lane had to continue its segment.
    """

    def __init__(self, transfer: Transfer, url: str, crew: Crew) -> None:
        self._transfer = transfer
        self._url = url
        self._crew = crew
        # The lane's thread writes these three. The downloading thread reads them only after
        # leave(), whose lock orders the two.
        self.received = 0
        self.outrun = False
        self.failure: Exception | None = None

    def start(self) -> None:
        """Start the lane's thread; if the system refuses it, the lane ends with a failure."""
        # Before the thread begins: the downloading thread must count the lane at once, or it
        # would start too many, and stop() could return before this one has begun.
        self._crew.join()
        try:
            # A daemon: if the process must end in a hurry, a lane does not keep it alive.
            threading.Thread(target=self._run, name="tsuku-llm lane", daemon=True).start()
        except RuntimeError as error:
            self.failure = DownloadError(
                "the system does not allow another thread",
                facts=(str(error),),
                hint="raise the limit on processes (ulimit -u), or end some of them",
            )
            self._crew.leave(self)

    def _run(self) -> None:
        # An error must not end in the thread: it waits in `failure` for the downloading thread.
        try:
            segment = None
            while not self.outrun and (segment := self._crew.take(segment)):
                self._work_on(segment)
                self.outrun = segment.outrun  # set by the lane that took over the rest
        except Exception as error:  # noqa: BLE001 - raised again where it is judged
            self.failure = error
        finally:
            # In any case, and last: stop() waits for it, and then the part may be closed.
            self._crew.leave(self)

    def _work_on(self, segment: Segment) -> None:
        try:
            self._fetch(segment)
        finally:
            # Also after an error: otherwise the plan would count these bytes as in work, and no
            # lane would ever download them.
            self._crew.release(segment)

    def _fetch(self, segment: Segment) -> None:
        """Download a segment from the redirects' target; if that expired, follow them again."""
        address = self._crew.address  # once: another lane may change it meanwhile
        try:
            self._fetch_from(address, segment)
        except HttpStatusError:
            if address == self._url:
                raise
            self._fetch_from(self._url, segment)

    def _fetch_from(self, address: str, segment: Segment) -> None:
        crew, transfer = self._crew, self._transfer
        # Without the lock. Only this lane changes `done`. Another lane may lower `end` at any
        # time: then we request too much, and _write() stops at the new end.
        start, end = segment.done, segment.end
        if start == end:  # another lane has taken over the whole rest
            return
        crew.check()  # no request after stop()
        headers = segment_headers(start, end, crew.validator)
        with answered(
            transfer.network, address, headers, transfer.deadline, crew.check
        ) as response:
            self._accept(response, segment, end)
            chunks = transfer.body(response, self._url, at_start=start == 0, check=crew.check)
            for chunk in chunks:
                # Less than the chunk: another lane has taken over the rest. Leaving the block
                # closes the connection, as the server still sends the rest to us.
                if self._write(segment, chunk) < len(chunk):
                    return
        # The answer has ended. If `end` was lowered meanwhile, the segment may be complete.
        if segment.done < segment.end:
            raise Transient(
                transfer.ended_early(self._url, segment.done - start, segment.end - start)
            )

    def _accept(self, response: httpx.Response, segment: Segment, end: int) -> None:
        status, size = response.status_code, self._transfer.artifact.size or 0
        # The server ignores ranges and sends the whole file. If this lane is alone and nothing is
        # there yet, use this answer instead of a second request.
        if status == 200 and self._crew.take_all(segment):  # noqa: PLR2004
            if check_framing(response, self._url) in (None, size):
                return
            raise NoRanges
        # 200 with other lanes or bytes: the file may have changed (If-Range). 416: it is shorter.
        if status in (200, 416):
            raise NoRanges
        check_status(response, self._url, (206,))
        # Read now, not before the request: another lane may have learned it meanwhile, and the
        # bytes of all lanes must be of one version.
        validator = self._crew.validator
        if not is_segment(response.headers, segment.done, end, size, validator):
            raise NoRanges
        check_framing(response, self._url)
        # From now on, the downloading thread may start further lanes.
        self._crew.answer(str(response.request.url), validator_of(response.headers))

    def _write(self, segment: Segment, chunk: bytes) -> int:
        """Write the bytes that still belong to this lane; return how many."""
        # Claim, write, mark as written: in this order, no other lane can take these bytes over,
        # and the downloading thread does not hash them before they are in the file.
        length = self._crew.claim(segment, len(chunk))
        # Outside the lock. Only this lane writes between `done` and `claimed`.
        self._transfer.part.write_at(chunk[:length], segment.done)
        self._crew.written(segment, length)
        self.received += length
        return length


__all__ = ["NoRanges", "fetch_in_parallel"]

_TURN = 0.05
"""Seconds between two turns of the downloading thread, if there is nothing to hash."""

_HASHES = 16
"""Chunks that are hashed in one turn at most."""

_BUSY = frozenset({429, 503})


def fetch_in_parallel(transfer: Transfer, plan: SegmentPlan, url: str) -> None:
    """Close all gaps of ``plan`` from one source, and hash the whole file.

    Raises ``NoRanges`` if one connection must do it, from the verified bytes on;
    ``DigestMismatch`` for wrong pieces; and the errors of ``fetch``. The received bytes stay
    in the part and the plan.
    """
    # Made once, not for each attempt: a retry must not forget what the server refused.
    width = ConnectionScaler(transfer.network.limits)
    Retries(transfer.network, transfer.deadline).run(
        lambda: _ParallelDownload(transfer, plan, url, width).run(),
        received=lambda: plan.size - plan.missing,
    )


class _ParallelDownload:
    """One attempt at one source: the downloading thread's side of the lanes.

    Its methods run in the downloading thread only. The lanes see ``_crew``, not this.
    """

    def __init__(
        self, transfer: Transfer, plan: SegmentPlan, url: str, width: ConnectionScaler
    ) -> None:
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

    def _judge(self, lane: Connection) -> None:
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
        elif lane.received < self._network.limits.progress_bytes:
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
            Connection(self._transfer, self._url, self._crew).start()
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
