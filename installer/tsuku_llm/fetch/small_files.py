"""Small files, such as a repository's metadata; and files of ``file:`` mirrors, of any size."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tsuku_llm.errors import BodyError, DownloadError, HostUnreachable, HttpStatusError
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.http_get import answered, check_framing, check_no_page, check_status
from tsuku_llm.fetch.network import Network
from tsuku_llm.fetch.retries import Retries
from tsuku_llm.fetch.urls import host_of, scheme_of, shown

_CHUNK = 1 << 20


def download_small(url: str, limit: int, network: Network, deadline: float) -> bytes:
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
    return Retries(network, deadline).run(lambda: _once(url, limit, network, deadline))


def _once(url: str, limit: int, network: Network, deadline: float) -> bytes:
    with answered(network, url, {}, deadline) as response:
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
    """Read the content of a ``file:`` URL in chunks.

    Raises ``HttpStatusError`` with status 404 if the file does not exist, ``DownloadError``
    if it cannot be read.
    """
    path = _path(url)
    try:
        with open(path, "rb", opener=_opened) as file:  # Path.open takes no opener
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DownloadError(
                    f"{path} is not a regular file", hint="put the file itself there"
                )
            while chunk := file.read(_CHUNK):
                yield chunk
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise HttpStatusError(
            f"there is no file {path.name} in {path.parent}",
            status=404,
            hint="check llm.mirror: the archives lie in its folder under their own names",
        ) from error
    except (OSError, ValueError) as error:
        raise DownloadError(f"{path} cannot be read", facts=(str(error),)) from error


def _opened(path: str, flags: int) -> int:
    """Open a file; if it is a pipe, do not wait until another process writes into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _path(url: str) -> Path:
    parts = urlsplit(url)
    # Another host is a network share on Windows: file://server/share is \\server\share.
    host = "" if parts.netloc in ("", "localhost") else f"//{parts.netloc}"
    return Path(url2pathname(f"{host}{parts.path}"))
