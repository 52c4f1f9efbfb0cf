"""An artifact from the first source that gives it, through interruptions."""

from __future__ import annotations

from pathlib import Path

from tsuku_llm.errors import DigestMismatch, DownloadError
from tsuku_llm.fetch.addresses import is_http, shown, sources
from tsuku_llm.fetch.arrival import Arrival
from tsuku_llm.fetch.lanes import NoRanges, fetch_in_lanes
from tsuku_llm.fetch.network import Network
from tsuku_llm.fetch.partial import Part, finish, opened_part, verified
from tsuku_llm.fetch.progress import Progress
from tsuku_llm.fetch.segments import Plan
from tsuku_llm.fetch.single import fetch_in_order
from tsuku_llm.fetch.transfer import Transfer
from tsuku_llm.manifest import Artifact

_Failure = DownloadError | DigestMismatch


def download(
    artifact: Artifact, folder: Path, network: Network, progress: Progress, arrival: Arrival
) -> Path:
    """Fetch, as ``tsuku_llm.fetch.fetch`` says."""
    done = folder / artifact.sha256
    if verified(done, artifact):
        arrival.opened(done)
        arrival.complete()
        return done
    with opened_part(folder, artifact, arrival) as part, network.first_connection():
        _Download(Transfer(artifact, part, network, progress), part).run()
        arrival.complete()
    return finish(folder, artifact)


class _Download:
    """One artifact on its way into its partial file, from source to source."""

    def __init__(self, transfer: Transfer, part: Part) -> None:
        self._transfer = transfer
        self._part = part
        self._plan: Plan | None = None

    def run(self) -> None:
        """Try the sources in turn; raises the last one's error, a wrong digest before others."""
        self._look_at_the_part()
        try:
            self._from_any()
        finally:
            self._transfer.end()

    def _look_at_the_part(self) -> None:
        size, limits = self._transfer.artifact.size, self._transfer.network.limits
        gaps = self._part.load()
        if size is not None and size >= limits.wide:
            self._plan = Plan(size, gaps, limits.segment)
            self._transfer.show(size - self._plan.missing)
        else:
            self._part.settle(gaps)
            self._transfer.show(self._part.size)

    def _from_any(self) -> None:
        failures: list[tuple[str, _Failure]] = []
        artifact, network = self._transfer.artifact, self._transfer.network
        for url in sources(artifact.url, network.mirrors):
            failure = self._attempt(url)
            if failure is None:
                return
            failures.append((url, failure))
        raise _decisive(failures)

    def _attempt(self, url: str) -> _Failure | None:
        try:
            self._verified_from(url)
        except (DownloadError, DigestMismatch) as error:
            return error
        return None

    def _verified_from(self, url: str) -> None:
        """Fetch from one source; pieces that do not fit together cost one more try."""
        if self._complete_from(url):
            return
        mixed, error = self._part.mixed, self._part.mismatch(url)
        self._start_over()
        if mixed and self._complete_from(url):
            return
        if self._part.size:
            error = self._part.mismatch(url)
            self._start_over()
        raise error

    def _start_over(self) -> None:
        """From what is verified, over one connection and in order."""
        self._plan = None
        self._transfer.restart()

    def _complete_from(self, url: str) -> bool:
        """Fetch what is missing; whether the whole is the artifact."""
        if self._plan and is_http(url):
            try:
                fetch_in_lanes(self._transfer, self._plan, url)
            except NoRanges:
                self._start_over()
        elif self._plan:
            self._start_over()
        if not self._part.complete:
            fetch_in_order(self._transfer, url)
        return self._part.matches()


def _decisive(failures: list[tuple[str, _Failure]]) -> _Failure:
    wrong = [item for item in failures if isinstance(item[1], DigestMismatch)]
    url, error = (wrong or failures)[-1]
    error.facts += tuple(
        f"before, from {shown(other)}: {failure.message}"
        for other, failure in failures
        if other != url
    )
    return error
