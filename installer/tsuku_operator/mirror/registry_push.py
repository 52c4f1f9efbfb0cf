"""The push of a mirror into an OCI registry: blobs first, the tag last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urljoin

import httpx

from tsuku_llm.fetch.http.http_get import answered, check_status, retry
from tsuku_llm.fetch.http.network import Network
from tsuku_llm.fetch.http.urls import shown
from tsuku_llm.fetch.places.mirrors import ARTIFACT, MANIFEST, ROOT, TITLE, Blob, RegistryPlace
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import BodyError
from tsuku_llm.ground.foreign import open_foreign

_T = TypeVar("_T")

_CHUNK = 1 << 20
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_FILE_TYPE = "application/octet-stream"
_FOUND, _CREATED, _ACCEPTED, _MISSING = 200, 201, 202, 404


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
                check_status(response, url, (_FOUND,))
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
            check_status(response, start, (_ACCEPTED,))
            location = response.headers.get("location", "")
        url = urljoin(start, location)
        if not location or httpx.URL(url).scheme != "https":
            raise _misbehaves(self._place, "it names no place for the upload")
        mark = "&" if httpx.URL(url).query else "?"
        url = f"{url}{mark}digest=sha256:{content.blob.sha256}"
        headers = {"Content-Type": _FILE_TYPE, "Content-Length": str(content.blob.size)}
        with answered(
            self._network, url, headers, self._deadline(), method="PUT", body=content.chunks
        ) as response:
            check_status(response, url, (_CREATED,))

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
                check_status(response, url, (_CREATED,))

        self._retried(move)

    def _deadline(self) -> float:
        return self._network.clock() + self._network.limits.total

    def _retried(self, attempt: Callable[[], _T]) -> _T:
        return retry(attempt, self._network, self._deadline())


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


def _misbehaves(place: RegistryPlace, reason: str) -> BodyError:
    return BodyError(
        f"{place.host} gives an answer that cannot be used",
        facts=(f"reason: {reason}", f"repository: {shown(place.api)}"),
        hint="ask the registry's operator",
    )
