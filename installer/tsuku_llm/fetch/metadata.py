"""Downloads of small files: the metadata of a repository."""

from __future__ import annotations

from collections.abc import Iterator

from tsuku_llm.errors import BodyError, HostUnreachable
from tsuku_llm.fetch.addresses import host_of, scheme_of, shown
from tsuku_llm.fetch.exchange import answered, check_framing, check_no_page, check_status
from tsuku_llm.fetch.failures import Transient
from tsuku_llm.fetch.local import local_chunks
from tsuku_llm.fetch.network import Network
from tsuku_llm.fetch.retries import Retries


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
