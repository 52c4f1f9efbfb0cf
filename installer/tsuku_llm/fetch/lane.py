"""One of several connections: it asks for a segment after the other and writes what comes.

A lane decides nothing: whatever does not go well ends it, and ``lanes`` judges why.
"""

from __future__ import annotations

import threading

import httpx

from tsuku_llm.errors import DownloadError, HttpStatusError
from tsuku_llm.fetch.exchange import answered, check_framing, check_status
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.partial import Part
from tsuku_llm.fetch.ranges import is_segment, segment_headers, validator_of
from tsuku_llm.fetch.segments import Gap, Plan, Segment
from tsuku_llm.fetch.transfer import Transfer

_NOTES = 200
"""How often the note is written while the whole of an artifact comes."""


class NoRanges(Exception):
    """The server answers ranges with something else, or with another version of the file."""


class Stopped(Exception):
    """Nobody waits for this lane any more."""


class Crew:
    """What the lanes to one source share; any thread may use it.

    ``validator`` is of the version of the file that all of them must get, ``address``
    where redirects led to, ``wanted`` how many lanes there may be.
    """

    def __init__(self, plan: Plan, part: Part, url: str) -> None:
        self._plan = plan
        self._part = part
        self._url = url
        self._unnoted = 0
        self._changed = threading.Condition()
        self._active = 0
        self._ended: list[Lane] = []
        self._stopped = False
        self.address = url
        self.validator = part.validator(url)
        self.answered = False
        self.wanted = 1

    def join(self) -> None:
        """One more lane."""
        with self._changed:
            self._active += 1

    def leave(self, lane: Lane) -> None:
        """A lane has ended."""
        with self._changed:
            self._active -= 1
            self._ended.append(lane)
            self._changed.notify_all()

    def take(self, before: Segment | None) -> Segment | None:
        """The next work of a lane after the segment ``before``; None where it shall end."""
        with self._changed:
            if self._active > self.wanted:
                return None
            return self._plan.take(self.wanted, before)

    def take_all(self, segment: Segment) -> bool:
        """Whether the one lane that there is may fetch the whole file with its segment."""
        with self._changed:
            return self._plan.take_all(segment)

    def claim(self, segment: Segment, length: int) -> int:
        """How much of what came the lane is to write."""
        with self._changed:
            return self._plan.claim(segment, length)

    def written(self, segment: Segment, length: int) -> None:
        """It is written; the note follows closely, as the process may be killed at any time."""
        with self._changed:
            self._plan.written(segment)
            self._unnoted += length
            if self._unnoted >= self._plan.size // _NOTES:
                self._note()

    def _note(self) -> None:
        self._unnoted = 0
        self._part.remember(self._url, self.validator, self._plan.gaps)

    def release(self, segment: Segment) -> None:
        """What the lane did not write of its segment is for another one."""
        with self._changed:
            self._plan.release(segment)

    def open(self, start: int, end: int) -> None:
        """These bytes have to be fetched again."""
        with self._changed:
            self._plan.open(start, end)

    def answer(self, address: str, validator: str | None) -> None:
        """A range was answered as it must be."""
        with self._changed:
            self.address = address
            if not self.answered:
                self.validator, self.answered = validator, True

    def check(self) -> None:
        """Raise ``Stopped`` when the lanes were told to stop."""
        if self._stopped:
            raise Stopped

    def stop(self) -> None:
        """Tell the lanes to stop, wait until they have, and note what is missing."""
        self._stopped = True
        with self._changed:
            self._changed.wait_for(lambda: not self._active)
            self._note()

    def wait(self, seconds: float) -> None:
        """Until a lane has ended, but no longer."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended, seconds)

    def ended(self) -> list[Lane]:
        """The lanes that ended since this was asked before."""
        with self._changed:
            ended, self._ended = self._ended, []
        return ended

    @property
    def active(self) -> int:
        """Lanes at work."""
        with self._changed:
            return self._active

    @property
    def work(self) -> bool:
        """Whether there is anything for a further lane."""
        with self._changed:
            return self._plan.work

    @property
    def gaps(self) -> list[Gap]:
        """What is not written yet."""
        with self._changed:
            return self._plan.gaps


class Lane:
    """``failure`` says why it ended, None when it was through; ``received`` what it brought.

    It ends as well, and is ``outrun``, when another lane had to go on with its segment.
    """

    def __init__(self, transfer: Transfer, url: str, crew: Crew) -> None:
        self._transfer = transfer
        self._url = url
        self._crew = crew
        self.received = 0
        self.outrun = False
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._crew.join()
        try:
            threading.Thread(target=self._run, name="tsuku-llm lane", daemon=True).start()
        except RuntimeError as error:
            self.failure = DownloadError(
                "the system does not allow another thread",
                facts=(str(error),),
                hint="raise the limit on processes (ulimit -u), or end some of them",
            )
            self._crew.leave(self)

    def _run(self) -> None:
        try:
            segment = None
            while not self.outrun and (segment := self._crew.take(segment)):
                self._work_on(segment)
                self.outrun = segment.outrun
        except Exception as error:  # noqa: BLE001 - raised again where it is judged
            self.failure = error
        finally:
            self._crew.leave(self)

    def _work_on(self, segment: Segment) -> None:
        try:
            self._fetch(segment)
        finally:
            self._crew.release(segment)

    def _fetch(self, segment: Segment) -> None:
        """Fetch it from where redirects led to; they are followed again when that expired."""
        address = self._crew.address
        try:
            self._fetch_from(address, segment)
        except HttpStatusError:
            if address == self._url:
                raise
            self._fetch_from(self._url, segment)

    def _fetch_from(self, address: str, segment: Segment) -> None:
        crew, transfer = self._crew, self._transfer
        start, end = segment.done, segment.end  # another lane may take over the last part
        if start == end:  # it has taken over all of it
            return
        crew.check()
        headers = segment_headers(start, end, crew.validator)
        with answered(
            transfer.network, address, headers, transfer.deadline, crew.check
        ) as response:
            self._accept(response, segment, end)
            chunks = transfer.body(response, self._url, at_start=start == 0, check=crew.check)
            for chunk in chunks:
                if self._write(segment, chunk) < len(chunk):
                    return
        if segment.done < segment.end:
            raise Transient(
                transfer.ended_early(self._url, segment.done - start, segment.end - start)
            )

    def _accept(self, response: httpx.Response, segment: Segment, end: int) -> None:
        status, size = response.status_code, self._transfer.artifact.size or 0
        if status == 200 and self._crew.take_all(segment):  # noqa: PLR2004
            if check_framing(response, self._url) in (None, size):
                return
            raise NoRanges
        if status in (200, 416):
            raise NoRanges
        check_status(response, self._url, (206,))
        validator = self._crew.validator
        if not is_segment(response.headers, segment.done, end, size, validator):
            raise NoRanges
        check_framing(response, self._url)
        self._crew.answer(str(response.request.url), validator_of(response.headers))

    def _write(self, segment: Segment, chunk: bytes) -> int:
        """Write what is still this lane's business; how much that is."""
        length = self._crew.claim(segment, len(chunk))
        self._transfer.part.write_at(chunk[:length], segment.done)
        self._crew.written(segment, length)
        self.received += length
        return length
