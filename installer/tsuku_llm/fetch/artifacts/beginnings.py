"""The first bytes of a large file on a host, such as the header of a model."""

from __future__ import annotations

from tsuku_llm.fetch.http.failures import Transient
from tsuku_llm.fetch.http.http_get import (
    answered,
    check_framing,
    check_no_page,
    check_status,
    range_headers,
    size_of_whole,
)
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.fetch.http.retries import Retries
from tsuku_llm.fetch.http.urls import host_of, shown
from tsuku_llm.ground.errors import BodyError

_PARTIAL = 206


def download_beginning(
    url: str, length: int, network: Network, deadline: float
) -> tuple[bytes, int]:
    """Download the first ``length`` bytes, as ``tsuku_llm.fetch.beginning`` says."""
    return Retries(network, deadline).run(lambda: _once(url, length, network, deadline))


def _once(url: str, length: int, network: Network, deadline: float) -> tuple[bytes, int]:
    with answered(network, url, range_headers(0, length, None), deadline) as response:
        # A host may ignore ranges; then the rest of its answer is not read.
        check_status(response, url, (200, _PARTIAL))
        size = check_framing(response, url)
        if response.status_code == _PARTIAL:
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
