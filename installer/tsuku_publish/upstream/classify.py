"""The rules that tell which asset of a release is which build.

Every asset must be known: upstream's names change over time, and users would end up on the CPU if a
build were dropped silently.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomli

from tsuku_llm.ground.foreign import read_foreign
from tsuku_publish.archives.binaries import SYSTEM_LIBRARIES
from tsuku_publish.errors import LARGEST_FILE, PublishError, reading
from tsuku_publish.upstream.facts import Asset, UpstreamRelease

_Word = Annotated[str, msgspec.Meta(min_length=1)]


class VariantRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One variant that a build gives; ``requires`` names tables of ``Rules.requires``."""

    name: _Word
    backend: _Word
    requires: tuple[str, ...]
    arguments: tuple[str, ...] = ()


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One build: its asset, the archive that is unpacked with it, and its variants.

    A person writes it: a mistyped key must not change what a build is.
    """

    asset: _Word
    platform: str
    variants: Annotated[tuple[VariantRule, ...], msgspec.Meta(min_length=1)]
    companion: _Word | None = None


@dataclass(frozen=True, slots=True)
class WrongRule:
    """A rule that a person wrote and that cannot be used; the assets of its pattern have none.

    ``place`` is such as "[[rule]] 12". ``asset`` is empty if the rule names none.
    """

    place: str
    asset: str
    reason: str

    def __str__(self) -> str:
        about = f", for {self.asset}," if self.asset else ""
        return f"{self.place} of rules.toml{about} is wrong: {self.reason}"


@dataclass(frozen=True, slots=True)
class PlatformRule:
    """A platform's default variant and its orders of backends."""

    default: str
    preference: Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Rules:
    """The whole of ``rules.toml``, in its order; ``libraries`` are those that systems provide.

    ``api`` is the URL of upstream's repository in the hosting service's API. ``requires`` are the
    named tables of what machines must have. ``wrong`` are the rules that cannot be used.
    """

    platforms: Mapping[str, PlatformRule]
    builds: tuple[Rule, ...]
    skipped: tuple[str, ...]
    libraries: frozenset[str]
    api: str
    requires: Mapping[str, Mapping[str, Any]]
    wrong: tuple[WrongRule, ...] = ()

    def required(self, variant: VariantRule) -> dict[str, Any]:
        """Return what a variant's rule assumes that it requires, as in a release file."""
        return {key: each for name in variant.requires for key, each in self.requires[name].items()}


@dataclass(frozen=True, slots=True)
class ClassifiedBuild:
    """A rule and the assets of one release that it names."""

    rule: Rule
    artifacts: tuple[Asset, ...]


@dataclass(frozen=True, slots=True)
class SortedAssets:
    """The assets of a release: builds, unknown ones, and builds that lack their companion.

    ``lonely`` has the missing companion's pattern by the build's asset. Skipped ones are not here.
    ``wrong`` says of unknown assets which rule is about them, and why it cannot be used.
    """

    tag: str
    builds: tuple[ClassifiedBuild, ...]
    unknown: tuple[Asset, ...]
    lonely: Mapping[str, str]
    wrong: Mapping[str, str]


def require_rules(data: Path) -> None:
    """Raise ``PublishError`` for a repository of own builds only, which has no rules."""
    if (data / "repository.toml").exists() and not (data / "rules.toml").exists():
        raise PublishError(
            f"{data} has no rules.toml: it is no repository of upstream's builds",
            facts=("refresh, attest and feed record what upstream publishes",),
            hint="enter builds of your own with add",
        )


def load_rules(data: Path) -> Rules:
    """Read ``rules.toml``. Raises ``PublishError``, but not for a wrong rule: see ``Rules``."""
    path = data / "rules.toml"
    with reading(path):
        raw = tomli.loads(read_foreign(path, LARGEST_FILE).decode("utf-8"))
        platforms = {
            name: PlatformRule(
                platform["default"],
                {"portable": platform["portable"], "native": platform["native"]},
            )
            for name, platform in raw["platforms"].items()
        }
        rules, skipped, wrong = _read_rules(raw)
        return Rules(
            platforms=platforms,
            builds=tuple(rules),
            skipped=tuple(skipped),
            libraries=SYSTEM_LIBRARIES | {*raw.get("libraries", {}).get("known", ())},
            api=raw["hosting"]["api"],
            requires=raw["requires"],
            wrong=tuple(wrong),
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
    for name in unknown:
        if name in found.wrong:
            raise PublishError(f"{release.tag}: {name}: {found.wrong[name]}")
    if unknown:
        raise PublishError(f"{release.tag}: no rule knows {', '.join(sorted(unknown))}")
    return tuple(
        build
        for build in found.builds
        if not any(asset.name in release.left_out for asset in build.artifacts)
    )


def sort_assets(release: UpstreamRelease, rules: Rules) -> SortedAssets:
    """Return which assets of a release are a build, and which no rule knows.

    An asset is unknown, too, if all that rules say of it is wrong: the rule cannot be used, it fits
    more than one asset, or another asset of the release gives its variant already.
    """
    assets = {asset.name: asset for asset in release.assets}
    builds: list[ClassifiedBuild] = []
    lonely: dict[str, str] = {}
    wrong = {
        asset.name: str(rule)
        for rule in rules.wrong
        for asset in _fitting(rule.asset, release.tag, assets)
    }
    given: dict[str, str] = {}
    for rule in rules.builds:
        fitting = _fitting(rule.asset, release.tag, assets)
        companions = _fitting(rule.companion or "", release.tag, assets)
        variants = [f"{rule.platform}/{variant.name}" for variant in rule.variants]
        reason = ""
        for pattern, found in ((rule.asset, fitting), (rule.companion, companions)):
            if len(found) > 1:
                names = ", ".join(asset.name for asset in found)
                reason = f"its rule is wrong: {pattern} fits more than one asset: {names}"
        if reason:
            wrong |= dict.fromkeys((asset.name for asset in fitting), reason)
            continue
        for asset in fitting:
            if rule.companion and not companions:
                lonely[asset.name] = rule.companion
            elif again := next((each for each in variants if each in given), None):
                wrong[asset.name] = f"its rule is wrong: {given[again]} is {again} already"
            else:
                given |= dict.fromkeys(variants, asset.name)
                builds.append(ClassifiedBuild(rule, (asset, *companions)))
    used = {artifact.name for build in builds for artifact in build.artifacts} | {*lonely}
    unknown = tuple(
        asset
        for name, asset in assets.items()
        if name not in used and not _skipped(name, release.tag, rules)
    )
    reasons = {asset.name: wrong[asset.name] for asset in unknown if asset.name in wrong}
    return SortedAssets(release.tag, tuple(builds), unknown, lonely, reasons)


class _RawSkip(msgspec.Struct):
    asset: _Word


def _read_rules(raw: Mapping[str, Any]) -> tuple[list[Rule], list[str], list[WrongRule]]:
    """Return the rules that can be used, what is skipped, and the rules that cannot be used."""
    rules: list[Rule] = []
    skipped: list[str] = []
    wrong: list[WrongRule] = []
    every = [("rule", *each) for each in enumerate(raw["rule"], 1)]
    every += [("skip", *each) for each in enumerate(raw["skip"], 1)]
    for kind, number, each in every:
        try:
            with reading("it"):
                if kind == "skip":
                    skipped.append(msgspec.convert(each, _RawSkip).asset)
                    continue
                rule = msgspec.convert(each, Rule)
                _require_defined(rule, raw)
                for other in rules:
                    if (other.asset, other.platform) == (rule.asset, rule.platform):
                        _require_other(rule, other)
                rules.append(rule)
        except PublishError as error:
            asset = each.get("asset") if isinstance(each, dict) else None
            named = asset if isinstance(asset, str) else ""
            wrong.append(WrongRule(f"[[{kind}]] {number}", named, error.message))
    return rules, skipped, wrong


def _require_defined(rule: Rule, tables: Mapping[str, Any]) -> None:
    """Refuse a rule that names what ``rules.toml`` does not have. Raises ``PublishError``."""
    if rule.platform not in tables["platforms"]:
        raise PublishError(f"there is no [platforms.{rule.platform}]")
    for each in rule.variants:
        for name in each.requires:
            if not isinstance(tables["requires"].get(name), dict):
                raise PublishError(f"variant {each.name}: [requires.{name}] is not defined")


def _require_other(rule: Rule, other: Rule) -> None:
    """Refuse a variant that another rule gives of the same asset. Raises ``PublishError``."""
    known = {variant.name for variant in other.variants}
    for variant in rule.variants:
        if variant.name in known:
            raise PublishError(f"another rule has {variant.name} of this asset already")


def _fitting(pattern: str, tag: str, assets: Mapping[str, Asset]) -> list[Asset]:
    expression = _expression(pattern, tag)
    return [asset for name, asset in assets.items() if expression.fullmatch(name)]


def _skipped(name: str, tag: str, rules: Rules) -> bool:
    return any(_expression(pattern, tag).fullmatch(name) for pattern in rules.skipped)


@functools.lru_cache(maxsize=4096)
def _expression(pattern: str, tag: str) -> re.Pattern[str]:
    # Escape first: all other characters of a pattern stand for themselves.
    expression = re.escape(pattern).replace(r"\{tag\}", re.escape(tag))
    return re.compile(expression.replace(r"\{any\}", r"[0-9][0-9.]*"))
