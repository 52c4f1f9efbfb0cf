"""The download of artifacts: sources in turn, resumed after interruptions, verified at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path

from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.config.keys import ORIGIN
from tsuku_llm.fetch.artifacts.parallel import NoRanges, fetch_in_parallel
from tsuku_llm.fetch.artifacts.partial import finish, opened_part, verified
from tsuku_llm.fetch.artifacts.sequential import fetch_in_order
from tsuku_llm.fetch.artifacts.stream import Progress, VerifiedStream
from tsuku_llm.fetch.artifacts.transfer import Transfer
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.fetch.http.urls import file_name, is_http, shown
from tsuku_llm.fetch.places.mirrors import registries, sources
from tsuku_llm.ground.errors import DigestMismatch, DownloadError, HttpStatusError, Interrupted
from tsuku_llm.ground.own_name import TSUKU

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
