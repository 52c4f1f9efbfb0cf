"""An artifact from the first source that gives it, through interruptions."""

from __future__ import annotations

from pathlib import Path

from tsuku_llm.errors import DigestMismatch, DownloadError, Interrupted
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
        except Interrupted as error:  # another artifact failed: what was wrong here counts more
            if self._transfer.mismatch:
                raise self._transfer.mismatch from error
            raise
        finally:
            self._transfer.end()

    def _look_at_the_part(self) -> None:
        size, limits = self._transfer.artifact.size, self._transfer.network.limits
        gaps = self._part.load()
        if size is not None and size >= limits.wide:
            self._plan = Plan(size, gaps, limits.segment)
            self._transfer.begin(size - self._plan.missing, gaps)
        else:
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
        """Fetch from one source; pieces that do not fit together cost one more try."""
        if self._complete_from(url):
            return
        mixed, error = self._part.mixed, self._mismatch(url)
        if mixed and self._complete_from(url):
            return
        raise self._mismatch(url) if self._part.size else error

    def _mismatch(self, url: str) -> DigestMismatch:
        """The error for what is there, which is thrown away; the first one is remembered."""
        error = self._part.mismatch(url)
        error.facts += self._transfer.encoded
        self._transfer.mismatch = self._transfer.mismatch or error
        self._start_over()
        return error

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

    def _decisive(self, failures: list[tuple[str, _Failure]]) -> _Failure:
        """The error to raise: of wrong bytes where any came, else of the last source.

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
