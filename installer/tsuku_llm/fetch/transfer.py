"""The state of one artifact's download, common to one connection and to several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import httpx

from tsuku_llm.errors import BodyError, DigestMismatch
from tsuku_llm.fetch.addresses import file_name, host_of, shown
from tsuku_llm.fetch.exchange import check_no_page
from tsuku_llm.fetch.network import Network
from tsuku_llm.fetch.partial import Part, wrong_piece
from tsuku_llm.fetch.prefix import WrongPiece
from tsuku_llm.fetch.progress import Progress
from tsuku_llm.fetch.retries import Pace
from tsuku_llm.fetch.segments import Gap
from tsuku_llm.manifest import Artifact


class Transfer:
    """One artifact, its partial file, its deadline, and its progress.

    ``mismatch`` is the first error about wrong bytes that came in this run: no later failure
    hides it. ``encoding`` is the Content-Encoding of the last answer, "" without one.

    Lanes call ``body``, ``ended_early`` and ``check_deadline`` from their threads. All else
    is for the downloading thread only.
    """

    def __init__(
        self, artifact: Artifact, part: Part, network: Network, progress: Progress
    ) -> None:
        self.artifact = artifact
        self.part = part
        self.network = network
        self.deadline = network.clock() + network.limits.total
        self._progress = progress
        self._told = 0
        self._wrong = Counter[tuple[str, int]]()
        self._missing: Sequence[Gap] = ()
        self.mismatch: DigestMismatch | None = None
        self.encoding = ""

    @property
    def cap(self) -> int:
        """The largest number of bytes that we accept."""
        size = self.artifact.size
        return self.network.limits.largest if size is None else size

    def begin(self, there: int, missing: Sequence[Gap]) -> None:
        """Begin with the number of bytes that an earlier run left, and their gaps."""
        self._missing = missing
        self.show(there)

    def show(self, there: int) -> None:
        """Start to show the progress, or start again, at ``there`` bytes."""
        self._told = 0
        self._progress.begin(file_name(self.artifact.url), self.artifact.size)
        self.tell(there)

    def tell(self, there: int) -> None:
        """Report how many bytes are there in all."""
        # The count falls when a wrong piece must come again; the progress then waits.
        if there > self._told:
            self._progress.advance(there - self._told)
            self._told = there

    def end(self) -> None:
        """End the progress."""
        self._progress.end()

    def restart(self) -> None:
        """Remove all bytes but the verified ones, and correct the progress."""
        self.part.restart()
        if self._told != self.part.size:
            self.show(self.part.size)

    def again(self, url: str, piece: WrongPiece) -> None:
        """Allow one more download of a piece from a source, or raise ``DigestMismatch``.

        If an earlier run left the piece, the first failure is not the source's fault.
        """
        error = wrong_piece(url, piece)
        # Either it was wrong before in this run, so this run has downloaded it again, or all of
        # it was missing at the start. In both cases the wrong bytes came in this run.
        seen = any(start == piece.start for _, start in self._wrong)
        if seen or any(start <= piece.start and piece.end <= end for start, end in self._missing):
            self.mismatch = self.mismatch or error
        self._wrong[url, piece.start] += 1
        if self._wrong[url, piece.start] >= self.network.limits.piece_tries:
            raise error

    def body(
        self,
        response: httpx.Response,
        url: str,
        *,
        at_start: bool,
        check: Callable[[], None] | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes of an answer; raise if they come too slowly or are not needed any more.

        ``at_start``: these are the artifact's first bytes, which may show that it is a web page.
        """
        encoding = response.headers.get("content-encoding", "identity")[:40]
        # Lanes overwrite each other's value: one server encodes all its answers alike.
        self.encoding = "" if encoding == "identity" else encoding
        pace = Pace(self.network.limits, self.network.timing.clock)
        for chunk in response.iter_raw():  # not decoded: the digest is of the bytes as they came
            if at_start:
                check_no_page(chunk, url)
            at_start = False
            yield chunk  # first: the caller writes the bytes that came, even if we stop now
            pace.check(len(chunk), url)
            (check or self.network.check)()  # another thread may have stopped us
            self.check_deadline(url)

    @property
    def encoded(self) -> tuple[str, ...]:
        """The fact that the last answer was encoded, for an error about wrong bytes.

        The encoding alone is not an error: some servers call a plain ``.tar.gz`` encoded.
        """
        if not self.encoding:
            return ()
        return (f"it came encoded as {self.encoding!r}, which was not requested",)

    def ended_early(self, url: str, received: int, expected: int) -> BodyError:
        """Make the error for an answer with too few bytes."""
        return BodyError(
            f"{host_of(url)} ended the file early",
            facts=(
                f"received: {received} of {expected} bytes",
                f"url: {shown(url)}",
                *self.encoded,
            ),
            hint="run the command again: the partial download is kept and resumed",
        )

    def check_deadline(self, url: str) -> None:
        """Raise ``BodyError`` if the time for the whole artifact is over."""
        if self.network.clock() > self.deadline:
            raise BodyError(
                f"the download from {host_of(url)} took too long",
                facts=(f"limit: {self.network.limits.total:.0f} seconds", f"url: {shown(url)}"),
                hint="run the command again: the partial download is kept and resumed",
            )
