"""Small files, beginnings of large ones, and files of ``file:`` mirrors, of any size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tsuku_llm.fetch.http.http_get import (
    answered,
    check_framing,
    check_no_page,
    check_status,
    range_headers,
    retry,
    size_of_whole,
)
from tsuku_llm.fetch.http.limits import Transient
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.fetch.http.urls import host_of, scheme_of, shown
from tsuku_llm.fetch.places.bundle_file import opened_bundle
from tsuku_llm.ground.errors import (
    BadBundle,
    BodyError,
    DownloadError,
    HostUnreachable,
    HttpStatusError,
    UsageError,
)
from tsuku_llm.ground.foreign import UNREADABLE, open_foreign
from tsuku_llm.ground.own_name import TSUKU

_CHUNK = 1 << 20


def download_small(
    url: str,
    limit: int,
    network: Network,
    deadline: float,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Download a small file, as ``tsuku_llm.fetch.get`` says."""
    if scheme_of(url) == "file":
        return _capped(local_chunks(url), limit, url)
    # Before any request: an earlier file of the same refresh may have used all the time.
    if network.clock() >= deadline:
        raise HostUnreachable(
            f"{host_of(url)} did not send all metadata in time",
            facts=(f"url: {shown(url)}",),
            hint="check the connection and try again later",
        )
    return retry(partial(_once, url, limit, network, deadline, headers), network, deadline)


def _once(
    url: str, limit: int, network: Network, deadline: float, headers: Mapping[str, str]
) -> bytes:
    with answered(network, url, headers, deadline) as response:
        check_status(response, url, (200,))
        length = check_framing(response, url)
        encoding = response.headers.get("content-encoding", "identity")
        # Metadata is small and text; decompression of untrusted bytes is not worth its risks.
        if encoding != "identity":
            raise _refused(url, f"it is encoded as {encoding[:40]!r}, which was not requested")
        if length is not None and length > limit:
            raise _refused(url, f"it has {length} bytes, and {limit} are allowed")
        data = _capped(response.iter_raw(), limit, url)
    if length is not None and len(data) != length:
        raise Transient(_refused(url, "it ended early"))
    check_no_page(data[:4096], url)
    return data


def download_beginning(
    url: str, length: int, network: Network, deadline: float
) -> tuple[bytes, int]:
    """Download the first ``length`` bytes, as ``tsuku_llm.fetch.beginning`` says."""
    return retry(partial(_beginning, url, length, network, deadline), network, deadline)


def _beginning(url: str, length: int, network: Network, deadline: float) -> tuple[bytes, int]:
    with answered(network, url, range_headers(0, length, None), deadline) as response:
        # A host may ignore ranges; then the rest of its answer is not read.
        check_status(response, url, (200, 206))
        size = check_framing(response, url)
        if response.status_code == 206:
            size = size_of_whole(response.headers)
        if size is None or response.headers.get("content-encoding", "identity") != "identity":
            raise BodyError(
                f"{host_of(url)} does not say how large the file is",
                facts=(f"url: {shown(url)}",),
                hint="download the model first, and give its path",
            )
        data = bytearray()
        for chunk in response.iter_raw():
            data += chunk
            if len(data) >= length:
                break
    check_no_page(bytes(data[:4096]), url)
    if len(data) < min(length, size):
        raise Transient(
            BodyError(f"{host_of(url)} ended its answer early", facts=(f"url: {shown(url)}",))
        )
    return bytes(data[:length]), size


def _capped(chunks: Iterator[bytes], limit: int, url: str) -> bytes:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > limit:
            raise _refused(url, f"it has more than {limit} bytes")
    return bytes(data)


def _refused(url: str, reason: str) -> BodyError:
    return BodyError(
        f"a file of {host_of(url)} is refused",
        facts=(f"url: {shown(url)}", f"reason: {reason}"),
        hint="check the repository's URL, and whether a proxy alters what it sends",
    )


def local_chunks(url: str) -> Iterator[bytes]:
    """Read the content of a ``file:`` URL in chunks; a bundle counts as a folder of its members.

    Raises ``HttpStatusError`` with status 404 if the file does not exist, ``DownloadError``
    if it cannot be read, or is below a file that is no bundle.
    """
    path = local_path(url)
    try:
        # A bundle is a file in the place of a mirror's folder.
        above = next((parent for parent in path.parents if parent.exists()), path.parent)
        if above.is_file():
            yield from _bundled_chunks(above, path.relative_to(above).as_posix())
            return
        with open_foreign(path) as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise HttpStatusError(
            f"there is no file {path.name} in {path.parent}",
            status=404,
            hint="check llm.mirror: the archives lie in its folder under their own names",
        ) from error
    except (OSError, ValueError) as error:
        raise DownloadError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
            hint=UNREADABLE if isinstance(error, PermissionError) else "put the file itself there",
        ) from error


def _bundled_chunks(bundle: Path, name: str) -> Iterator[bytes]:
    try:
        with opened_bundle(bundle) as file:
            chunks = file.chunks(name)
            if chunks is None:
                raise HttpStatusError(
                    f"the bundle {bundle} has no {name}",
                    status=404,
                    hint=f"ask its maker for a bundle that has it: {TSUKU} bundle create FILE",
                )
            yield from chunks
    except (BadBundle, UsageError) as error:
        # As of a mirror that does not work: the next one may have the file.
        raise DownloadError(error.message, facts=error.facts, hint=error.hint) from error


def local_path(url: str) -> Path:
    """Return the path of a ``file:`` URL. Raises ``ValueError``."""
    parts = urlsplit(url)
    # Another host is a network share on Windows: file://server/share is \\server\share.
    host = "" if parts.netloc in ("", "localhost") else f"//{parts.netloc}"
    return Path(url2pathname(f"{host}{parts.path}"))
