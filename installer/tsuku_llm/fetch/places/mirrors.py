"""Mirrors: the URLs to try for an artifact, and the manifest of a mirror in a registry. Pure.

The form of requests and manifests is that of the OCI distribution and image specifications, 1.1. A
registry is not trusted: its manifest only leads from paths to digests. What comes under a digest is
verified like a file of any host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from tsuku_llm.config.keys import ORIGIN, REGISTRY
from tsuku_llm.fetch.http.urls import file_name, scheme_of, shown
from tsuku_llm.ground.errors import BodyError, ConfigError
from tsuku_llm.ground.foreign import parse_object
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import count

REGISTRY_SCHEME = "oci"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT = "application/vnd.tsuku.llm.repository.v1"
TITLE = "org.opencontainers.image.title"
"""The annotation with the path of a layer's file in the repository."""

ROOT = "dev.tsuku.llm.root"
"""The annotation with the SHA-256 of the repository's root of trust."""

LARGEST_MANIFEST = 4 << 20
"""Bytes of a manifest; registries refuse larger ones, and this is room for 10,000 files."""

_BLOB = re.compile(r"sha256:([0-9a-f]{64})")


class RegistryPlace(NamedTuple):
    """A mirror in a registry: the manifest that has the ``tag`` in the repository ``name``."""

    host: str
    name: str
    tag: str = "latest"

    @property
    def api(self) -> str:
        """The URL below which all requests about this repository are."""
        return f"https://{self.host}/v2/{self.name}/"

    @property
    def manifest(self) -> str:
        """The URL of the manifest."""
        return f"{self.api}manifests/{self.tag}"

    def blob(self, sha256: str) -> str:
        """Return the URL of a file by its digest."""
        return f"{self.api}blobs/sha256:{sha256}"

    def __str__(self) -> str:
        return f"oci://{self.host}/{self.name}:{self.tag}"


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


def parse_place(url: str) -> RegistryPlace:
    """Read ``oci://HOST/NAME``, with ``:TAG`` or without. Raises ``ConfigError``."""
    found = REGISTRY.fullmatch(url)
    if found is None:
        raise ConfigError(
            "this is no address of a mirror in a registry",
            facts=(f"given: {shown(url)}",),
            hint="write it as oci://HOST/NAME or oci://HOST/NAME:TAG, with NAME in lower case",
        )
    return RegistryPlace(found["host"], found["name"], found["tag"] or "latest")


def sources(url: str, sha256: str, mirrors: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """List the sources to try for an artifact, in order, each with its URLs.

    A mirror has an artifact under its digest, or under its own name if a person filled the folder.
    The second URL counts only if the file is not at the first. ``ORIGIN`` among the mirrors is the
    artifact's own URL. With mirrors and without that word, no other host is asked.

    Raises ``ConfigError`` for a mirror with another scheme than ``https:``, ``http:``, ``file:`` or
    ``oci:``. Plain ``http:`` is allowed, because nothing that a mirror sends is trusted.
    """
    found: list[tuple[str, ...]] = []
    for mirror in mirrors or (ORIGIN,):
        if mirror == ORIGIN:
            found.append((url,))
            continue
        if scheme_of(mirror) == REGISTRY_SCHEME:
            found.append((parse_place(mirror).blob(sha256),))
            continue
        try:
            parts = urlsplit(mirror)
        except ValueError:
            parts = urlsplit("")  # it has no scheme, so the next check refuses the mirror
        if parts.scheme not in ("https", "http", "file") or (
            parts.scheme != "file" and not parts.hostname
        ):
            raise ConfigError(
                "a mirror is not a URL that can be used",
                facts=(f"llm.mirror: {shown(mirror)}",),
                hint="give an https:, http: or file: URL of a folder",
            )
        names = (f"sha256/{sha256}", quote(file_name(url), safe=""))
        found.append(tuple(below(mirror, name) for name in names))
    return tuple(found)


def below(folder: str, path: str) -> str:
    """Return the URL of a file below the URL of a folder; ``path`` is escaped already.

    The query stays: a mirror may need a token there.
    """
    parts = urlsplit(folder)
    whole = f"{parts.path.rstrip('/')}/{path}"
    return urlunsplit((parts.scheme, parts.netloc, whole, parts.query, ""))


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
        f"{place} is not a mirror that tsuku-llm made",
        facts=(f"reason: {reason[:200]}",),
        hint=f"check the name and the tag: a mirror is made with {TSUKU} mirror --to",
    )


def _layer(layer: Any) -> tuple[str, Blob] | None:
    title = (layer.get("annotations") or {}).get(TITLE)
    found = _BLOB.fullmatch(layer["digest"])
    if not isinstance(title, str) or found is None:
        return None  # not made by this program: it leads to nothing
    return title, Blob(found[1], count(layer["size"], "size"))
