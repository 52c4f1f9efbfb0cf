"""The rules that tell which asset of a release is which build.

Every asset must be known: upstream's names change over time, and users would end up on the CPU if a
build were dropped silently.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tomli

from tsuku_llm.ground.foreign import read_foreign
from tsuku_publish.archives.system_libraries import ASKED_LIBRARIES
from tsuku_publish.errors import LARGEST_FILE, PublishError, reading
from tsuku_publish.upstream.facts import Asset, UpstreamRelease
from tsuku_publish.upstream.makers import MakerPackage, Makers, load_makers, packages_for
from tsuku_publish.upstream.source.facts import SourceFacts, load_sources, sources_for
from tsuku_publish.upstream.source.marked import Fact

_Word = Annotated[str, msgspec.Meta(min_length=1)]


class VariantRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One variant that a build gives; ``requires`` names tables of ``Rules.requires``."""

    name: _Word
    backend: _Word
    requires: tuple[str, ...]
    arguments: tuple[str, ...] = ()


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One build: its asset, the archive that is unpacked with it, and its variants.

    ``makers`` names sets of ``makers.toml``, whose packages are unpacked with it, too. A person
    writes it: a mistyped key must not change what a build is.
    """

    asset: _Word
    platform: str
    variants: Annotated[tuple[VariantRule, ...], msgspec.Meta(min_length=1)]
    companion: _Word | None = None
    makers: _Word | None = None


class LibraryRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Libraries that clients look for on each machine, as builds need and do not bring them.

    ``needed_by`` says which builds are assumed to need them until their files are measured: words
    of facts of their source, by the fact's name. Without it no build is. ``unless`` has words of
    facts that exclude a build, and ``system`` the first word of its platform.
    """

    names: Annotated[tuple[_Word, ...], msgspec.Meta(min_length=1)]
    source: _Word
    system: Literal["linux", "windows", "darwin"] = "linux"
    needed_by: Mapping[str, tuple[str, ...]] = {}
    unless: Mapping[str, tuple[str, ...]] = {}

    def is_needed_by(self, facts: Mapping[str, Fact]) -> bool:
        """Tell whether a build is assumed to need them, by the facts of its source."""

        def has(name: str, words: tuple[str, ...]) -> bool:
            return name in facts and not {*words}.isdisjoint(_listed(facts[name]))

        return (
            bool(self.needed_by)
            and str(facts["platform"].value).startswith(f"{self.system}-")
            and all(has(*each) for each in self.needed_by.items())
            and not any(has(*each) for each in self.unless.items())
        )


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
    """The whole of ``rules.toml``, in its order; ``asked`` are its libraries.

    ``api`` is the URL of upstream's repository in the hosting service's API. ``requires`` are the
    named tables of what machines must have. ``systems`` says what the systems have that builds are
    made on, and ``sources`` what upstream's sources say. ``makers`` are the sets of makers'
    packages. ``wrong`` are rules that cannot be used. ``attestation`` says who may attest releases:
    the ``issuer`` of certificates and the ``repository``.
    """

    platforms: Mapping[str, PlatformRule]
    builds: tuple[Rule, ...]
    skipped: tuple[str, ...]
    asked: tuple[LibraryRule, ...]
    api: str
    requires: Mapping[str, Mapping[str, Any]]
    systems: Mapping[str, Mapping[str, str]]
    sources: tuple[SourceFacts, ...]
    wrong: tuple[WrongRule, ...]
    makers: Makers
    attestation: Mapping[str, str]

    def packages(self, rule: Rule, tag: str) -> tuple[MakerPackage, ...]:
        """Return the makers' packages that a rule's build of this tag needs."""
        return packages_for(self.makers[rule.makers], tag) if rule.makers else ()

    @property
    def libraries(self) -> frozenset[str]:
        """The libraries that a build may need and not bring: clients look for them."""
        return ASKED_LIBRARIES.union(*(each.names for each in self.asked))

    def required(self, variant: VariantRule) -> dict[str, Any]:
        """Return what a variant's rule assumes that it requires, as in a release file."""
        return {key: each for name in variant.requires for key, each in self.requires[name].items()}


@dataclass(frozen=True, slots=True)
class ClassifiedBuild:
    """A rule and the assets of one release that it names; ``needs`` are those of its source."""

    rule: Rule
    artifacts: tuple[Asset, ...]
    needs: Mapping[str, Any] = field(default_factory=dict)

    def required(self, variant: VariantRule, rules: Rules) -> dict[str, Any]:
        """Return what a variant requires: what the source says, and what its rule adds."""
        return {**self.needs, **rules.required(variant)}


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
        makers = load_makers(data)
        rules, skipped, wrong = _read_rules({**raw, "makers": makers})
        return Rules(
            platforms=platforms,
            builds=tuple(rules),
            skipped=tuple(skipped),
            asked=tuple(msgspec.convert(each, LibraryRule) for each in raw.get("library", ())),
            api=raw["hosting"]["api"],
            requires=raw["requires"],
            systems=raw.get("systems", {}),
            sources=load_sources(data / "facts"),
            wrong=tuple(wrong),
            makers=makers,
            attestation=raw.get("attestation", {}),
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
        belonging = [each.name for each in companions]
        reason = ""
        for pattern, found in ((rule.asset, fitting), (rule.companion, companions)):
            if len(found) > 1:
                names = ", ".join(asset.name for asset in found)
                reason = f"its rule is wrong: {pattern} fits more than one asset: {names}"
        if reason:
            wrong |= dict.fromkeys((*(asset.name for asset in fitting), *belonging), reason)
            continue
        for asset in fitting:
            if rule.companion and not companions:
                lonely[asset.name] = rule.companion
            elif again := next((each for each in variants if each in given), None):
                reason = f"its rule is wrong: {given[again]} is {again} already"
                wrong |= dict.fromkeys((asset.name, *belonging), reason)
            else:
                try:
                    needs = source_needs(asset.name, release.tag, rules)
                except PublishError as error:
                    wrong |= dict.fromkeys((asset.name, *belonging), error.message)
                    continue
                given |= dict.fromkeys(variants, asset.name)
                needs = _without(needs, rules.packages(rule, release.tag))
                builds.append(ClassifiedBuild(rule, (asset, *companions), needs))
    used = {artifact.name for build in builds for artifact in build.artifacts} | {*lonely}
    unknown = tuple(
        asset
        for name, asset in assets.items()
        if name not in used and not _skipped(name, release.tag, rules)
    )
    reasons = {asset.name: wrong[asset.name] for asset in unknown if asset.name in wrong}
    return SortedAssets(release.tag, tuple(builds), unknown, lonely, reasons)


def _without(needs: dict[str, Any], packages: Iterable[MakerPackage]) -> dict[str, Any]:
    """Return what a machine must have beside the libraries that makers' packages bring."""
    brought = {name for each in packages for name in each.take}
    left = [name for name in needs.get("libraries", ()) if name not in brought]
    rest = {key: value for key, value in needs.items() if key != "libraries"}
    return rest | ({"libraries": left} if left else {})


def source_needs(asset: str, tag: str, rules: Rules) -> dict[str, Any]:
    """Return what upstream's source says that an asset needs; nothing if no source has it.

    Between two sources the higher floor counts, and the libraries of both: what is measured takes
    the place of these. Raises ``PublishError`` if the two differ in device code.
    """
    name = asset.replace(tag, "{tag}")
    found = {
        source.tag: needs_of(source.assets[name], rules)
        for source in sources_for(tag, rules.sources)
        if name in source.assets
    }
    needs: dict[str, Any] = {}
    for key in dict.fromkeys(key for each in found.values() for key in each):
        values = [each[key] for each in found.values() if key in each]
        if key == "libraries":
            needs[key] = sorted({name for each in values for name in each})
        elif isinstance(values[0], str):
            needs[key] = max(values, key=lambda floor: [*map(int, re.findall("[0-9]+", floor))])
        elif any(each.get(key) != values[0] for each in found.values()):
            raise PublishError(
                f"the sources of {' and '.join(found)} say different things of its {key}: read the "
                f"source of {tag}, or of one nearer to it, with: upstream SOURCE --record"
            )
        else:
            needs[key] = values[0]
    return needs


def needs_of(facts: Mapping[str, Fact], rules: Rules) -> dict[str, Any]:
    """Return what an asset requires by its facts, as in a release file. Raises ``PublishError``."""
    needs: dict[str, Any] = {}
    systems = rules.systems
    if "macos" in facts:
        needs["macos"] = facts["macos"].value
    else:
        system = facts["system"]
        if system.value not in systems:
            raise PublishError(
                f'no [systems."{system.value}"] of rules.toml says what builds need that are made '
                f"there ({system.at})"
            )
        row = systems[str(system.value)]
        needs |= {key: value for key, value in row.items() if key != "source"}
    needed = [name for each in rules.asked if each.is_needed_by(facts) for name in each.names]
    if needed:
        needs["libraries"] = sorted(needed)
    if "sass" in facts:
        needs["cuda"] = {
            "toolkit": _line(facts["toolkit"]),
            "sass": [*_listed(facts["sass"])],
            "ptx": [*_listed(facts["ptx"])],
        }
    if "gfx" in facts:
        needs["rocm"] = {"runtime": _line(facts["toolkit"]), "gfx": [*_listed(facts["gfx"])]}
    return needs


def _line(toolkit: Fact) -> str:
    """Return the first two numbers of a toolkit's version: the line whose drivers it needs."""
    return ".".join(str(toolkit.value).split(".")[:2])


def _listed(fact: Fact) -> tuple[str, ...]:
    return fact.value if isinstance(fact.value, tuple) else (str(fact.value),)


def disagreements(source: SourceFacts, rules: Rules) -> tuple[str, ...]:
    """Return where the rules and a source differ: in words, with the source's line."""
    found = []
    assets = {name.replace("{tag}", source.tag): name for name in source.assets}
    for asset, name in assets.items():
        facts = source.assets[name]
        if name.startswith("cudart-") or _skipped(asset, source.tag, rules):
            continue
        fitting = [
            rule for rule in rules.builds if _expression(rule.asset, source.tag).fullmatch(asset)
        ]
        if len(fitting) != 1:
            found.append(f"{len(fitting)} rules are about {name} ({facts['job'].at})")
            continue
        (rule,) = fitting
        companion = facts.get("companion")
        if (companion.value if companion else None) != rule.companion:
            found.append(f"{name}: its companion is not {rule.companion} ({facts['job'].at})")
        if facts["platform"].value != rule.platform:
            found.append(f"{name}: it is not for {rule.platform} ({facts['platform'].at})")
        backends = {*_listed(facts["backends"]), "cpu"}  # also where the server is injected
        found += [
            f"{name}: it has no code for {each.backend} ({facts['backends'].at})"
            for each in rule.variants
            if each.backend not in backends
        ]
        try:
            needs = needs_of(facts, rules)
        except PublishError as error:
            found.append(f"{name}: {error.message}")
            continue
        found += [
            f"{name}: {each.name} requires another {key} than the source says ({facts['job'].at})"
            for each in rule.variants
            for key, value in rules.required(each).items()
            if needs.get(key, value) != value
        ]
    return tuple(found)


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
    """Refuse a rule that names what the tables do not have. Raises ``PublishError``."""
    if rule.platform not in tables["platforms"]:
        raise PublishError(f"there is no [platforms.{rule.platform}]")
    if rule.makers and rule.makers not in tables["makers"]:
        raise PublishError(f"makers.toml has no [{rule.makers}]")
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
