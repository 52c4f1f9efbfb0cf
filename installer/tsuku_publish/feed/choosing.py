"""The feed's decisions: what is missing, what is left out, what stays, what is proposed. Pure."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from tsuku_llm.catalog.manifest import require_release
from tsuku_llm.ground.errors import ManifestError
from tsuku_publish.archives.contents import SERVERS, Contents
from tsuku_publish.errors import PublishError, in_one_line, reading
from tsuku_publish.feed.drafts import drafted_libraries, drafted_rule, no_build
from tsuku_publish.feed.report import LeftOut, StableProposal
from tsuku_publish.feed.state import FeedSettings, FeedState
from tsuku_publish.release_files.documents import (
    UnknownLibraries,
    digests_of,
    document_of_one,
    recorded,
    requirements,
)
from tsuku_publish.upstream.classify import (
    ClassifiedBuild,
    Rules,
    SortedAssets,
    VariantRule,
    sort_assets,
)
from tsuku_publish.upstream.facts import UpstreamRelease

_FACTOR = 3
"""How many times the size of a variant may change from one release to the next."""
_LIBRARY = re.compile(r"(.*ggml.*?|.+?(?=[-_\d]*\.))[-_\d]*\.(so|dll|dylib)[.\d]*")
UNKNOWN = "no rule knows it; "
"""How the reason begins for an asset that no rule knows."""
UNPROVEN = "no attestation proves its origin"
"""Why an asset that no rule knows is not downloaded: anyone with a token can upload one."""


def number(tag: str) -> int:
    """Return the build number of a tag, by which builds are ordered."""
    return int(tag[1:])


def is_build(tag: str) -> bool:
    """Tell whether a tag names a build ("b11429") and not a stable version."""
    return re.fullmatch("b[0-9]{1,9}", tag) is not None


def is_version(tag: str) -> bool:
    """Tell whether a tag names a stable version ("v1.0.0"), and no candidate ("v1.0.0-rc1")."""
    return re.fullmatch(r"v[0-9]+(\.[0-9]+)+", tag) is not None


def unknown_form(tag: str) -> str:
    """Return the form of a tag of which the feed knows nothing ("gguf-vN.N.N"); else nothing.

    Candidates of a version and builds of a release branch are known, and nothing to take.
    """
    known = r"b[0-9]{1,9}|v[0-9]+(\.[0-9]+)+(-.+)?|release-[0-9.]+-b[0-9]+-[0-9a-f]{7,40}"
    return "" if re.fullmatch(known, tag) else re.sub("[0-9]+", "N", tag)


def missing_builds(release: SortedAssets, last: SortedAssets | None) -> tuple[str, ...]:
    """Return what this release lacks: companions, and builds that the last one taken had.

    As many new unknown assets as missing builds are a change of names, and nothing is missing.
    """
    lonely = tuple(release.lonely.values())
    if last is None:
        return lonely
    here = {build.rule.asset for build in release.builds}
    gone = [each.rule.asset for each in last.builds if each.rule.asset not in here]
    gone = [each for each in gone if each.format(tag=release.tag, any="") not in release.lonely]
    new = _unknown_names(release) - _unknown_names(last)
    return (*lonely, *gone) if lonely or len(gone) > len(new) else ()


def _unknown_names(release: SortedAssets) -> set[str]:
    unknown = (each.name for each in release.unknown if not no_build(each.name))
    return {name.replace(release.tag, "{tag}") for name in unknown}


def left_out(
    release: UpstreamRelease,
    rules: Rules,
    contents: Mapping[str, Contents],
    unread: Mapping[str, str],
) -> tuple[LeftOut, ...]:
    """Return every asset that the release file must not have; ``unread`` has reasons by name.

    Those are assets that no rule knows, builds whose archives were not read, builds that were
    measured and contradict their rule or whose rule is wrong, and all builds of a platform that
    lacks its default. Raises ``PublishError`` if no build remains, which is a fault of the rules.
    """
    found = sort_assets(release, rules)
    reasons, drafts = _unfit(release, found, rules, contents, unread)
    here = [build for build in found.builds if build.artifacts[0].name not in reasons]
    for name, platform in rules.platforms.items():
        builds = [build for build in here if build.rule.platform == name]
        variants = {variant.name for build in builds for variant in build.rule.variants}
        if platform.default not in variants:
            for build in builds:
                why = f"{name} has no build for its default, {platform.default}"
                reasons[build.artifacts[0].name] = why
    told = [reasons.get(build.artifacts[0].name) for build in found.builds]
    if all(told):
        why = "; ".join(sorted({*filter(None, told)})) or "no rule fits"
        raise PublishError(f"nothing of {release.tag} fits the rules: {why}")
    for unknown in found.unknown:
        name = unknown.name
        if why := no_build(name):
            reasons[name] = why
            continue
        reasons[name] = found.wrong.get(name) or UNKNOWN.rstrip("; ")
        if name in unread:
            reasons[name] = UNKNOWN + unread[name]
        # It has a rule, and a second one would be wrong, too.
        has_rule = name in found.wrong
        # A rule for what upstream's workflow has not built would stop each release from then on.
        if not has_rule and unread.get(name) != UNPROVEN:
            record = contents.get(unknown.sha256)
            drafts.setdefault(name, drafted_rule(unknown, release, rules, record))
    return tuple(
        LeftOut(release.tag, name, reasons[name], drafts.get(name, "")) for name in sorted(reasons)
    )


def _unfit(
    release: UpstreamRelease,
    found: SortedAssets,
    rules: Rules,
    contents: Mapping[str, Contents],
    unread: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Return why builds do not fit their rules, and drafts for libraries, by the asset's name.

    An empty draft is for what no line in the rules can help.
    """
    reasons = {asset: f"it has no {companion}" for asset, companion in found.lonely.items()}
    drafts: dict[str, str] = {}
    apart = {
        library: each.name
        for each in found.unknown
        if (record := contents.get(each.sha256)) and not record.brings & {*SERVERS}
        for library in record.brings
    }
    for build in found.builds:
        asset = build.artifacts[0].name
        try:
            _require_fit(release, build, rules, contents, unread)
        except UnknownLibraries as error:
            reasons[asset] = error.message
            drafts[asset] = drafted_libraries(asset, error.libraries)
            if brought := sorted(apart.keys() & error.libraries):
                # As a library of the system, users would be asked to install what upstream has.
                other = apart[brought[0]]
                drafts |= {asset: "", other: ""}
                names = ", ".join(brought)
                reasons[asset] = f"{names}, which it needs, is in {other}: a rule has one companion"
        except PublishError as error:
            reasons[asset] = error.message
    return reasons, drafts


def lost(
    release: UpstreamRelease,
    last: UpstreamRelease,
    rules: Rules,
    contents: Mapping[str, Contents],
) -> tuple[str, ...]:
    """Return what the last release that was taken has and this one lacks, in words.

    The words are the same for each later release with this loss. They name a platform, else a
    backend of which it has fewer variants, else a library of a variant, or a size that is another
    one by more than ``_FACTOR``. What took the place of another (CUDA 13.5 for 13.4) is no loss.
    """
    old, new = (_variants(each, rules) for each in (last, release))
    gone = [name for name in old if name not in new]
    found = [f"{name}: the platform" for name in gone]
    for name in old.keys() & new.keys():
        counts = [
            Counter(variant.backend for variant, _ in each[name].values()) for each in (old, new)
        ]
        fewer = counts[0] - counts[1]
        found += [f"{name}: {count} of {counts[0][each]} {each}" for each, count in fewer.items()]
        for word in old[name].keys() & new[name].keys():
            builds = (old[name][word][1], new[name][word][1])
            found += [f"{name}/{word}: {each}" for each in _less(*builds, contents)]
    return tuple(sorted(found))


def _variants(
    release: UpstreamRelease, rules: Rules
) -> dict[str, dict[str, tuple[VariantRule, ClassifiedBuild]]]:
    """Return the variants of a release by their platforms, without those that are left out."""
    found: dict[str, dict[str, tuple[VariantRule, ClassifiedBuild]]] = {}
    for build in sort_assets(release, rules).builds:
        if not any(asset.name in release.left_out for asset in build.artifacts):
            for variant in build.rule.variants:
                found.setdefault(build.rule.platform, {})[variant.name] = (variant, build)
    return found


def _less(
    old: ClassifiedBuild, new: ClassifiedBuild, contents: Mapping[str, Contents]
) -> list[str]:
    """Return which libraries a build lacks, and whether its size is out of proportion."""
    if not all(asset.sha256 in contents for build in (old, new) for asset in build.artifacts):
        return []  # one of them was not measured
    records = [[contents[asset.sha256] for asset in build.artifacts] for build in (old, new)]
    brought = [{_plain(name) for each in record for name in each.brings} for record in records]
    missing = sorted(name for name in brought[0] - brought[1] if name)
    sizes = [sum(each.listing["size"] for each in record) for record in records]
    found = [f"its library {name}" for name in missing]
    if max(sizes) > _FACTOR * max(min(sizes), 1):
        found.append("its size, more than threefold" if sizes[1] > sizes[0] else "its size")
    return found


def _plain(name: str) -> str:
    """Return a library's name without versions; empty for another file."""
    found = _LIBRARY.fullmatch(name)
    return f"{found[1]}.{found[2]}" if found else ""


def _require_fit(
    release: UpstreamRelease,
    build: ClassifiedBuild,
    rules: Rules,
    contents: Mapping[str, Contents],
    unread: Mapping[str, str],
) -> None:
    """Refuse a build that was not read, that contradicts its rule, or whose rule is wrong.

    A build without a server that its platform can run is none, whatever its name says.

    Raises ``PublishError``.
    """
    for asset in build.artifacts:
        if asset.sha256 not in contents:
            raise PublishError(unread.get(asset.name, f"{asset.name} was not read"))
    _require_server(build.rule.platform, contents[build.artifacts[0].sha256])
    for package in rules.packages(build.rule, release.tag):
        if package.sha256 not in contents:
            raise PublishError(f"{package.file} of makers.toml was not read")
    with reading("its rule in rules.toml"):
        # The rule alone, then with what was measured.
        document = document_of_one(release, build, rules)
        records = recorded(digests_of(build, rules, release.tag), contents)
        for variant in build.rule.variants:
            requirements(build.required(variant, rules), records, rules.libraries)
    try:
        require_release(document)
    except ManifestError as error:
        # The client's hint (update the program) would be wrong here.
        raise PublishError(f"its rule in rules.toml is wrong: {in_one_line(error)}") from error


def _require_server(platform: str, build: Contents) -> None:
    name = SERVERS[platform.startswith("windows-")]
    found = [each for each in build.listing["files"] if each["path"] == name]
    if not found:
        raise PublishError(f"it has no {name} at its top")
    # Windows files have no such mark.
    if name == SERVERS[0] and not found[0].get("executable"):
        raise PublishError(f"its {name} is not executable")
    if build.servers is None:
        return
    here = build.servers.get(name, ())
    if platform not in here:
        runs = ", ".join(here) or "no platform that is known"
        raise PublishError(f"its {name} runs on {runs}, and not on {platform}")


def channel_after(
    before: Sequence[str], state: FeedState, settings: FeedSettings, needed: Collection[str]
) -> tuple[str, ...]:
    """Return the channel, newest first: the newest builds, and those that are still ``needed``.

    A stopped release leaves the channel. If it is the head, it stays until a newer build takes its
    place: whoever can make upstream answer wrongly could lead all users back to an older build
    otherwise. People may accept that, and the newest healthy build is the head then.
    """
    every = sorted({*before, *state.taken}, key=number, reverse=True)
    head = max(before, key=number, default="")
    healthy = [tag for tag in every if tag not in state.stopped]
    newer = bool(healthy) and number(healthy[0]) >= number(head or "b0")
    stays = head in state.stopped and not newer and head not in state.accepted
    kept = {*healthy[: settings.keep], *needed, *([head] if stays or not healthy else ())}
    return tuple(tag for tag in every if tag in kept)


def proposal(
    versions: Mapping[str, str],
    stable: Sequence[str],
    variants: Mapping[str, Collection[str]],
    since: Mapping[str, datetime],
    settings: FeedSettings,
    now: datetime,
) -> StableProposal | None:
    """Return the newest build of a stable version that was in the channel for long enough.

    ``variants`` are those of each recorded release, as "platform/variant". ``since`` is what the
    channel's signer states of the releases that may be promoted.
    """
    head = max((number(tag) for tag in stable), default=-1)
    ready = [
        (number(tag), version)
        for version, tag in versions.items()
        if number(tag) > head and tag in since and now - since[tag] >= settings.soak
    ]
    if not ready:
        return None
    version = max(ready)[1]
    tag = versions[version]
    replaced = max(stable, key=number, default=None)
    new, old = {*variants.get(tag, ())}, {*variants.get(replaced or "", ())}
    return StableProposal(
        release=tag,
        version=version,
        since=f"{since[tag]:%Y-%m-%dT%H:%M:%SZ}",
        hours=int((now - since[tag]).total_seconds() // 3600),
        replaces=replaced,
        new=tuple(sorted(new - old)),
        gone=tuple(sorted(old - new)),
    )
