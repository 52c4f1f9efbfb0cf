"""What upstream published: releases and their assets, as recorded in ``facts/``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tsuku_llm.ground.files import replace_file
from tsuku_llm.ground.foreign import parse_object, read_foreign
from tsuku_publish.errors import LARGEST_FILE, PublishError, reading

NAME = "upstream-releases.json"


class MovedAsset(PublishError):
    """An asset with the recorded bytes at another URL: the repository has another name, say."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One published file; ``size`` is in bytes, None if it was not recorded."""

    name: str
    url: str
    sha256: str
    size: int | None


@dataclass(frozen=True, slots=True)
class UpstreamRelease:
    """One tag of upstream; ``version`` is the stable version that names it, if any.

    ``unattested`` and ``unmeasured`` say why its origin was not verified, or why its archives were
    not read. None means that it was done, or must be done. ``left_out`` are assets that its release
    file does not have, each with the reason.
    """

    tag: str
    version: str | None
    published: str
    assets: tuple[Asset, ...]
    unattested: str | None = None
    unmeasured: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


class Facts:
    """The file ``upstream-releases.json``; ``save`` writes what was recorded since."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        with reading(self._path):
            self._raw = parse_object(read_foreign(self._path, LARGEST_FILE))
        self.releases()  # raises now if the recorded data have another shape

    def releases(self) -> dict[str, UpstreamRelease]:
        """Return every recorded release by its tag. Raises ``PublishError``."""
        with reading(self._path):
            named, recorded = self._raw["stable"].items(), self._raw["releases"].items()
            versions = {tag: name.removeprefix("v") for name, tag in named}
            return {tag: _release(tag, versions.get(tag), raw) for tag, raw in recorded}

    def record(self, release: UpstreamRelease) -> None:
        """Add a release, or complete it: recorded values stay as they are.

        Raises ``PublishError`` if upstream now publishes an asset with other values, or no longer
        at all: users may have seen the old one.
        """
        known = self._raw["releases"].setdefault(
            release.tag, {"published": release.published, "assets": []}
        )
        new = {asset.name: asset for asset in release.assets}
        for raw in known["assets"]:
            _complete(raw, new.pop(raw["name"], None), release.tag)
        known["assets"] += [
            {"name": each.name, "url": each.url, "sha256": each.sha256, "size": each.size}
            for each in new.values()
        ]

    def name(self, version: str, tag: str) -> None:
        """Record which tag a stable version ("v0.6.0") names.

        Raises ``PublishError`` if it named another recorded release before. A mistyped tag, of
        which nothing is recorded, may be mended.
        """
        recorded = self._raw["stable"].get(version, tag)
        if recorded != tag and recorded in self._raw["releases"]:
            raise PublishError(f"{version} names {tag} now, and {recorded} is recorded")
        self._raw["stable"][version] = tag

    def excuse(self, tag: str, what: str, reason: str | None) -> None:
        """Record why a release is ``unattested`` or ``unmeasured``; None removes the reason."""
        release = self._raw["releases"][tag]
        release.pop(what, None)
        if reason is not None:
            release[what] = reason

    def leave_out(self, tag: str, assets: Mapping[str, str]) -> None:
        """Record which assets of a release its release file does not have: name → reason."""
        release = self._raw["releases"][tag]
        release.pop("left_out", None)
        if assets:
            release["left_out"] = dict(sorted(assets.items()))

    def forget(self, tag: str) -> None:
        """Remove a release."""
        self._raw["releases"].pop(tag, None)

    @property
    def versions(self) -> dict[str, str]:
        """The recorded stable versions ("v0.6.0"), and the build that each names."""
        return dict(self._raw["stable"])

    def save(self) -> None:
        """Write the file."""
        text = json.dumps(self._raw, indent=1)
        replace_file(self._path, f"{text}\n".encode())


def release_of(facts: Mapping[str, UpstreamRelease], tag: str) -> UpstreamRelease:
    """Return the recorded release of a tag. Raises ``PublishError``."""
    try:
        return facts[tag]
    except KeyError:
        raise PublishError(
            f"{tag}: no facts are recorded for this release",
            hint="refresh records one of upstream; packages.toml has those of a package index",
        ) from None


def _release(tag: str, version: str | None, raw: Mapping[str, Any]) -> UpstreamRelease:
    return UpstreamRelease(
        tag=tag,
        version=version,
        published=raw.get("published") or raw["published_about"],
        assets=tuple(
            Asset(each["name"], each["url"], each["sha256"], each["size"]) for each in raw["assets"]
        ),
        unattested=raw.get("unattested"),
        unmeasured=raw.get("unmeasured"),
        left_out=raw.get("left_out", {}),
    )


def _complete(raw: dict[str, Any], asset: Asset | None, tag: str) -> None:
    if asset is None:
        raise PublishError(f"{tag}: {raw['name']} is recorded and not published any more")
    # The URL last: with the same bytes it is less than with other ones.
    for key in ("sha256", "size", "url"):
        recorded, found = raw[key], getattr(asset, key)
        # An unknown value may be filled in, a known one never changes.
        if recorded is None:
            raw[key] = found
        elif found not in (None, recorded):
            kind = MovedAsset if key == "url" and asset.sha256 == raw["sha256"] else PublishError
            raise kind(f"{tag}: {asset.name} has {key} {found} now, and {recorded} is recorded")
