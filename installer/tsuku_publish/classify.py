"""The rules that tell which asset of a release is which build.

Every asset must be known: upstream's names change over time, and users would end up on the CPU if a
build were dropped silently.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from tsuku_publish.errors import PublishError, reading
from tsuku_publish.facts import Asset, UpstreamRelease


@dataclass(frozen=True, slots=True)
class VariantRule:
    """One variant that a build gives; ``requires`` is as in a release file."""

    name: str
    backend: str
    requires: Mapping[str, Any]
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One build: its asset, the archive that is unpacked with it, and its variants."""

    asset: str
    companion: str | None
    platform: str
    variants: tuple[VariantRule, ...]


@dataclass(frozen=True, slots=True)
class PlatformRule:
    """A platform's default variant and its orders of backends."""

    default: str
    preference: Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Rules:
    """The whole of ``rules.toml``, in its order; ``libraries`` are those that systems provide.

    ``api`` is the URL of upstream's repository in the hosting service's API. ``requires`` are the
    named tables of what machines must have.
    """

    platforms: Mapping[str, PlatformRule]
    builds: tuple[Rule, ...]
    skipped: tuple[str, ...]
    libraries: frozenset[str]
    api: str
    requires: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ClassifiedBuild:
    """A rule and the assets of one release that it names."""

    rule: Rule
    artifacts: tuple[Asset, ...]


@dataclass(frozen=True, slots=True)
class SortedAssets:
    """The assets of a release: builds, unknown ones, and builds that lack their companion.

    ``lonely`` has the missing companion's pattern by the build's asset. Skipped ones are not here.
    """

    tag: str
    builds: tuple[ClassifiedBuild, ...]
    unknown: tuple[Asset, ...]
    lonely: Mapping[str, str]


def load_rules(data: Path) -> Rules:
    """Read ``rules.toml``. Raises ``PublishError``."""
    path = data / "rules.toml"
    with reading(path):
        raw = tomli.loads(path.read_text("utf-8"))
        return Rules(
            platforms={
                name: PlatformRule(
                    platform["default"],
                    {"portable": platform["portable"], "native": platform["native"]},
                )
                for name, platform in raw["platforms"].items()
            },
            builds=tuple(_rule(rule, raw["requires"]) for rule in raw["rule"]),
            skipped=tuple(skip["asset"] for skip in raw["skip"]),
            libraries=frozenset(raw["libraries"]["known"]),
            api=raw["hosting"]["api"],
            requires=raw["requires"],
        )


def classify(release: UpstreamRelease, rules: Rules) -> tuple[ClassifiedBuild, ...]:
    """Return the builds of a release, in the order of the rules, without those left out.

    Raises ``PublishError`` for an asset that no rule knows, for a build whose companion is missing,
    and for a companion without its build, unless the facts say that it is left out.
    """
    found = sort_assets(release, rules)
    for asset, companion in found.lonely.items():
        if asset not in release.left_out:
            raise PublishError(f"{release.tag}: {asset} has no {companion}")
    unknown = [asset.name for asset in found.unknown if asset.name not in release.left_out]
    if unknown:
        raise PublishError(f"{release.tag}: no rule knows {', '.join(sorted(unknown))}")
    return tuple(
        build
        for build in found.builds
        if not any(asset.name in release.left_out for asset in build.artifacts)
    )


def sort_assets(release: UpstreamRelease, rules: Rules) -> SortedAssets:
    """Return which assets of a release are a build, and which no rule knows.

    Raises ``PublishError`` if a rule fits more than one asset.
    """
    assets = {asset.name: asset for asset in release.assets}
    builds, lonely = [], {}
    for rule in rules.builds:
        asset = _only(rule.asset, release.tag, assets)
        if asset is None:
            continue
        artifacts: tuple[Asset, ...] = (asset,)
        if rule.companion:
            companion = _only(rule.companion, release.tag, assets)
            if companion is None:
                lonely[asset.name] = rule.companion
                continue
            artifacts = (asset, companion)
        builds.append(ClassifiedBuild(rule, artifacts))
    used = {artifact.name for build in builds for artifact in build.artifacts} | {*lonely}
    unknown = (
        asset
        for name, asset in assets.items()
        if name not in used and not _skipped(name, release.tag, rules)
    )
    return SortedAssets(release.tag, tuple(builds), tuple(unknown), lonely)


def _rule(raw: Mapping[str, Any], requires: Mapping[str, Mapping[str, Any]]) -> Rule:
    return Rule(
        asset=raw["asset"],
        companion=raw.get("companion"),
        platform=raw["platform"],
        variants=tuple(_variant(variant, requires) for variant in raw["variants"]),
    )


def _variant(raw: Mapping[str, Any], requires: Mapping[str, Mapping[str, Any]]) -> VariantRule:
    needs: dict[str, Any] = {}
    for name in raw["requires"]:
        if name not in requires:
            raise PublishError(f"variant {raw['name']}: [requires.{name}] is not defined")
        needs |= requires[name]
    return VariantRule(raw["name"], raw["backend"], needs, tuple(raw.get("arguments", ())))


def _only(pattern: str, tag: str, assets: Mapping[str, Asset]) -> Asset | None:
    found = [asset for name, asset in assets.items() if _matches(pattern, tag, name)]
    if len(found) > 1:
        names = ", ".join(asset.name for asset in found)
        raise PublishError(f"{tag}: {pattern} fits more than one asset: {names}")
    return found[0] if found else None


def _skipped(name: str, tag: str, rules: Rules) -> bool:
    return any(_matches(pattern, tag, name) for pattern in rules.skipped)


def _matches(pattern: str, tag: str, name: str) -> bool:
    # Escape first: all other characters of a pattern stand for themselves.
    expression = re.escape(pattern).replace(r"\{tag\}", re.escape(tag))
    return re.fullmatch(expression.replace(r"\{any\}", r"[0-9][0-9.]*"), name) is not None
