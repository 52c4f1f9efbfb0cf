"""Mirrors in OCI registries: their addresses, and the manifest that names a mirror's files.

The form of requests and manifests is that of the OCI distribution and image specifications, 1.1. A
registry is not trusted: its manifest only leads from paths to digests. What comes under a digest is
verified like a file of any host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tsuku_llm.fetch.places.mirrors import RegistryPlace
from tsuku_llm.fetch.places.small_files import download_small
from tsuku_llm.ground.errors import BodyError, HttpStatusError
from tsuku_llm.ground.foreign import parse_object
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import count

if TYPE_CHECKING:
    from tsuku_llm.fetch.http.network import Network

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT = "application/vnd.tsuku.llm.repository.v1"
TITLE = "org.opencontainers.image.title"
"""The annotation with the path of a layer's file in the repository."""

ROOT = "dev.tsuku.llm.root"
"""The annotation with the SHA-256 of the repository's root of trust."""

LARGEST_MANIFEST = 4 << 20
"""Bytes of a manifest; registries refuse larger ones, and this is room for 10,000 files."""

_BLOB = re.compile(r"sha256:([0-9a-f]{64})")


class Blob(NamedTuple):
    """A file in a registry: its SHA-256 and its size in bytes."""

    sha256: str
    size: int


class RegistryMirror(NamedTuple):
    """What a manifest says of a mirror: nothing of it is verified.

    ``root`` is the SHA-256 of its repository's root of trust. ``files`` are all files, by their
    paths in the repository.
    """

    root: str
    files: Mapping[str, Blob]


def mirror_at(place: RegistryPlace, network: Network, deadline: float) -> RegistryMirror:
    """Fetch the manifest of a mirror.

    Raises ``BodyError`` for anything but a manifest of a mirror, and the errors of ``fetch``.
    """
    network.use_registry(place.api)
    try:
        data = download_small(
            place.manifest, LARGEST_MANIFEST, network, deadline, {"Accept": MANIFEST}
        )
    except HttpStatusError as error:
        if error.status != 404:
            raise
        raise HttpStatusError(
            f"there is no mirror at {place}",
            status=404,
            facts=error.facts,
            hint=f"check the name and the tag; a mirror is made with {TSUKU} mirror --to",
        ) from error
    return parse_manifest(data, place)


def parse_manifest(data: bytes, place: RegistryPlace) -> RegistryMirror:
    """Read a manifest. Raises ``BodyError``."""
    try:
        document = parse_object(data)
        layers = (_layer(each) for each in document["layers"])
        found = dict(each for each in layers if each is not None)
        kind = document["artifactType"]
        root = str(document["annotations"][ROOT])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_mirror(place, str(error)) from error
    if kind != ARTIFACT:
        raise _no_mirror(place, f"its type is {str(kind)[:80]!r}")
    return RegistryMirror(root, found)


def _no_mirror(place: RegistryPlace, reason: str) -> BodyError:
    return BodyError(
        f"{place} is no mirror that tsuku-llm made",
        facts=(f"reason: {reason[:200]}",),
        hint=f"check the name and the tag: a mirror is made with {TSUKU} mirror --to",
    )


def _layer(layer: Any) -> tuple[str, Blob] | None:
    title = (layer.get("annotations") or {}).get(TITLE)
    found = _BLOB.fullmatch(layer["digest"])
    if not isinstance(title, str) or found is None:
        return None  # not made by this program: it leads to nothing
    return title, Blob(found[1], count(layer["size"], "size"))
