"""The download of an artifact in order, over one connection at a time."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from tsuku_llm.disk import require_space
from tsuku_llm.errors import BodyError, HttpStatusError
from tsuku_llm.fetch.addresses import PACKAGE_SCHEME, host_of, is_http, scheme_of, shown
from tsuku_llm.fetch.exchange import answered, check_framing, check_status
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.index import download_package
from tsuku_llm.fetch.local import local_chunks
from tsuku_llm.fetch.partial import wrong_piece
from tsuku_llm.fetch.prefix import WrongPiece
from tsuku_llm.fetch.ranges import check_range, range_headers, validator_of
from tsuku_llm.fetch.retries import Retries
from tsuku_llm.fetch.transfer import Transfer


def fetch_in_order(transfer: Transfer, url: str) -> None:
    """Download what is missing. All bytes of the part must be hashed."""
    _Single(transfer, url).run()


class _Single:
    """The download of one artifact from one source. One thread does all of it."""

    def __init__(self, transfer: Transfer, url: str) -> None:
        self._transfer = transfer
        self._part = transfer.part
        self._size = transfer.artifact.size
        self._network = transfer.network
        self._url = url

    def run(self) -> None:
        if is_http(self._url):
            retries = Retries(self._network, self._transfer.deadline)
            retries.run(self._attempt, received=lambda: self._part.size)
            return
        # A file or pip gives the bytes from the start; the verified ones are skipped.
        self._transfer.restart()
        try:
            self._elsewhere()
        except WrongPiece as piece:
            raise wrong_piece(self._url, piece) from piece

    def _elsewhere(self) -> None:
        if scheme_of(self._url) != PACKAGE_SCHEME:
            self._take(_behind(local_chunks(self._url), self._part.size))
            return
        folder, artifact = self._part.path.parent, self._transfer.artifact
        with download_package(
            self._url, artifact, folder, self._network, self._transfer.tell
        ) as chunks:
            self._take(_behind(chunks, self._part.size))

    def _attempt(self) -> None:
        # A wrong piece is requested again at once: the connection is fine, a pause is useless.
        # Transfer.again() ends this after some tries.
        while not self._through():
            pass

    def _through(self) -> bool:
        try:
            self._once()
        except WrongPiece as piece:
            self._transfer.again(self._url, piece)
            return False
        return True

    def _once(self) -> None:
        url, part = self._url, self._part
        headers = range_headers(part, url)
        with answered(self._network, url, headers, self._transfer.deadline) as response:
            # 416: there is nothing after our bytes. Without a size in the manifest, an earlier
            # run may have got all of them.
            if response.status_code == 416 and headers:  # noqa: PLR2004
                if part.matches():
                    return
                self._transfer.restart()
                raise Transient(_not_satisfied(url))
            check_status(response, url, (200, 206) if headers else (200,))
            start = self._start(response)
            if start == 0:
                self._transfer.restart()
            # After the restart: what is still there came in an earlier answer.
            part.mixed = part.size > 0
            length = check_framing(response, url)
            # Before the first byte is written: a kill in between must not leave bytes of this
            # version with the validator of another one.
            part.remember(url, validator_of(response.headers))
            chunks = self._transfer.body(response, url, at_start=start == 0)
            self._take(chunks if start else self._from_start(chunks, length))
        # The answer ended as it should, but a proxy or server may have cut the file.
        if self._size is not None and part.size < self._size:
            raise Transient(self._transfer.ended_early(url, part.size, self._size))

    def _start(self, response: httpx.Response) -> int:
        # 200 to a range: the server ignores ranges, or the file changed since (If-Range).
        if response.status_code == 200:  # noqa: PLR2004
            return 0
        try:
            return check_range(response.headers, self._part, self._size, self._url)
        except Transient:
            self._transfer.restart()  # so that the retry asks for no range
            raise

    def _from_start(self, chunks: Iterator[bytes], length: int | None) -> Iterator[bytes]:
        """Yield the chunks after the verified bytes; check the length and the free space first.

        The checks come after the first chunk, because that shows a web page: then the error
        is about the page, and not about its length.
        """
        cap = self._transfer.cap
        for chunk in _behind(chunks, self._part.size):
            if length is not None and (length > cap or self._size not in (None, length)):
                raise self._wrong_size(length)
            # Only the server knows the size here; a size in the manifest is checked before.
            if length is not None and self._size is None and not self._part.size:
                require_space(self._part.path.parent, length, (f"download: {length} bytes",))
            yield chunk

    def _take(self, chunks: Iterator[bytes]) -> None:
        cap = self._transfer.cap
        for chunk in chunks:
            # Before the write: a server that sends without end must not fill the disk.
            if self._part.size + len(chunk) > cap:
                self._transfer.restart()
                raise self._wrong_size(None)
            self._part.append(chunk)
            self._transfer.tell(self._part.size)

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


def _not_satisfied(url: str) -> HttpStatusError:
    return HttpStatusError(
        f"{host_of(url)} cannot continue a partial download",
        status=416,
        facts=(f"url: {shown(url)}",),
        hint="try again: it starts from the beginning",
    )
