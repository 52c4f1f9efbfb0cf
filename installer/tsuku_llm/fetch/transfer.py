"""What one connection and several have in common: an artifact on its way into its part."""

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
    """One artifact, its part, and who is told how far it is.

    ``mismatch`` is what was first found wrong in bytes that came in this run: no later failure
    hides it. ``encoding`` is the Content-Encoding of the last answer, "" if it had none.
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
        """The most bytes that are taken."""
        size = self.artifact.size
        return self.network.limits.largest if size is None else size

    def begin(self, there: int, missing: Sequence[Gap]) -> None:
        """Begin with what an earlier run left: so many bytes, and these gaps."""
        self._missing = missing
        self.show(there)

    def show(self, there: int) -> None:
        """Start to show the progress, or start over, with so many bytes there."""
        self._told = 0
        self._progress.begin(file_name(self.artifact.url), self.artifact.size)
        self.tell(there)

    def tell(self, there: int) -> None:
        """Say how many bytes are there in all."""
        if there > self._told:
            self._progress.advance(there - self._told)
            self._told = there

    def end(self) -> None:
        """Nothing more comes."""
        self._progress.end()

    def restart(self) -> None:
        """Throw away what is there, but for what is verified."""
        self.part.restart()
        if self._told != self.part.size:
            self.show(self.part.size)

    def again(self, url: str, piece: WrongPiece) -> None:
        """Allow that a piece is fetched once more from a source, or raise ``DigestMismatch``.

        A piece that an earlier run left is no source's fault the first time.
        """
        error = wrong_piece(url, piece)
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
        """The bytes of an answer, as long as they come fast enough and somebody wants them.

        ``at_start``: they are the artifact's first ones, which may show that it is a page.
        """
        encoding = response.headers.get("content-encoding", "identity")[:40]
        self.encoding = "" if encoding == "identity" else encoding  # of any lane: all are alike
        pace = Pace(self.network.limits, self.network.timing.clock)
        for chunk in response.iter_raw():
            if at_start:
                check_no_page(chunk, url)
            at_start = False
            yield chunk
            pace.check(len(chunk), url)
            (check or self.network.check)()
            self.check_deadline(url)

    @property
    def encoded(self) -> tuple[str, ...]:
        """The fact that the last answer was encoded, for an error of bytes that do not fit.

        That alone is no error: servers call a ``.tar.gz`` encoded that is sent as it is.
        """
        if not self.encoding:
            return ()
        return (f"it came encoded as {self.encoding!r}, which was not asked for",)

    def ended_early(self, url: str, received: int, expected: int) -> BodyError:
        """The error for an answer that has fewer bytes than it must."""
        return BodyError(
            f"{host_of(url)} ended the file early",
            facts=(
                f"received: {received} of {expected} bytes",
                f"url: {shown(url)}",
                *self.encoded,
            ),
            hint="run the command again: what came is kept and resumed",
        )

    def check_deadline(self, url: str) -> None:
        """Raise when the time for the whole artifact is up."""
        if self.network.clock() > self.deadline:
            raise BodyError(
                f"the download from {host_of(url)} took too long",
                facts=(f"limit: {self.network.limits.total:.0f} seconds", f"url: {shown(url)}"),
                hint="run the command again: what came is kept and resumed",
            )
