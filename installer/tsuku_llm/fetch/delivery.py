"""The artifacts of one variant, side by side, each readable while it comes."""

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
"""Artifacts that are fetched at once: a variant has one or two. It bounds the threads."""


@contextlib.contextmanager
def side_by_side(
    artifacts: Sequence[Artifact], partials: Path, network: Network, progress: Progress
) -> Iterator[list[Arrival]]:
    """Fetch, as ``tsuku_llm.fetch.delivered`` says."""
    from tsuku_llm.fetch.download import download  # noqa: PLC0415

    arrivals = [Arrival(artifact.size) for artifact in artifacts]

    def bring(artifact: Artifact, arrival: Arrival) -> None:
        try:
            with network.used():
                download(artifact, partials, network, progress, arrival)
        except BaseException as error:
            for each in arrivals:
                each.fail(error)
            raise

    with contextlib.ExitStack() as stack:
        for arrival in arrivals:
            stack.callback(arrival.close)
        pool = stack.enter_context(ThreadPoolExecutor(_SIDE_BY_SIDE, "fetch"))
        jobs = [pool.submit(bring, *each) for each in zip(artifacts, arrivals, strict=True)]
        try:
            yield arrivals
            for job in as_completed(jobs):
                job.result()
        except DownloadError as error:
            network.stop()
            wait(jobs)  # the others may have seen wrong bytes, which count more than this
            found = (job.exception() for job in jobs)
            wrong = next((each for each in found if isinstance(each, DigestMismatch)), None)
            if wrong is None:
                raise
            wrong.facts += (f"beside it: {error.message}",)
            raise wrong from error
        except BaseException:
            network.stop()
            raise
