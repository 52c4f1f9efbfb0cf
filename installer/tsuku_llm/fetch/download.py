"""An artifact from the first source that gives it, through interruptions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx

from tsuku_llm.errors import BodyError, DigestMismatch, DownloadError, HttpStatusError
from tsuku_llm.fetch.addresses import PACKAGE_SCHEME, file_name, host_of, scheme_of, shown, sources
from tsuku_llm.fetch.exchange import answered, check_framing, check_no_page, check_status
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.index import download_package
from tsuku_llm.fetch.local import local_chunks
from tsuku_llm.fetch.network import Network
from tsuku_llm.fetch.partial import Part, finish, opened_part, verified
from tsuku_llm.fetch.progress import Progress
from tsuku_llm.fetch.ranges import check_range, range_headers, validator_of
from tsuku_llm.fetch.retries import Pace, Retries
from tsuku_llm.manifest import Artifact

_Failure = DownloadError | DigestMismatch


def download(artifact: Artifact, folder: Path, network: Network, progress: Progress) -> Path:
    """Fetch, as ``tsuku_llm.fetch.fetch`` says."""
    done = folder / artifact.sha256
    if verified(done, artifact):
        return done
    with opened_part(folder, artifact) as part:
        _Download(artifact, part, network, progress).run()
    return finish(folder, artifact)


class _Download:
    """One artifact on its way into its partial file."""

    def __init__(
        self, artifact: Artifact, part: Part, network: Network, progress: Progress
    ) -> None:
        self._artifact = artifact
        self._part = part
        self._network = network
        self._progress = progress
        self._deadline = network.clock() + network.limits.total
        self._told = 0
        self._cap = network.limits.largest if artifact.size is None else artifact.size

    def run(self) -> None:
        """Try the sources in turn; raises the last one's error, a wrong digest before others."""
        self._show()
        try:
            self._from_any()
        finally:
            self._progress.end()

    def _from_any(self) -> None:
        failures: list[tuple[str, _Failure]] = []
        for url in sources(self._artifact.url, self._network.mirrors):
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
        self._restart()
        if mixed and self._complete_from(url):
            return
        if self._part.size:
            error = self._part.mismatch(url)
            self._restart()
        raise error

    def _complete_from(self, url: str) -> bool:
        """Fetch what is missing; whether the whole is the artifact."""
        if not self._part.complete:
            self._from(url)
        return self._part.matches()

    def _from(self, url: str) -> None:
        scheme = scheme_of(url)
        if scheme == PACKAGE_SCHEME:
            self._restart()
            folder = self._part.path.parent
            with download_package(url, self._artifact, folder, self._network, self._tell) as chunks:
                self._take(chunks, url)
        elif scheme == "file":
            self._restart()
            self._take(local_chunks(url), url)
        else:
            retries = Retries(self._network, self._deadline)
            retries.run(lambda: self._once(url), received=lambda: self._part.size)

    def _once(self, url: str) -> None:
        headers = range_headers(self._part, url)
        with answered(self._network, url, headers, self._deadline) as response:
            if response.status_code == 416 and headers:  # noqa: PLR2004
                if self._part.matches():
                    return
                self._restart()
                raise Transient(_not_satisfied(url))
            check_status(response, url, (200, 206) if headers else (200,))
            start = self._start(response, url)
            if start == 0 and self._part.size:
                self._restart()
            self._part.mixed = start > 0
            length = check_framing(response, url)
            self._part.remember(url, validator_of(response.headers))
            self._take(self._body(response, url, start, length), url)
        if self._artifact.size is not None and self._part.size < self._artifact.size:
            raise Transient(_short(url, self._part.size, self._artifact.size))

    def _start(self, response: httpx.Response, url: str) -> int:
        if response.status_code == 200:  # noqa: PLR2004
            return 0
        try:
            return check_range(response.headers, self._part, self._artifact.size, url)
        except Transient:
            self._restart()
            raise

    def _body(
        self, response: httpx.Response, url: str, start: int, length: int | None
    ) -> Iterator[bytes]:
        """The bytes of an answer; those that cannot be the artifact's are refused at once."""
        pace = Pace(self._network.limits, self._network.timing.clock)
        first = True
        for chunk in response.iter_raw():
            if first and start == 0:
                check_no_page(chunk, url)
                self._check_length(length, url)
            first = False
            yield chunk
            pace.check(len(chunk), url)
            self._network.check()
            if self._network.clock() > self._deadline:
                raise _too_slow(url, self._network.limits.total)

    def _check_length(self, length: int | None, url: str) -> None:
        expected = self._artifact.size
        if length is not None and (length > self._cap or expected not in (None, length)):
            raise _wrong_size(url, length, expected or self._cap)

    def _take(self, chunks: Iterator[bytes], url: str) -> None:
        for chunk in chunks:
            if self._part.size + len(chunk) > self._cap:
                self._restart()
                raise _wrong_size(url, None, self._cap)
            self._part.write(chunk)
            self._tell(self._part.size)

    def _restart(self) -> None:
        if self._part.size:
            self._part.restart()
            self._show()

    def _show(self) -> None:
        self._told = 0
        self._progress.begin(file_name(self._artifact.url), self._artifact.size)
        self._tell(self._part.size)

    def _tell(self, size: int) -> None:
        """Say that ``size`` bytes are there in all."""
        if size > self._told:
            self._progress.advance(size - self._told)
            self._told = size


def _decisive(failures: list[tuple[str, _Failure]]) -> _Failure:
    wrong = [item for item in failures if isinstance(item[1], DigestMismatch)]
    url, error = (wrong or failures)[-1]
    error.facts += tuple(
        f"before, from {shown(other)}: {failure.message}"
        for other, failure in failures
        if other != url
    )
    return error


def _not_satisfied(url: str) -> HttpStatusError:
    return HttpStatusError(
        f"{host_of(url)} cannot continue a partial download",
        status=416,
        facts=(f"url: {shown(url)}",),
        hint="try again: it starts from the beginning",
    )


def _short(url: str, received: int, expected: int) -> BodyError:
    return BodyError(
        f"{host_of(url)} ended the file early",
        facts=(f"received: {received} of {expected} bytes", f"url: {shown(url)}"),
        hint="run the command again: what came is kept and resumed",
    )


def _wrong_size(url: str, length: int | None, expected: int) -> BodyError:
    announced = "more" if length is None else f"{length} bytes"
    return BodyError(
        f"{host_of(url)} has a file of another size than the signed one",
        facts=(f"offered: {announced}, expected: {expected} bytes", f"url: {shown(url)}"),
        hint="the file there was replaced, or something on the way alters it: set llm.mirror",
    )


def _too_slow(url: str, total: float) -> BodyError:
    return BodyError(
        f"the download from {host_of(url)} took too long",
        facts=(f"limit: {total:.0f} seconds", f"url: {shown(url)}"),
        hint="run the command again: what came is kept and resumed",
    )
