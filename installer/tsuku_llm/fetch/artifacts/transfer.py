"""How far the download of one artifact is, and what is common to all ways to go on with it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import httpx

from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.fetch.artifacts.partial import CHUNK, PartialFile, PieceVerifier, WrongPiece
from tsuku_llm.fetch.artifacts.segments import Gap, SegmentPlan, gaps_of
from tsuku_llm.fetch.artifacts.stream import Progress, VerifiedStream
from tsuku_llm.fetch.http.http_get import check_no_page
from tsuku_llm.fetch.http.limits import Transient
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.fetch.http.urls import file_name, host_of, shown
from tsuku_llm.ground.errors import BodyError, DigestMismatch

_ALTERED = (
    "nothing was installed; if it happens again, the copy at that place is damaged, or something "
    "on the way alters it"
)


class Transfer:
    """One artifact's download: the one object that knows how far it is.

    Bytes go through it in this order: they are written to the file (``there``) and hashed from
    its start (``hashed``); each complete piece is compared with its digest, and the stream's
    reader may then use it. ``plan`` has the gaps as long as several connections can be used.
    Without it, the file ends at ``hashed``.

    ``mixed``: the bytes came in more than one answer, or in an earlier run. ``mismatch`` is the
    first error about wrong bytes that came in this run: no later failure hides it.
    ``encoding`` is the Content-Encoding of the last answer, "" without one. ``connections`` is how
    many it may use.

    Threads: those of the connections call ``file.write_at``, the methods of ``plan``, ``body``
    and ``ended_early``. All else is for the downloading thread only.
    """

    def __init__(
        self,
        artifact: Artifact,
        file: PartialFile,
        stream: VerifiedStream,
        network: Network,
        progress: Progress,
        connections: int,
    ) -> None:
        self.artifact = artifact
        self.file = file
        self.network = network
        self.connections = connections
        self.deadline = network.clock() + network.limits.total
        self.plan: SegmentPlan | None = None
        self.mixed = False
        self.mismatch: DigestMismatch | None = None
        self.encoding = ""
        self._verifier = PieceVerifier(artifact)
        self._stream = stream
        self._progress = progress
        self._told = 0
        self._wrong = Counter[tuple[str, int]]()
        self._missing_at_start: Sequence[Gap] = ()

    # --- how far it is -------------------------------------------------------------------

    @property
    def hashed(self) -> int:
        """The number of bytes, from the start, that are hashed."""
        return self._verifier.size

    @property
    def there(self) -> int:
        """The number of bytes that are in the file, not counting its gaps."""
        return self.plan.size - self.plan.missing if self.plan else self.hashed

    @property
    def complete(self) -> bool:
        """Whether all bytes are there and hashed; False if the size is not known."""
        return self.artifact.size is not None and self.hashed == self.artifact.size

    @property
    def cap(self) -> int:
        """The largest number of bytes that we accept."""
        size = self.artifact.size
        return self.network.limits.largest if size is None else size

    def matches(self) -> bool:
        """Return whether the hashed bytes are the artifact."""
        return self._verifier.matches()

    def begin(self) -> None:
        """Read what an earlier run left, and plan segments if the artifact is large."""
        size, limits = self.artifact.size, self.network.limits
        there = self.file.size()
        gaps: list[Gap] = []
        # If the size is not known, nothing tells where the file ends: resume after its last byte.
        if size is not None:
            if there > size:
                self.file.truncate(0)
                there = 0
            gaps = self._missing_at_start = gaps_of(size, there, self.file.noted_gaps())
        # A whole archive over one connection needs no ranges. The rest of one does, and segments
        # keep more of what is there.
        in_segments = self.connections > 1 or there > 0
        if in_segments and size is not None and size >= limits.parallel_threshold:
            # Not hashed here: that happens from the start while the rest downloads.
            self.plan = SegmentPlan(size, gaps, limits.segment)
        else:
            # One connection appends to the hashed bytes, so all others must go. A wrong piece
            # is no server's fault: an earlier run left it.
            with contextlib.suppress(WrongPiece):
                while self.hash_on(gaps[0][0] if gaps else None):
                    pass
            self.file.truncate(self.hashed)
        self.mixed = self.there > 0
        self._show()

    def append(self, chunk: bytes) -> None:
        """Write after the hashed bytes, and hash. Raises ``WrongPiece`` and drops that piece."""
        # Write first: once hashed, the bytes may be read by the thread that unpacks.
        self.file.write_at(chunk, self.hashed)
        try:
            self._hash(chunk)
        except WrongPiece:
            self._truncate()
            raise

    def hash_on(self, end: int | None) -> bool:
        """Hash the next bytes of the file, up to ``end``; return False if nothing is left.

        Raises ``WrongPiece``.
        """
        # Other threads may write to the file meanwhile, but only after ``end``.
        length = CHUNK if end is None else min(CHUNK, end - self.hashed)
        chunk = self.file.read_at(self.hashed, length)
        self._hash(chunk)
        return bool(chunk)

    def _hash(self, chunk: bytes) -> None:
        before = self._verifier.verified
        try:
            self._verifier.update(chunk)
        finally:
            # Also after a wrong piece: right ones before it in the same chunk are usable.
            if self._verifier.verified > before:
                self._stream.grow(self._verifier.verified)

    def restart(self) -> None:
        """Go back to the verified bytes, which are never removed; go on over one connection."""
        # All connections have ended: only this thread writes to the file now.
        self.plan = None
        self._verifier.rewind()
        self._truncate()
        if self._told != self.hashed:
            self._show()

    def _truncate(self) -> None:
        self.file.truncate(self.hashed)
        self.mixed = self.mixed and self.hashed > 0

    # --- what the user sees ----------------------------------------------------------------

    def _show(self) -> None:
        """Start to show the progress, or start again."""
        self._told = self.there
        self._progress.begin(file_name(self.artifact.url), self.artifact.size, self.there)

    def tell(self, there: int) -> None:
        """Report how many bytes are there in all."""
        # The count falls when a wrong piece must come again; the progress then waits.
        if there > self._told:
            self._progress.advance(there - self._told)
            self._told = there

    # --- one answer ------------------------------------------------------------------------

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
        # Connections overwrite each other's value: one server encodes all its answers alike.
        self.encoding = "" if encoding == "identity" else encoding
        limits, clock = self.network.limits, self.network.clock
        since, received = clock(), 0
        for chunk in response.iter_raw():  # not decoded: the digest is of the bytes as they came
            if at_start:
                check_no_page(chunk, url)
            at_start = False
            yield chunk  # first: the caller writes the bytes that came, even if we stop now
            received += len(chunk)
            elapsed = clock() - since
            if elapsed >= limits.window:
                # No read timeout ends a slow drip.
                if received < limits.slowest * elapsed:
                    raise Transient(
                        BodyError(
                            f"{host_of(url)} sends too slowly",
                            facts=(
                                f"received: {received} bytes in {elapsed:.0f} seconds",
                                f"url: {shown(url)}",
                            ),
                            hint="try again later; the download will be resumed",
                        )
                    )
                # The next window begins: a fast start must not excuse a drip later.
                since, received = since + elapsed, 0
            (check or self.network.check)()  # another thread may have stopped us
            self.check_deadline(url)

    def check_deadline(self, url: str) -> None:
        """Raise ``BodyError`` if the time for the whole artifact is over."""
        if self.network.clock() > self.deadline:
            raise BodyError(
                f"the download from {host_of(url)} took too long",
                facts=(f"limit: {self.network.limits.total:.0f} seconds", f"url: {shown(url)}"),
                hint="run the command again: the partial download is kept and resumed",
            )

    # --- errors ----------------------------------------------------------------------------

    def again(self, url: str, piece: WrongPiece) -> None:
        """Allow one more download of a piece from a source, or raise ``DigestMismatch``.

        If an earlier run left the piece, the first failure is not the source's fault.
        """
        error = wrong_piece(url, piece, *self._encoded)
        # Either it was wrong before in this run, so this run has downloaded it again, or all of
        # it was missing at the start. In both cases the wrong bytes came in this run.
        seen = any(start == piece.start for _, start in self._wrong)
        missing = self._missing_at_start
        if seen or any(start <= piece.start and piece.end <= end for start, end in missing):
            self.mismatch = self.mismatch or error
        self._wrong[url, piece.start] += 1
        if self._wrong[url, piece.start] >= self.network.limits.piece_tries:
            raise error

    def wrong_whole(self, url: str) -> DigestMismatch:
        """Make the error for a complete file that is not the artifact, and drop its bytes."""
        error = DigestMismatch(
            "a download is not the file that was signed",
            facts=(
                f"url: {shown(url)}",
                f"expected: sha256 {self.artifact.sha256}",
                f"received: sha256 {self._verifier.sha256}, {self.hashed} bytes",
                *self._encoded,
            ),
            hint=_ALTERED,
        )
        self.mismatch = self.mismatch or error
        self.restart()
        return error

    def ended_early(self, url: str, received: int, expected: int) -> BodyError:
        """Make the error for an answer with too few bytes."""
        return BodyError(
            f"{host_of(url)} ended the file early",
            facts=(
                f"received: {received} of {expected} bytes",
                f"url: {shown(url)}",
                *self._encoded,
            ),
            hint="run the command again: the partial download is kept and resumed",
        )

    @property
    def _encoded(self) -> tuple[str, ...]:
        """The fact that the last answer was encoded, for an error about wrong bytes.

        The encoding alone is not an error: some servers call a plain ``.tar.gz`` encoded.
        """
        if not self.encoding:
            return ()
        return (f"it came encoded as {self.encoding!r}, which was not requested",)


def wrong_piece(url: str, piece: WrongPiece, *facts: str) -> DigestMismatch:
    """Make the error for a piece whose bytes are wrong."""
    return DigestMismatch(
        "a piece of a download is not the one that was signed",
        facts=(f"url: {shown(url)}", f"bytes: {piece.start} to {piece.end - 1}", *facts),
        hint=_ALTERED,
    )
