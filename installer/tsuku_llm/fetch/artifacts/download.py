"""The download of artifacts: sources in turn, resumed after interruptions, verified at the end.

``fetch_in_order`` takes an artifact over one connection at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path

from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.config.keys import ORIGIN
from tsuku_llm.fetch.artifacts.parallel import NoRanges, fetch_in_parallel
from tsuku_llm.fetch.artifacts.partial import WrongPiece, finish, opened_part, verified
from tsuku_llm.fetch.artifacts.stream import Progress, VerifiedStream
from tsuku_llm.fetch.artifacts.transfer import Transfer, wrong_piece
from tsuku_llm.fetch.http.http_get import (
    answered,
    check_framing,
    check_status,
    is_range,
    range_headers,
    validator_of,
)
from tsuku_llm.fetch.http.limits import Transient
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.fetch.http.retries import Retries
from tsuku_llm.fetch.http.urls import PACKAGE_SCHEME, file_name, host_of, is_http, scheme_of, shown
from tsuku_llm.fetch.places.mirrors import registries, sources
from tsuku_llm.fetch.places.pip_index import download_package
from tsuku_llm.fetch.places.small_files import local_chunks
from tsuku_llm.ground.disk import require_space
from tsuku_llm.ground.errors import (
    BodyError,
    DigestMismatch,
    DownloadError,
    HttpStatusError,
    Interrupted,
)
from tsuku_llm.ground.own_name import TSUKU


def fetch_in_order(transfer: Transfer, url: str) -> None:
    """Download what is missing. All bytes of the part must be hashed."""
    download = _SequentialDownload(transfer, url)
    if is_http(url):
        retries = Retries(transfer.network, transfer.deadline)
        retries.run(download.request, received=lambda: transfer.hashed)
        return
    # A file or pip gives the bytes from the start; the verified ones are skipped.
    transfer.restart()
    try:
        download.read()
    except WrongPiece as piece:
        raise wrong_piece(url, piece) from piece


class _SequentialDownload:
    """The download of one artifact from one source. One thread does all of it."""

    def __init__(self, transfer: Transfer, url: str) -> None:
        self._transfer = transfer
        self._size = transfer.artifact.size
        self._network = transfer.network
        self._url = url

    def read(self) -> None:
        """Read the whole from a file, or let pip fetch it."""
        transfer = self._transfer
        if scheme_of(self._url) != PACKAGE_SCHEME:
            self._take(_behind(local_chunks(self._url), transfer.hashed))
            return
        folder = transfer.file.path.parent
        with download_package(
            self._url, transfer.artifact, folder, self._network, transfer.tell
        ) as chunks:
            self._take(_behind(chunks, transfer.hashed))

    def request(self) -> None:
        """Request what is missing, until it is there; raise ``Transient`` for a retry."""
        while True:
            try:
                self._request_once()
            except WrongPiece as piece:
                # Requested again at once: the connection is fine, a pause is useless. again()
                # raises after some tries.
                self._transfer.again(self._url, piece)
            else:
                return

    def _request_once(self) -> None:
        url, transfer = self._url, self._transfer
        # Without bytes there is nothing that a validator could belong to.
        validator = transfer.file.validator(url) if transfer.hashed else None
        headers = range_headers(transfer.hashed, None, validator)
        with answered(self._network, url, headers, transfer.deadline) as response:
            # 416: there is nothing after our bytes. Without a size in the manifest, an earlier
            # run may have got all of them.
            if response.status_code == 416 and headers:
                if transfer.matches():
                    return
                transfer.restart()
                raise Transient(_not_satisfied(url))
            check_status(response, url, (200, 206) if headers else (200,))
            # 200 to a range: the server ignores ranges, or the file changed since (If-Range).
            start = transfer.hashed if response.status_code == 206 else 0
            if start and not is_range(response.headers, start, self._size, self._size, validator):
                transfer.restart()  # so that the retry asks for no range
                raise Transient(_not_the_rest(url))
            if start == 0:
                transfer.restart()
            # After the restart: what is still there came in an earlier answer.
            transfer.mixed = transfer.hashed > 0
            length = check_framing(response, url)
            # Before the first byte is written: a kill in between must not leave bytes of this
            # version with the validator of another one.
            transfer.file.remember(url, validator_of(response.headers))
            chunks = transfer.body(response, url, at_start=start == 0)
            self._take(chunks if start else self._from_start(chunks, length))
        # The answer ended as it should, but a proxy or server may have cut the file.
        if self._size is not None and transfer.hashed < self._size:
            raise Transient(transfer.ended_early(url, transfer.hashed, self._size))

    def _from_start(self, chunks: Iterator[bytes], length: int | None) -> Iterator[bytes]:
        """Yield the chunks after the verified bytes; check the length and the free space first.

        The checks come after the first chunk, because that shows a web page: then the error
        is about the page, and not about its length.
        """
        transfer = self._transfer
        for chunk in _behind(chunks, transfer.hashed):
            if length is not None and (length > transfer.cap or self._size not in (None, length)):
                raise self._wrong_size(length)
            # Only the server knows the size here; a size in the manifest is checked before.
            if length is not None and self._size is None and not transfer.hashed:
                require_space(transfer.file.path.parent, length, (f"download: {length} bytes",))
            yield chunk

    def _take(self, chunks: Iterator[bytes]) -> None:
        transfer = self._transfer
        for chunk in chunks:
            # Before the write: a server that sends without end must not fill the disk.
            if transfer.hashed + len(chunk) > transfer.cap:
                transfer.restart()
                raise self._wrong_size(None)
            transfer.append(chunk)
            transfer.tell(transfer.hashed)

    def _wrong_size(self, length: int | None) -> BodyError:
        """Make the error for a file of another size; ``length`` None means too many bytes."""
        host, expected = host_of(self._url), self._size or self._transfer.cap
        announced = "more" if length is None else f"{length} bytes"
        facts = (f"offered: {announced}, expected: {expected} bytes", f"url: {shown(self._url)}")
        if self._transfer.encoding:
            return BodyError(
                f"{host} sends the file encoded as {self._transfer.encoding!r},"
                " which was not asked for",
                facts=facts,
                hint="the server or a proxy alters what it sends: set llm.mirror",
            )
        return BodyError(
            f"{host} has a file whose size is not the signed one",
            facts=facts,
            hint="the file there was replaced, or the network alters it: set llm.mirror",
        )


def _behind(chunks: Iterator[bytes], verified: int) -> Iterator[bytes]:
    """Skip the first ``verified`` bytes, which are there already; yield the rest."""
    for chunk in chunks:
        if verified < len(chunk):
            yield chunk[verified:]
        verified = max(0, verified - len(chunk))


def _not_the_rest(url: str) -> BodyError:
    return BodyError(
        f"{host_of(url)} answers a request to resume with other bytes",
        facts=(f"url: {shown(url)}",),
        hint="run the command again: it starts from the beginning",
    )


def _not_satisfied(url: str) -> HttpStatusError:
    return HttpStatusError(
        f"{host_of(url)} cannot continue a partial download",
        status=416,
        facts=(f"url: {shown(url)}",),
        hint="try again: it starts from the beginning",
    )


_SIDE_BY_SIDE = 2
"""Artifacts that download at once: a variant has one or two. It limits the threads."""

_MISSING = frozenset({404, 410})

_Failure = DownloadError | DigestMismatch


@contextlib.contextmanager
def side_by_side(
    artifacts: Sequence[Artifact], partials: Path, network: Network, progress: Progress
) -> Iterator[list[VerifiedStream]]:
    """Download artifacts in parallel, as ``tsuku_llm.fetch.delivered`` says."""
    streams = [VerifiedStream(artifact.size) for artifact in artifacts]
    whole = sum(artifact.size or 0 for artifact in artifacts)

    # Runs in a thread of the pool, once for each artifact.
    def bring(artifact: Artifact, stream: VerifiedStream) -> None:
        try:
            # Before any request: the network's client stays open until this download ends.
            with network.used():
                share = network.limits.connections * (artifact.size or 0) // max(1, whole)
                download(artifact, partials, network, progress, stream, max(1, share))
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
            wrong.facts += (f"also failed: {error.message}",)
            raise wrong from error
        except BaseException:  # also Ctrl-C, and an error of the code that reads the streams
            # Otherwise the pool's exit would wait until the downloads are complete.
            network.stop()
            raise


def download(
    artifact: Artifact,
    folder: Path,
    network: Network,
    progress: Progress,
    stream: VerifiedStream,
    connections: int,
) -> Path:
    """Download an artifact, as ``tsuku_llm.fetch.fetch`` says, over so many connections at most."""
    done = folder / artifact.sha256
    # Hashed in every run: another program may have changed the file since.
    if verified(done, artifact):
        stream.opened(done)
        stream.complete()
        return done
    with opened_part(folder, artifact) as file:
        stream.opened(file.path)
        transfer = Transfer(artifact, file, stream, network, progress, connections)
        transfer.begin()
        try:
            _from_any_source(transfer)
        # Another artifact failed, and its thread stopped the network. Wrong bytes that came
        # here before are the more important error.
        except Interrupted as error:
            if transfer.mismatch:
                raise transfer.mismatch from error
            raise
        finally:
            transfer.end()
        # The reader may begin to use the end of the file now; it has a descriptor for itself.
        stream.complete()
    # After the block, which closes the part: Windows cannot rename an open file.
    return finish(folder, artifact)


def _from_any_source(transfer: Transfer) -> None:
    """Try the sources in turn; raise the last one's error, but a wrong digest first.

    The other failures become facts of that error, in order.
    """
    failures: list[tuple[str, _Failure]] = []
    artifact, mirrors = transfer.artifact, transfer.network.mirrors
    for place in registries(mirrors):
        transfer.network.use_registry(place.api)
    for urls in sources(artifact.url, artifact.sha256, mirrors):
        for url in urls:
            try:
                _verified_from(transfer, url)
            except (DownloadError, DigestMismatch) as error:
                failures.append((url, error))
                if not _is_missing(error):
                    break
            else:
                return
    wrong = [failure for _, failure in failures if isinstance(failure, DigestMismatch)]
    decisive = wrong[-1] if wrong else transfer.mismatch or failures[-1][1]
    if mirrors and ORIGIN not in mirrors and all(_is_missing(error) for _, error in failures):
        decisive = _not_mirrored(artifact)
    decisive.facts += tuple(
        f"from {shown(url)}: {failure.message}"
        for url, failure in failures
        if failure is not decisive
    )
    if mirrors:
        # They are set already, and have not helped.
        for advice, other in _MIRROR_ADVICE:
            decisive.hint = decisive.hint.replace(advice, other)
    raise decisive


def _is_missing(error: _Failure) -> bool:
    return isinstance(error, HttpStatusError) and error.status in _MISSING


def _not_mirrored(artifact: Artifact) -> HttpStatusError:
    """Make the error for an archive that no mirror has; no other host was asked."""
    return HttpStatusError(
        f"no mirror has {file_name(artifact.url)}",
        status=404,
        facts=(f"sha256: {artifact.sha256}",),
        hint=f"ask the operator of the mirror to add it with {TSUKU} mirror; or ask other hosts "
        f"too: {TSUKU} config set llm.mirror URL,origin",
    )


_MIRROR_ADVICE = (
    (
        f"set a mirror: {TSUKU} config set llm.mirror URL",
        f"check the mirrors that are set: {TSUKU} config get llm.mirror",
    ),
    ("set llm.mirror", "check llm.mirror"),
)
"""What hints say of mirrors if none is set, and what they say otherwise."""


def _verified_from(transfer: Transfer, url: str) -> None:
    """Download from one source and verify; allow a second try for mixed bytes."""
    if _complete_from(transfer, url):
        return
    # Bytes of an earlier run or of several answers may belong to two versions of the file: then
    # this source may still be right. Read `mixed` first, as wrong_whole() can clear it.
    mixed, error = transfer.mixed, transfer.wrong_whole(url)
    if mixed and _complete_from(transfer, url):
        return
    # The second try may have left bytes: its error describes them. Otherwise the first one.
    raise transfer.wrong_whole(url) if transfer.hashed else error


def _complete_from(transfer: Transfer, url: str) -> bool:
    """Download what is missing; return whether the result is the artifact."""
    if transfer.plan and is_http(url):
        try:
            fetch_in_parallel(transfer, transfer.plan, url)
        except NoRanges:  # all connections have ended, so dropping their bytes is safe
            transfer.restart()
    elif transfer.plan:  # a file or pip: they give the bytes in order only
        transfer.restart()
    if not transfer.complete:
        fetch_in_order(transfer, url)
    return transfer.matches()
