"""The download of an artifact in order, over one connection at a time."""

from __future__ import annotations

from collections.abc import Iterator

from tsuku_llm.fetch.artifacts.pieces import WrongPiece
from tsuku_llm.fetch.artifacts.transfer import Transfer, wrong_piece
from tsuku_llm.fetch.http.failures import Transient
from tsuku_llm.fetch.http.http_get import (
    answered,
    check_framing,
    check_status,
    is_range,
    range_headers,
    validator_of,
)
from tsuku_llm.fetch.http.retries import Retries
from tsuku_llm.fetch.http.urls import PACKAGE_SCHEME, host_of, is_http, scheme_of, shown
from tsuku_llm.fetch.places.pip_index import download_package
from tsuku_llm.fetch.places.small_files import local_chunks
from tsuku_llm.ground.disk import require_space
from tsuku_llm.ground.errors import BodyError, HttpStatusError


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
