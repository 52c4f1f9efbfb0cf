"""The copy of a repository into an OCI registry: blobs first, the tag last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urljoin

import httpx

from tsuku_llm import fetch
from tsuku_llm.catalog.copies import LARGEST_FILE
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.fetch.http.http_get import NO_HINT, answered, check_status, retry
from tsuku_llm.fetch.http.limits import Transient
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.fetch.http.urls import file_name, shown
from tsuku_llm.fetch.places.mirrors import (
    ARTIFACT,
    MANIFEST,
    ROOT,
    TITLE,
    Blob,
    RegistryPlace,
    parse_place,
)
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import (
    BodyError,
    DownloadError,
    HostUnreachable,
    HttpStatusError,
    TrustError,
    UsageError,
)
from tsuku_llm.ground.foreign import open_foreign, parse_object
from tsuku_llm.ground.safe_text import printable, shortened
from tsuku_llm.steps.choosing.choice import load_catalog
from tsuku_llm.steps.session import Session
from tsuku_operator.mirror.mirror import (
    MirrorReport,
    catalog_to_copy,
    not_all_fetched,
    published_files,
    report_of,
    require_not_ahead,
    through_downloads,
)
from tsuku_operator.mirror.mirror_choice import Narrowing, contents_of

_T = TypeVar("_T")

_CHUNK = 1 << 20
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_FILE_TYPE = "application/octet-stream"
_FOUND, _CREATED, _ACCEPTED, _MISSING = 200, 201, 202, 404
_LARGEST_ANSWER = 1 << 16
_MOST_REASONS = 5
_SILENCE = 300.0
"""Seconds that a registry may take to answer: it hashes an archive when it has all of it."""


class Content(NamedTuple):
    """The content of a blob; ``chunks`` reads it from the start each time."""

    blob: Blob
    chunks: Callable[[], Iterator[bytes]]


def of_bytes(data: bytes) -> Content:
    """Make the content of a small file."""
    return Content(Blob(hashlib.sha256(data).hexdigest(), len(data)), lambda: iter((data,)))


def of_file(path: Path, sha256: str) -> Content:
    """Make the content of a verified file on the disk."""

    def chunks() -> Iterator[bytes]:
        with disk_errors("reading an archive", path.parent), open_foreign(path) as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    with disk_errors("reading an archive", path.parent):
        return Content(Blob(sha256, path.stat().st_size), chunks)


class RegistryPush:
    """A mirror in a registry that is being written. One thread uses it."""

    def __init__(self, place: RegistryPlace, network: Network) -> None:
        self._place = place
        self._network = network
        network.use_registry(place.api)

    def size(self, sha256: str) -> int | None:
        """Return the size of a blob that the registry has, in bytes; None if it lacks it."""

        def ask() -> int | None:
            url = self._place.blob(sha256)
            with answered(self._network, url, {}, self._deadline(), method="HEAD") as response:
                if response.status_code == _MISSING:
                    return None
                _check(response, url, _FOUND)
                return int(response.headers.get("content-length", "0"))

        return self._retried(ask)

    def put(self, content: Content) -> None:
        """Push a blob that the registry lacks. Raises the errors of ``fetch``."""
        self._retried(lambda: self._put(content))

    def _put(self, content: Content) -> None:
        # The first request has no body: a registry that wants a token says so here, and not
        # after the whole archive was sent.
        start = f"{self._place.api}blobs/uploads/"
        with answered(self._network, start, {}, self._deadline(), method="POST") as response:
            _check(response, start, _ACCEPTED)
            location = response.headers.get("location", "")
        url = urljoin(start, location)
        if not location or httpx.URL(url).scheme != "https":
            raise BodyError(
                f"{self._place.host} gives an answer that cannot be used",
                facts=(
                    "reason: it names no place for the upload",
                    f"repository: {shown(self._place.api)}",
                ),
                hint="ask the registry's operator",
            )
        mark = "&" if httpx.URL(url).query else "?"
        url = f"{url}{mark}digest=sha256:{content.blob.sha256}"
        headers = {"Content-Type": _FILE_TYPE, "Content-Length": str(content.blob.size)}
        with answered(
            self._network, url, headers, self._deadline(), method="PUT", body=content.chunks
        ) as response:
            _check(response, url, _CREATED)

    def tag(self, files: Mapping[str, Blob], root: str) -> None:
        """Let the tag name these files, by their paths; all of them must be there.

        ``root`` is the SHA-256 of the repository's root of trust.
        """
        empty = of_bytes(_EMPTY)
        if self.size(empty.blob.sha256) is None:
            self.put(empty)
        data = manifest_of(files, root)
        url = self._place.manifest
        headers = {"Content-Type": MANIFEST, "Content-Length": str(len(data))}

        def move() -> None:
            with answered(
                self._network,
                url,
                headers,
                self._deadline(),
                method="PUT",
                body=lambda: iter((data,)),
            ) as response:
                _check(response, url, _CREATED)

        self._retried(move)

    def _deadline(self) -> float:
        return self._network.clock() + self._network.limits.total

    def _retried(self, attempt: Callable[[], _T]) -> _T:
        return retry(attempt, self._network, self._deadline())


def _check(response: httpx.Response, url: str, wanted: int) -> None:
    """Raise the errors of ``check_status``, with what the registry itself says of the reason.

    A registry names it in the body, as the distribution specification of OCI has it.
    """
    try:
        check_status(response, url, (wanted,))
    except (HttpStatusError, Transient) as caught:
        error = caught.error if isinstance(caught, Transient) else caught
        error.facts += _reasons(response)
        if error.hint == NO_HINT:
            error.hint = (
                "ask the registry's operator: it may be read-only or full, or a proxy in front of "
                "it may limit what is sent"
            )
        raise


def _reasons(response: httpx.Response) -> tuple[str, ...]:
    """Return what a registry says of its refusal: the codes and messages in its answer."""
    try:
        errors = parse_object(next(response.iter_raw(_LARGEST_ANSWER), b"")).get("errors")
    except (httpx.HTTPError, DownloadError, Transient, ValueError):
        return ()
    if not isinstance(errors, list):
        return ()
    said = [each for each in errors[:_MOST_REASONS] if isinstance(each, dict)]
    texts = [
        ": ".join(str(each[key]) for key in ("code", "message", "detail") if each.get(key))
        for each in said
    ]
    return tuple(f"it said: {printable(shortened(text, 200))}" for text in texts)


def manifest_of(files: Mapping[str, Blob], root: str) -> bytes:
    """Write the manifest of a mirror: a layer for each file, with its path as the title."""
    empty = of_bytes(_EMPTY).blob
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": _descriptor(_EMPTY_TYPE, empty),
        "annotations": {ROOT: root},
        "layers": [
            {**_descriptor(_FILE_TYPE, blob), "annotations": {TITLE: name}}
            for name, blob in sorted(files.items())
        ],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _descriptor(kind: str, blob: Blob) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{blob.sha256}", "size": blob.size}


@dataclass(frozen=True, slots=True)
class RegistryCopy:
    """The files of a mirror in a registry, read when they are asked for."""

    place: RegistryPlace
    files: Mapping[str, Blob]
    network: fetch.Network

    def read(self, name: str) -> bytes | None:
        """Read the file at a path relative to the repository; None if it does not exist."""
        blob = self.files.get(name)
        if blob is None:
            return None
        # The size is the registry's own word: no file of metadata is larger.
        limit = min(blob.size, LARGEST_FILE)
        return fetch.get(self.place.blob(blob.sha256), limit, self.network)


def push_mirror(
    session: Session, url: str, narrow: Narrowing, *, dry_run: bool = False
) -> MirrorReport:
    """Bring a mirror in a registry up to date; what it has is not pushed again.

    The tag moves last, and only if every archive is there. Archives pass through this user's folder
    of downloads. ``dry_run`` uses no network.

    Raises ``ConfigError`` for the address, ``UsageError`` if the tag is of something else, and the
    errors of ``mirror``.
    """
    place = parse_place(url)
    if dry_run:
        catalog = load_catalog(session)
        contents = contents_of(session, catalog, narrow)
        return report_of("planned", str(place), catalog, contents, contents.artifacts)
    limits = fetch.Limits()
    patient = fetch.Limits(answer=limits.total, silence=_SILENCE)
    environ, note = session.machine.environ, session.user.note
    with (
        # The tag of one mirror is moved by one process of this user at a time.
        session.store.lock(hashlib.sha256(str(place).encode()).hexdigest()),
        fetch.Network(environ, limits=patient, on_wait=note) as outgoing,
    ):
        catalog = catalog_to_copy(session)
        contents = contents_of(session, catalog, narrow)
        root = hashlib.sha256(catalog.repository.root).hexdigest()
        there = _files_there(place, root, outgoing)
        require_not_ahead(session, RegistryCopy(place, there, outgoing), catalog)
        registry = RegistryPush(place, outgoing)
        sizes = {each.sha256: registry.size(each.sha256) for each in contents.artifacts}
        lacking = [
            each
            for each in contents.artifacts
            if sizes[each.sha256] is None or sizes[each.sha256] != (each.size or sizes[each.sha256])
        ]
        files = {f"sha256/{name}": Blob(name, size or 0) for name, size in sizes.items()}
        failed: list[tuple[Artifact, DownloadError | TrustError]] = []
        for artifact, file in through_downloads(session, lacking, "pushing", failed):
            content = of_file(file, artifact.sha256)
            registry.put(content)
            # A registry that lost the content, as on a full disk, may take the name as enough.
            if registry.size(artifact.sha256) != content.blob.size:
                name = file_name(artifact.url)
                raise BodyError(
                    f"{place.host} took {name}, and has another file by its name",
                    facts=(f"digest: sha256:{artifact.sha256}",),
                    hint="ask the registry's operator to remove that blob from the storage; then "
                    "run the command again",
                )
            files[f"sha256/{artifact.sha256}"] = content.blob
        if failed:
            raise not_all_fetched(failed, len(lacking))
        for name, data in published_files(catalog).items():
            content = of_bytes(data)
            files[name] = content.blob
            if there.get(name) != content.blob and registry.size(content.blob.sha256) is None:
                registry.put(content)
        if changed := files != there:
            registry.tag(files, root)
    outcome = "updated" if lacking or changed else "unchanged"
    return report_of(outcome, str(place), catalog, contents, lacking)


def _files_there(place: RegistryPlace, root: str, network: fetch.Network) -> Mapping[str, Blob]:
    """Return the files of the mirror as it is; refuse a tag that is of something else."""
    try:
        _, found = fetch.registry_mirror(str(place), network)
    except HttpStatusError as error:
        if error.status == _MISSING:
            return {}
        raise
    except HostUnreachable as error:
        # A mirror to read from would not help: the copy goes there.
        hint = "check the connection, and the address that --to names"
        raise HostUnreachable(error.message, facts=error.facts, hint=hint) from error
    if found.root != root:
        raise UsageError(
            f"{place} is the mirror of another repository",
            facts=(f"its root: sha256 {found.root}", f"the one named: sha256 {root}"),
            hint="use a name or a tag for each repository",
        )
    return found.files
