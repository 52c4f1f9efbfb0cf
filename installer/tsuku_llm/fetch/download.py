"""The download of one artifact: sources in turn, resumed after interruptions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path

from tsuku_llm.errors import DigestMismatch, DownloadError, Interrupted
from tsuku_llm.fetch.network import Network
from tsuku_llm.fetch.parallel import NoRanges, fetch_in_parallel
from tsuku_llm.fetch.partial import Part, finish, opened_part, verified
from tsuku_llm.fetch.progress import Progress
from tsuku_llm.fetch.segments import SegmentPlan
from tsuku_llm.fetch.sequential import fetch_in_order
from tsuku_llm.fetch.stream import VerifiedStream
from tsuku_llm.fetch.transfer import Transfer
from tsuku_llm.fetch.urls import is_http, shown, sources
from tsuku_llm.manifest import Artifact

_SIDE_BY_SIDE = 2
"""Artifacts that download at once: a variant has one or two. It limits the threads."""


@contextlib.contextmanager
def side_by_side(
    artifacts: Sequence[Artifact], partials: Path, network: Network, progress: Progress
) -> Iterator[list[VerifiedStream]]:
    """Download artifacts in parallel, as ``tsuku_llm.fetch.delivered`` says."""
    streams = [VerifiedStream(artifact.size) for artifact in artifacts]

    # Runs in a thread of the pool, once for each artifact.
    def bring(artifact: Artifact, stream: VerifiedStream) -> None:
        try:
            # Before any request: the network's client stays open until this download ends.
            with network.used():
                download(artifact, partials, network, progress, stream)
        except BaseException as error:
            # All streams, not only ours: a reader may wait for another artifact, which is
            # useless without this one. Without this it would wait for ever.
            for each in streams:
                each.fail(error)
            raise

    with contextlib.ExitStack() as stack:
        # The stack unwinds backwards: the pool waits for its threads, then the files are closed.
        for stream in streams:
            stack.callback(stream.close)
        pool = stack.enter_context(ThreadPoolExecutor(_SIDE_BY_SIDE, "fetch"))
        jobs = [pool.submit(bring, *each) for each in zip(artifacts, streams, strict=True)]
        try:
            yield streams  # this thread reads them here, while the pool's threads download
            for job in as_completed(jobs):
                job.result()
        except DownloadError as error:
            network.stop()  # first: otherwise wait() lasts until the other downloads are complete
            wait(jobs)  # the others may have received wrong bytes, a worse error than this one
            found = (job.exception() for job in jobs)
            wrong = next((each for each in found if isinstance(each, DigestMismatch)), None)
            if wrong is None:
                raise
            wrong.facts += (f"beside it: {error.message}",)
            raise wrong from error
        except BaseException:  # also Ctrl-C, and an error of the code that reads the streams
            # Otherwise the pool's exit would wait until the downloads are complete.
            network.stop()
            raise


_Failure = DownloadError | DigestMismatch


def download(
    artifact: Artifact, folder: Path, network: Network, progress: Progress, stream: VerifiedStream
) -> Path:
    """Download an artifact, as ``tsuku_llm.fetch.fetch`` says."""
    done = folder / artifact.sha256
    # Hashed in every run: another program may have changed the file since.
    if verified(done, artifact):
        stream.opened(done)
        stream.complete()
        return done
    with opened_part(folder, artifact, stream) as part, network.first_connection():
        _Download(Transfer(artifact, part, network, progress), part).run()
        # The reader may begin to use the end of the file now; it has a descriptor for itself.
        stream.complete()
    # After the block, which closes the part: Windows cannot rename an open file.
    return finish(folder, artifact)


class _Download:
    """The download of one artifact into its partial file, from one source after the other.

    ``_plan`` is set as long as several connections can be used.
    """

    def __init__(self, transfer: Transfer, part: Part) -> None:
        self._transfer = transfer
        self._part = part
        self._plan: SegmentPlan | None = None

    def run(self) -> None:
        """Try the sources in turn; raise the last one's error, but a wrong digest first."""
        self._look_at_the_part()
        try:
            self._from_any()
        # Another artifact failed, and its thread stopped the network. Wrong bytes that came
        # here before are the more important error.
        except Interrupted as error:
            if self._transfer.mismatch:
                raise self._transfer.mismatch from error
            raise
        finally:
            self._transfer.end()

    def _look_at_the_part(self) -> None:
        """Read what an earlier run left, and plan segments if the artifact is large."""
        size, limits = self._transfer.artifact.size, self._transfer.network.limits
        gaps = self._part.load()
        if size is not None and size >= limits.parallel_threshold:
            # Not hashed here: the lanes hash from the start while the rest downloads.
            self._plan = SegmentPlan(size, gaps, limits.segment)
            self._transfer.begin(size - self._plan.missing, gaps)
        else:
            # One connection appends to the hashed bytes, so all others must go.
            self._part.settle(gaps)
            self._transfer.begin(self._part.size, gaps)

    def _from_any(self) -> None:
        failures: list[tuple[str, _Failure]] = []
        artifact, network = self._transfer.artifact, self._transfer.network
        for url in sources(artifact.url, network.mirrors):
            failure = self._attempt(url)
            if failure is None:
                return
            failures.append((url, failure))
        raise self._decisive(failures)

    def _attempt(self, url: str) -> _Failure | None:
        try:
            self._verified_from(url)
        except (DownloadError, DigestMismatch) as error:
            return error
        return None

    def _verified_from(self, url: str) -> None:
        """Download from one source and verify; allow a second try for mixed bytes."""
        if self._complete_from(url):
            return
        # Bytes of an earlier run or of several answers may belong to two versions of the file:
        # then this source may still be right. Read `mixed` first, as _mismatch() can clear it.
        mixed, error = self._part.mixed, self._mismatch(url)
        if mixed and self._complete_from(url):
            return
        # The second try may have left bytes: its error describes them. Otherwise the first one.
        raise self._mismatch(url) if self._part.size else error

    def _mismatch(self, url: str) -> DigestMismatch:
        """Make the error for the received bytes and drop them; remember the first error."""
        error = self._part.mismatch(url)
        error.facts += self._transfer.encoded
        self._transfer.mismatch = self._transfer.mismatch or error
        self._start_over()
        return error

    def _start_over(self) -> None:
        """Go back to the verified bytes; continue in order over one connection."""
        self._plan = None
        self._transfer.restart()

    def _complete_from(self, url: str) -> bool:
        """Download what is missing; return whether the result is the artifact."""
        if self._plan and is_http(url):
            try:
                fetch_in_parallel(self._transfer, self._plan, url)
            except NoRanges:  # all lanes have ended, so dropping their bytes is safe
                self._start_over()
        elif self._plan:  # a file or pip: they give the bytes in order only
            self._start_over()
        if not self._part.complete:
            fetch_in_order(self._transfer, url)
        return self._part.matches()

    def _decisive(self, failures: list[tuple[str, _Failure]]) -> _Failure:
        """Choose the error to raise: one of wrong bytes if there is any, else the last source's.

        The other failures become its facts, in order.
        """
        wrong = [failure for _, failure in failures if isinstance(failure, DigestMismatch)]
        error = wrong[-1] if wrong else self._transfer.mismatch or failures[-1][1]
        error.facts += tuple(
            f"from {shown(url)}: {failure.message}"
            for url, failure in failures
            if failure is not error
        )
        return error
