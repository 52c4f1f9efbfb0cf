"""One artifact into a partial file: resumed, capped, hashed while it streams.

Digests come from the signed manifest; servers, mirrors, proxies and package indexes are
trusted with nothing. The libraries that speak HTTP are loaded by the first request, so
that importing this package costs nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tsuku_llm.fetch.arrival import Arrival
from tsuku_llm.fetch.limits import Limits, Timing
from tsuku_llm.fetch.network import Network
from tsuku_llm.fetch.progress import Progress, Silent
from tsuku_llm.manifest import Artifact

__all__ = [
    "Arrival",
    "Limits",
    "Network",
    "Progress",
    "Silent",
    "Timing",
    "delivered",
    "fetch",
    "get",
    "present",
]

# Where rich is installed, as it is with us, httpx loads a command line of its own, for 20 ms.
# Named so, the module is absent, and httpx does without it.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


def fetch(
    artifact: Artifact,
    partials: Path,
    network: Network,
    progress: Progress | None = None,
    arrival: Arrival | None = None,
) -> Path:
    """Fetch one artifact; gives the complete file ``<partials>/<sha256>``, verified now.

    What is there already is hashed again and not fetched; what is there in part
    (``<sha256>.part``) is resumed. Mirrors are tried in order, then the artifact's own URL;
    each takes over where the one before it failed. ``arrival`` lets another thread read
    what is verified meanwhile. Two calls for one artifact must not
    run at the same time: whoever calls holds a lock.

    Raises ``DigestMismatch``; ``HostUnreachable``, ``ProxyError``, ``TlsError``,
    ``HttpStatusError``, ``BodyError`` or ``PackageIndexError`` of the last source;
    ``StoreError`` for the disk; ``Interrupted`` when the network was closed meanwhile.
    """
    from tsuku_llm.fetch.download import download  # noqa: PLC0415

    with network.used(), contextlib.closing(Arrival(artifact.size)) as unread:
        return download(artifact, partials, network, progress or Silent(), arrival or unread)


@contextlib.contextmanager
def delivered(
    artifacts: Sequence[Artifact],
    partials: Path,
    network: Network,
    progress: Progress | None = None,
) -> Iterator[list[Arrival]]:
    """Fetch artifacts in other threads; gives each, in their order, to be read as it comes.

    The end of the block waits until all are there and verified. The first that fails ends
    the others, and readers raise its error; whatever else leaves the block ends them too,
    and ``network`` is then of no more use. Locks and errors are as for ``fetch``.
    """
    from tsuku_llm.fetch.delivery import side_by_side  # noqa: PLC0415

    with side_by_side(artifacts, partials, network, progress or Silent()) as arrivals:
        yield arrivals


def present(artifact: Artifact, partials: Path) -> int:
    """Bytes on the disk that an earlier run left of an artifact, whatever they are worth."""
    from tsuku_llm.fetch.partial import allocated  # noqa: PLC0415

    names = (artifact.sha256, f"{artifact.sha256}.part")
    return max(allocated(partials / name) for name in names)


def get(url: str, limit: int, network: Network, deadline: float | None = None) -> bytes:
    """Fetch a small file of at most ``limit`` bytes, in time.

    ``deadline`` is a moment on the network's clock, by which all tries, redirects and
    addresses have to end; None for ``Limits.metadata`` seconds from now.
    ``url`` may be a ``file:`` one. Raises as ``fetch`` does; a file that does not exist is
    an ``HttpStatusError`` with status 404, wherever it does not exist.
    """
    from tsuku_llm.fetch.metadata import download_small  # noqa: PLC0415

    with network.used():
        if deadline is None:
            deadline = network.clock() + network.limits.metadata
        return download_small(url, limit, network, deadline)
