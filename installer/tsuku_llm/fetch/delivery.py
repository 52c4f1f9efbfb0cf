"""Parallel downloads of one variant's artifacts, each readable before it is complete."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path

from tsuku_llm.errors import DigestMismatch, DownloadError
from tsuku_llm.fetch.arrival import Arrival
from tsuku_llm.fetch.network import Network
from tsuku_llm.fetch.progress import Progress
from tsuku_llm.manifest import Artifact

_SIDE_BY_SIDE = 2
"""Artifacts that download at once: a variant has one or two. It limits the threads."""


@contextlib.contextmanager
def side_by_side(
    artifacts: Sequence[Artifact], partials: Path, network: Network, progress: Progress
) -> Iterator[list[Arrival]]:
    """Download artifacts in parallel, as ``tsuku_llm.fetch.delivered`` says."""
    from tsuku_llm.fetch.download import download  # noqa: PLC0415

    arrivals = [Arrival(artifact.size) for artifact in artifacts]

    # Runs in a thread of the pool, once for each artifact.
    def bring(artifact: Artifact, arrival: Arrival) -> None:
        try:
            # Before any request: the network's client stays open until this download ends.
            with network.used():
                download(artifact, partials, network, progress, arrival)
        except BaseException as error:
            # All arrivals, not only ours: a reader may wait for another artifact, which is
            # useless without this one. Without this it would wait for ever.
            for each in arrivals:
                each.fail(error)
            raise

    with contextlib.ExitStack() as stack:
        # The stack unwinds backwards: the pool waits for its threads, then the files are closed.
        for arrival in arrivals:
            stack.callback(arrival.close)
        pool = stack.enter_context(ThreadPoolExecutor(_SIDE_BY_SIDE, "fetch"))
        jobs = [pool.submit(bring, *each) for each in zip(artifacts, arrivals, strict=True)]
        try:
            yield arrivals  # this thread reads them here, while the pool's threads download
            for job in as_completed(jobs):
                job.result()
        except DownloadError as error:
            network.stop()  # first: otherwise wait() lasts until the other downloads are complete
            wait(jobs)  # the others may have received wrong bytes, a worse error than this one
            found = (job.exception() for job in jobs)
            wrong = next((each for each in found if isinstance(each, DigestMismatch)), None)
            if wrong is None:
                raise
            wrong.facts += (f"also failed: {error.message}",)
            raise wrong from error
        except BaseException:  # also Ctrl-C, and an error of the code that reads the arrivals
            # Otherwise the pool's exit would wait until the downloads are complete.
            network.stop()
            raise
