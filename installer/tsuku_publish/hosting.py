"""The answers of upstream's hosting service about a release; users' machines never ask it."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tsuku_llm.errors import TsukuError
from tsuku_publish.errors import PublishError, in_one_line
from tsuku_publish.facts import Asset, UpstreamRelease

_API = "https://api.github.com/repos/ggml-org/llama.cpp"
_LARGEST = 8 << 20
"""Bytes of an answer at most; an answer with forty assets has about 70 KB."""

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_DATE = re.compile(r"(\d{4}-\d{2}-\d{2})T\d{2}:\d{2}:\d{2}Z")
_TAG = re.compile(r"\bb[0-9]{4,6}\b")


def download_release(tag: str, environ: Mapping[str, str]) -> bytes:
    """Return the service's answer for a tag. Raises ``PublishError``."""
    return download(f"{_API}/releases/tags/{tag}", environ)


def download_attestations(sha256: str, environ: Mapping[str, str]) -> bytes:
    """Return the service's answer for the attestations of a file. Raises ``PublishError``."""
    return download(f"{_API}/attestations/sha256:{sha256}", environ)


def download(url: str, environ: Mapping[str, str]) -> bytes:
    """Download a small file with the program's own code. Raises ``PublishError``."""
    from tsuku_llm.fetch import Network, get  # noqa: PLC0415

    try:
        with Network(environ) as network:
            return get(url, _LARGEST, network)
    except TsukuError as error:
        raise PublishError(in_one_line(error)) from error


def parse_release(data: bytes, tag: str) -> UpstreamRelease:
    """Read the answer for a tag. Raises ``PublishError``.

    Every asset needs the digest that the service computed when it was uploaded. A size that the
    service does not give stays unknown.
    """
    raw = _release(data, tag)
    published = _DATE.fullmatch(str(raw.get("published_at")))
    if raw.get("draft") or not published:
        raise PublishError(f"{tag} is not published yet")
    assets = tuple(_asset(each, tag) for each in raw["assets"])
    return UpstreamRelease(tag=tag, version=None, published=published[1], assets=assets)


def named_tag(data: bytes, version: str) -> str:
    """Return the build that a stable version's text names. Raises ``PublishError``."""
    raw = _release(data, version)
    tags: set[str] = set(_TAG.findall(str(raw.get("body"))))
    if len(tags) != 1:
        found = ", ".join(sorted(tags)) or "no build"
        raise PublishError(f"{version}: its text names {found}, and one build is expected")
    return tags.pop()


def _release(data: bytes, tag: str) -> Mapping[str, Any]:
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PublishError(f"{tag}: the service's answer is no JSON: {error}") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("assets"), list):
        raise PublishError(f"{tag}: the service's answer is no release")
    if raw.get("tag_name") != tag:
        raise PublishError(f"{tag} was asked for, and the answer is for {raw.get('tag_name')}")
    return raw


def _asset(raw: Any, tag: str) -> Asset:
    try:
        name, url, state = raw["name"], raw["browser_download_url"], raw["state"]
        digest, size = _DIGEST.fullmatch(str(raw["digest"])), raw["size"]
    except (KeyError, TypeError) as error:
        raise PublishError(f"{tag}: an asset has no {error}") from error
    # An asset is listed while it is still being uploaded.
    if state != "uploaded":
        raise PublishError(f"{tag}: {name} is not uploaded yet")
    if not digest:
        raise PublishError(f"{tag}: the service gives no SHA-256 for {name}")
    if size is not None and (type(size) is not int or size <= 0):
        raise PublishError(f"{tag}: {name} has no size that can be true: {size}")
    return Asset(name, url, digest[1], size)
