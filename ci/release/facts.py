"""What upstream published: releases and their assets, as recorded in ``facts/``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.release.errors import ReleaseError

FACTS = Path(__file__).parent / "facts" / "upstream-releases.json"


@dataclass(frozen=True, slots=True)
class Asset:
    """One published file; ``size`` in bytes, None where nobody recorded it."""

    name: str
    url: str
    sha256: str
    size: int | None


@dataclass(frozen=True, slots=True)
class UpstreamRelease:
    """One tag of upstream's; ``version`` is the stable version that names it, if any."""

    tag: str
    version: str | None
    published: str
    assets: tuple[Asset, ...]


def load_facts(path: Path = FACTS) -> dict[str, UpstreamRelease]:
    """Every recorded release by its tag."""
    raw = json.loads(path.read_text("utf-8"))
    versions = {tag: version.removeprefix("v") for version, tag in raw["stable"].items()}
    return {
        tag: UpstreamRelease(
            tag=tag,
            version=versions.get(tag),
            published=release["published_about"],
            assets=tuple(_asset(asset) for asset in release["assets"]),
        )
        for tag, release in raw["releases"].items()
    }


def release_of(facts: Mapping[str, UpstreamRelease], tag: str) -> UpstreamRelease:
    """The recorded release of a tag. Raises ``ReleaseError``."""
    try:
        return facts[tag]
    except KeyError:
        raise ReleaseError(f"{tag}: no facts are recorded for this release") from None


def _asset(raw: Mapping[str, Any]) -> Asset:
    return Asset(raw["name"], raw["url"], raw["sha256"], raw["size"])
