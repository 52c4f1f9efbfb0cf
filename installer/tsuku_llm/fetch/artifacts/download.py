"""The download of an artifact: sources in turn, resumed after interruptions, verified last."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
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
    retry,
    validator_of,
)
from tsuku_llm.fetch.http.limits import Transient
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.fetch.http.urls import PACKAGE_SCHEME, file_name, host_of, is_http, scheme_of, shown
from tsuku_llm.fetch.places.mirrors import REGISTRY_SCHEME, parse_place, sources
from tsuku_llm.fetch.places.pip_index import download_package
from tsuku_llm.fetch.places.small_files import local_chunks
from tsuku_llm.ground.disk import require_space
from tsuku_llm.ground.errors import (
    BodyError,
    DigestMismatch,
    DownloadError,
    HostUnreachable,
    HttpStatusError,
    Interrupted,
)
from tsuku_llm.ground.own_name import TSUKU

_MISSING = frozenset({404, 410})

_Failure = DownloadError | DigestMismatch


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
            for mirror in network.mirrors:
                if scheme_of(mirror) == REGISTRY_SCHEME:
                    network.use_registry(parse_place(mirror).api)
            _from_any_source(transfer)
        # Another artifact failed, and its thread stopped the network. Wrong bytes that came
        # here before are the more important error.
        except Interrupted as error:
            if transfer.mismatch:
                raise transfer.mismatch from error
            raise
        finally:
            progress.end()
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
        # No other host was asked.
        decisive = HttpStatusError(
            f"no mirror has {file_name(artifact.url)}",
            status=404,
            facts=(f"sha256: {artifact.sha256}",),
            hint=f"ask the operator of the mirror to add it with {TSUKU} mirror; or ask other "
            f"hosts too: {TSUKU} config set llm.mirror URL,origin",
        )
    elif isinstance(decisive, HostUnreachable | HttpStatusError | BodyError):
        # Mirrors that are set already have not helped.
        decisive.hint += (
            f"; or check the mirrors that are set: {TSUKU} config get llm.mirror"
            if mirrors
            else f"; or set a mirror: {TSUKU} config set llm.mirror URL"
        )
    decisive.facts += tuple(
        f"from {shown(url)}: {failure.message}"
        for url, failure in failures
        if failure is not decisive
    )
    raise decisive


def _is_missing(error: _Failure) -> bool:
    return isinstance(error, HttpStatusError) and error.status in _MISSING


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
    network = transfer.network
    if transfer.plan and is_http(url):
        try:
            fetch_in_parallel(transfer, transfer.plan, url)
        except NoRanges:  # all connections have ended, so dropping their bytes is safe
            transfer.restart()
    elif transfer.plan:  # a file or pip: they give the bytes in order only
        transfer.restart()
    if transfer.complete:
        return transfer.matches()
    if is_http(url):
        attempt = partial(_request, transfer, url)
        retry(attempt, network, transfer.deadline, received=lambda: transfer.hashed)
        return transfer.matches()
    # A file or pip gives the bytes from the start; the verified ones are skipped.
    transfer.restart()
    try:
        if scheme_of(url) != PACKAGE_SCHEME:
            _take(transfer, url, _behind(local_chunks(url), transfer.hashed))
        else:
            folder = transfer.file.path.parent
            with download_package(url, transfer.artifact, folder, network, transfer.tell) as chunks:
                _take(transfer, url, _behind(chunks, transfer.hashed))
    except WrongPiece as piece:
        raise wrong_piece(url, piece) from piece
    return transfer.matches()


def _request(transfer: Transfer, url: str) -> None:
    """Request what is missing, until it is there; raise ``Transient`` for a retry."""
    while True:
        try:
            _request_once(transfer, url)
        except WrongPiece as piece:
            # Requested again at once: the connection is fine, a pause is useless. again() raises
            # after some tries.
            transfer.again(url, piece)
        else:
            return


def _request_once(transfer: Transfer, url: str) -> None:
    size = transfer.artifact.size
    # Without bytes there is nothing that a validator could belong to.
    validator = transfer.file.validator(url) if transfer.hashed else None
    headers = range_headers(transfer.hashed, None, validator)
    with answered(transfer.network, url, headers, transfer.deadline) as response:
        # 416: there is nothing after our bytes. Without a size in the manifest, an earlier run may
        # have got all of them.
        if response.status_code == 416 and headers:
            if transfer.matches():
                return
            transfer.restart()
            error = HttpStatusError(
                f"{host_of(url)} cannot continue a partial download",
                status=416,
                facts=(f"url: {shown(url)}",),
                hint="try again: it starts from the beginning",
            )
            raise Transient(error)
        check_status(response, url, (200, 206) if headers else (200,))
        # 200 to a range: the server ignores ranges, or the file changed since (If-Range).
        start = transfer.hashed if response.status_code == 206 else 0
        if start and not is_range(response.headers, start, size, size, validator):
            transfer.restart()  # so that the retry asks for no range
            raise Transient(
                BodyError(
                    f"{host_of(url)} answers a request to resume with other bytes",
                    facts=(f"url: {shown(url)}",),
                    hint="run the command again: it starts from the beginning",
                )
            )
        if start == 0:
            transfer.restart()
        # After the restart: what is still there came in an earlier answer.
        transfer.mixed = transfer.hashed > 0
        length = check_framing(response, url)
        # Before the first byte is written: a kill in between must not leave bytes of this version
        # with the validator of another one.
        transfer.file.remember(url, validator_of(response.headers))
        chunks = transfer.body(response, url, at_start=start == 0)
        if start:
            _take(transfer, url, chunks)
        else:
            _take(transfer, url, _behind(chunks, transfer.hashed), length)
    # The answer ended as it should, but a proxy or server may have cut the file.
    if size is not None and transfer.hashed < size:
        raise Transient(transfer.ended_early(url, transfer.hashed, size))


def _behind(chunks: Iterator[bytes], verified: int) -> Iterator[bytes]:
    """Skip the first ``verified`` bytes, which are there already; yield the rest."""
    for chunk in chunks:
        if verified < len(chunk):
            yield chunk[verified:]
        verified = max(0, verified - len(chunk))


def _take(transfer: Transfer, url: str, chunks: Iterator[bytes], length: int | None = None) -> None:
    """Write and hash the chunks; ``length`` is what the server says of the whole file.

    It is checked after the first chunk came, because that shows a web page: then the error is
    about the page, and not about its length.
    """
    size = transfer.artifact.size
    for chunk in chunks:
        if length is not None and (length > transfer.cap or size not in (None, length)):
            raise _wrong_size(transfer, url, f"{length} bytes")
        # Only the server knows the size here; a size in the manifest is checked before.
        if length is not None and size is None and not transfer.hashed:
            require_space(transfer.file.path.parent, length, (f"download: {length} bytes",))
        # Before the write: a server that sends without end must not fill the disk.
        if transfer.hashed + len(chunk) > transfer.cap:
            transfer.restart()
            raise _wrong_size(transfer, url, "more")
        transfer.append(chunk)
        transfer.tell(transfer.hashed)


def _wrong_size(transfer: Transfer, url: str, offered: str) -> BodyError:
    host, expected = host_of(url), transfer.artifact.size or transfer.cap
    facts = (f"offered: {offered}, expected: {expected} bytes", f"url: {shown(url)}")
    if transfer.encoding:
        return BodyError(
            f"{host} sends the file encoded as {transfer.encoding!r}, which was not asked for",
            facts=facts,
            hint="the server or a proxy alters what it sends: try another network",
        )
    return BodyError(
        f"{host} has a file whose size is not the signed one",
        facts=facts,
        hint="the file there was replaced, or the network alters it: try another network",
    )
