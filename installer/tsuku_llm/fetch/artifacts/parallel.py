"""The download of one artifact over several connections at once.

Each connection has a thread. The downloading thread is the one that calls
``fetch_in_parallel``. It hashes the file from the start, reports the progress, and decides how
many connections there are. There is one until the server has answered a range correctly, then
more. A connection decides nothing: every failure ends it.
"""

from __future__ import annotations

import queue
import threading

import httpx

from tsuku_llm.fetch.artifacts.partial import PartialFile, WrongPiece
from tsuku_llm.fetch.artifacts.segments import Allowance, Segment, SegmentPlan
from tsuku_llm.fetch.artifacts.transfer import Transfer
from tsuku_llm.fetch.http.http_get import (
    answered,
    check_framing,
    check_status,
    is_range,
    range_headers,
    retry,
    validator_of,
)
from tsuku_llm.fetch.http.limits import Transient
from tsuku_llm.ground.errors import DownloadError, HttpStatusError

_TURN = 0.05
"""Seconds between two turns of the downloading thread, if there is nothing to hash."""

_HASHES = 16
"""Chunks that are hashed in one turn at most."""

_NOTES = 200
"""How many times the note is written during the download of a whole artifact."""

_BUSY = frozenset({429, 503})


class NoRanges(Exception):
    """A server that answers ranges with something else, or with another version of the file."""


class _Stopped(Exception):
    """Internal: the connection was told to stop."""


def fetch_in_parallel(transfer: Transfer, plan: SegmentPlan, url: str) -> None:
    """Close all gaps of ``plan`` from one source, and hash the whole file.

    Raises ``NoRanges`` if one connection must do it, from the verified bytes on;
    ``DigestMismatch`` for wrong pieces; and the errors of ``fetch``. The received bytes stay
    in the file and the plan.
    """
    # Made once, not for each attempt: a retry must not forget what the server refused.
    allowance = Allowance(transfer.connections)
    retry(
        lambda: _ParallelDownload(transfer, plan, url, allowance).run(),
        transfer.network,
        transfer.deadline,
        received=lambda: transfer.there,
    )


class _SourceState:
    """What all connections to one source share; any thread may use it.

    ``validator`` names the version of the file that all connections must get. ``address`` is
    the URL to which redirects led. ``answered``: a range was answered correctly.
    ``connections`` is how many there should be. These need no lock: each is one reference, so
    a reader gets the old value or the new one, and the old one is good as well.
    """

    def __init__(self, url: str, plan: SegmentPlan, file: PartialFile) -> None:
        self.url = url
        self.address = url
        self.validator = file.validator(url)
        self.answered = False
        self.connections = 1
        self.stopped = False
        self._plan = plan
        self._file = file
        # Guards the note on the disk and `_unnoted`: all connections write the note.
        self._noting = threading.Lock()
        self._unnoted = 0

    def accept(self, address: str, validator: str | None) -> None:
        """Keep the address of a right answer for all connections, and the first validator.

        Later answers were compared with the first one. If two first answers come at the same
        moment and differ, the digests find the mixture.
        """
        self.address = address
        if not self.answered:
            self.validator, self.answered = validator, True

    def wrote(self, length: int) -> None:
        """Count written bytes; note the gaps often, as a kill can come at any time."""
        with self._noting:
            self._unnoted += length
            if self._unnoted >= self._plan.size // _NOTES:
                self._note()

    def note(self) -> None:
        """Note the gaps for the next run."""
        with self._noting:
            self._note()

    def _note(self) -> None:
        # Other connections may close gaps meanwhile: then the note has gaps that are bytes
        # already, never the other way round. The next note is written after this one.
        self._unnoted = 0
        self._file.remember(self.url, self.validator, self._plan.gaps)

    def check(self) -> None:
        """Raise ``_Stopped`` if the connections were told to stop."""
        # It changes once, and a connection that misses it checks again soon.
        if self.stopped:
            raise _Stopped


class _ParallelDownload:
    """One attempt at one source: what the downloading thread does while connections work.

    Its methods run in the downloading thread only. A connection has no reference to this. It
    uses the plan, which locks, the ``_SourceState``, and the queue ``_ended``, its last act.
    """

    def __init__(
        self, transfer: Transfer, plan: SegmentPlan, url: str, allowance: Allowance
    ) -> None:
        self._transfer = transfer
        self._network = transfer.network
        self._plan = plan
        self._allowance = allowance
        self._source = _SourceState(url, plan, transfer.file)
        self._ended: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        # Those that were started, and whose end was not seen in `_ended` yet.
        self._active: list[Connection] = []
        self._crowded = False  # there were several

    def run(self) -> None:
        """Download until the whole file is hashed, or raise why that is not possible."""
        transfer = self._transfer
        transfer.mixed = True
        # No connection works yet. The note must be on the disk before one writes after a gap:
        # without it, the next run would take the gap for bytes.
        transfer.file.save(self._plan.gaps)
        more_to_hash = True
        try:
            while not transfer.complete:
                # Sleep only if all bytes before the first gap are hashed.
                failure = self._see_ended(0 if more_to_hash else _TURN)
                # Connections go on while this runs, so each count may be older than the next
                # one. Nothing here depends on two of them being of the same moment.
                there = transfer.there
                transfer.tell(there)
                if self._source.answered:
                    self._allowance.answered()
                # As long as other connections work, they also do the failed one's segment.
                if failure and not self._active and there < self._plan.size:
                    while self._hash():  # wrong bytes that came before are worse than the failure
                        pass
                    # Its connection may have met the time limit of the artifact before we did.
                    transfer.check_deadline(self._source.url)
                    # A server that refuses parallel requests may accept one: retry with a single
                    # connection, if there were several. Once: the next attempt begins with
                    # _crowded False.
                    if self._crowded and isinstance(failure, HttpStatusError):
                        self._allowance.refused()
                        raise Transient(failure)
                    raise failure
                self._adjust()
                more_to_hash = self._hash()
                self._network.check()  # another thread may have stopped the network
                transfer.check_deadline(self._source.url)
            transfer.tell(self._plan.size)
        finally:
            # Also after an error, and before the caller goes on: it will truncate or close the
            # file, and no connection may write to it then.
            self._stop()

    def _see_ended(self, seconds: float) -> Exception | None:
        """Judge the connections that have ended; wait some seconds for the first of them.

        Returns the failure of the last one.
        """
        failure: Exception | None = None
        while True:
            try:
                connection = self._ended.get(timeout=seconds)
            except queue.Empty:
                return failure
            seconds = 0
            self._active.remove(connection)
            # Its thread has put it into the queue, and changes none of its attributes any more.
            failure = connection.failure
            error = failure.error if isinstance(failure, Transient) else failure
            if error is None:
                continue
            # Not the network's fault (NoRanges, a full disk, a bug): others cannot do better.
            if not isinstance(error, DownloadError):
                raise error
            if isinstance(error, HttpStatusError) and error.status in _BUSY:
                self._allowance.refused()
            elif connection.received < self._network.limits.progress_bytes:
                self._allowance.failed()

    def _adjust(self) -> None:
        """Bring the number of connections to what is allowed."""
        wanted = self._source.connections = self._allowance.connections
        for number, connection in enumerate(self._active):
            connection.surplus = number >= wanted  # it ends after its segment
        while len(self._active) < wanted and self._plan.work:
            self._crowded = self._crowded or bool(self._active)
            connection = Connection(self._transfer, self._plan, self._source, self._ended)
            self._active.append(connection)
            connection.start()

    def _hash(self) -> bool:
        """Hash some bytes before the first gap; return whether there are more of them."""
        # The bytes before the first gap are written, and no connection writes there: a gap opens
        # there again only below, in this thread. So reading needs no lock.
        gaps = self._plan.gaps
        end = gaps[0][0] if gaps else self._plan.size
        # A limited number: between two turns, connections must be judged and started.
        for _ in range(_HASHES):
            if self._transfer.hashed == end:
                return False
            try:
                self._transfer.hash_on(end)
            except WrongPiece as piece:
                # First, even if again() raises: the next source or run must know that it is
                # missing. A connection will download it again.
                self._plan.open(piece.start, piece.end)
                self._transfer.again(self._source.url, piece)
                return True  # the gaps are different now: begin again
        return True

    def _stop(self) -> None:
        """Tell the connections to stop, wait until all have ended, and note what is missing."""
        self._source.stopped = True
        for connection in self._active:
            # One that reads checks twice a second; one in a TLS handshake or a write only after
            # its timeout.
            connection.join()
        # Now none of them writes any more: the caller may truncate or close the file.
        self._source.note()


class Connection:
    """One thread with one connection at a time, which downloads segment after segment.

    ``failure`` is the error that ended it, or None. ``received`` counts its bytes. It also
    ends after its segment if it is ``surplus``.
    """

    def __init__(
        self,
        transfer: Transfer,
        plan: SegmentPlan,
        source: _SourceState,
        ended: queue.SimpleQueue[Connection],
    ) -> None:
        self._transfer = transfer
        self._plan = plan
        self._source = source
        self._ended = ended
        # A daemon: if the process must end in a hurry, a connection does not keep it alive.
        self._thread = threading.Thread(target=self._run, name="tsuku-llm connection", daemon=True)
        self.surplus = False  # set by the downloading thread
        # The connection's thread writes these two. The downloading thread reads them only
        # after it got this object from the queue, which orders the two.
        self.received = 0
        self.failure: Exception | None = None

    def start(self) -> None:
        """Start the thread; if the system refuses it, the connection ends with a failure."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self.failure = DownloadError(
                "the system does not allow another thread",
                facts=(str(error),),
                hint="raise the limit on processes (ulimit -u), or end some of them",
            )
            self._ended.put(self)

    def join(self) -> None:
        """Wait until the thread has ended, if it was started."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        # An error must not end in the thread: it waits in `failure` for the downloading thread.
        try:
            while not self.surplus:
                segment = self._plan.take(self._source.connections)
                if segment is None:
                    return
                try:
                    self._fetch(segment)
                finally:
                    # Also after an error: otherwise the plan would count these bytes as in work,
                    # and no connection would ever download them.
                    self._plan.release(segment)
        except Exception as error:  # noqa: BLE001 - raised again where it is judged
            self.failure = error
        finally:
            self._ended.put(self)  # in any case, and last: after this it is judged

    def _fetch(self, segment: Segment) -> None:
        """Download a segment from the redirects' target; if that expired, follow them again."""
        address = self._source.address  # once: another connection may change it meanwhile
        try:
            self._fetch_from(address, segment)
        except HttpStatusError:
            if address == self._source.url:
                raise
            self._fetch_from(self._source.url, segment)

    def _fetch_from(self, address: str, segment: Segment) -> None:
        source, transfer = self._source, self._transfer
        # Without the lock: only this connection changes them.
        start, end = segment.done, segment.end
        source.check()  # no request after _stop()
        headers = range_headers(start, end, source.validator)
        with answered(
            transfer.network, address, headers, transfer.deadline, source.check
        ) as response:
            self._accept(response, segment, end)
            chunks = transfer.body(response, source.url, at_start=start == 0, check=source.check)
            for chunk in chunks:
                # A server may send more than its headers say: that belongs to other segments.
                part = chunk[: segment.end - segment.done]
                # Without the lock. Written before it is marked: the downloading thread hashes all
                # bytes before the first gap.
                transfer.file.write_at(part, segment.done)
                self._plan.written(segment, len(part))
                source.wrote(len(part))
                self.received += len(part)
                if len(part) < len(chunk):
                    return
        if segment.done < segment.end:
            raise Transient(
                transfer.ended_early(source.url, segment.done - start, segment.end - start)
            )

    def _accept(self, response: httpx.Response, segment: Segment, end: int) -> None:
        source, status, size = self._source, response.status_code, self._plan.size
        # The server ignores ranges and sends the whole file. If this connection is alone and
        # nothing is there yet, use this answer instead of a second request.
        if status == 200 and self._plan.take_all(segment):
            if check_framing(response, source.url) in (None, size):
                return
            raise NoRanges
        # 200 with other connections or bytes: the file may have changed (If-Range). 416: it is
        # shorter.
        if status in (200, 416):
            raise NoRanges
        check_status(response, source.url, (206,))
        # Read the validator now, not before the request: another connection may have learned it
        # meanwhile, and the bytes of all must be of one version.
        if not is_range(response.headers, segment.done, end, size, source.validator):
            raise NoRanges
        if check_framing(response, source.url) not in (None, end - segment.done):
            raise NoRanges
        # From now on, the downloading thread may start further connections.
        source.accept(str(response.request.url), validator_of(response.headers))
