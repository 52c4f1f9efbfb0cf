"""Release files: one JSON document per release, with the same bytes for the same data."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tsuku_llm.catalog.manifest import Head
from tsuku_publish.archives.contents import SERVERS, Contents
from tsuku_publish.archives.system_libraries import not_of_the_system
from tsuku_publish.errors import PublishError
from tsuku_publish.upstream.classify import ClassifiedBuild, Rules, classify
from tsuku_publish.upstream.facts import Asset, UpstreamRelease

FORMAT = 1
PUBLISHER = "ggml-org"

_FLOORS = ("glibc", "libstdcxx", "macos", "vcruntime")


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """One target of the repository: its path, its bytes, and the fields that are signed with it.

    ``role`` signs it: targets, or the role of a delegated channel.
    """

    path: str
    data: bytes
    custom: Mapping[str, Any]
    role: str = "targets"

    @property
    def sha256(self) -> str:
        """The digest by which the role names it."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def name(self) -> str:
        """The file's path in the repository."""
        folder, _, file = self.path.rpartition("/")
        return f"targets/{folder}/{self.sha256}.{file}"


class UnknownLibraries(PublishError):
    """``libraries`` that a build needs, and that neither it nor ``rules.toml`` has."""

    def __init__(self, libraries: Collection[str]) -> None:
        names = ", ".join(sorted(libraries))
        super().__init__(f"it needs libraries that no rule knows: {names}")
        self.libraries = libraries


def release_document(
    release: UpstreamRelease, rules: Rules, contents: Mapping[str, Contents]
) -> dict[str, Any]:
    """Return the release file of an upstream release; ``contents`` are records by SHA-256.

    Raises ``PublishError``.
    """
    platforms: dict[str, Any] = {}
    for build in classify(release, rules):
        platform, tag = build.rule.platform, release.tag
        records = recorded(digests_of(build, rules, tag), contents)
        archives = [
            artifact(asset, *layout(asset.name, tag), contents.get(asset.sha256))
            for asset in build.artifacts
        ]
        archives += [
            artifact(each.asset, "wheel", each.root, contents.get(each.sha256))
            for each in rules.packages(build.rule, tag)
        ]
        for variant in build.rule.variants:
            arguments = {"arguments": list(variant.arguments)} if variant.arguments else {}
            platforms.setdefault(platform, {})[variant.name] = {
                "backend": variant.backend,
                "server": SERVERS[platform.startswith("windows-")],
                **arguments,
                "requires": requirements(build.required(variant, rules), records, rules.libraries),
                "artifacts": [*archives],
            }
    head = Head(
        release=release.tag,
        version=release.version,
        publisher=PUBLISHER,
        published=release.published,
        unattested=release.unattested,
        unmeasured=release.unmeasured,
    )
    present = [name for name in rules.platforms if name in platforms]
    return document(head, {name: _platform(name, platforms[name], rules) for name in present})


def document_of_one(
    release: UpstreamRelease, build: ClassifiedBuild, rules: Rules
) -> dict[str, Any]:
    """Return a release file with one build alone, to see whether clients would understand its rule.

    Nothing that was measured is in it. Raises ``PublishError``.
    """
    first = build.rule.variants[0].name
    platform = rules.platforms[build.rule.platform]
    platforms = {build.rule.platform: replace(platform, default=first)}
    one = replace(rules, platforms=platforms, builds=(build.rule,), wrong=())
    only = replace(release, assets=build.artifacts, left_out={})
    return release_document(only, one, {})


def document(head: Head, platforms: Mapping[str, Any]) -> dict[str, Any]:
    """Return a release file's content."""
    return {
        "format": FORMAT,
        "release": head.release,
        **({"version": head.version} if head.version else {}),
        "publisher": head.publisher,
        "published": head.published,
        "revoked": head.revoked,
        **({"unattested": head.unattested} if head.unattested else {}),
        **({"unmeasured": head.unmeasured} if head.unmeasured else {}),
        "platforms": dict(platforms),
    }


def artifact(asset: Asset, archive: str, root: str, contents: Contents | None) -> dict[str, Any]:
    """Return one archive of a variant, with its listing if it was read.

    An unknown size is left out.
    """
    listing = dict(contents.listing) if contents else {}
    size = listing.pop("size", asset.size)
    known = {} if size is None else {"size": size}
    name = {"url": asset.url, "sha256": asset.sha256}
    return {**name, **known, "format": archive, "root": root, **listing}


def digests_of(build: ClassifiedBuild, rules: Rules, tag: str) -> tuple[str, ...]:
    """Return the digests of all archives of a build, the build itself first."""
    packages = (each.sha256 for each in rules.packages(build.rule, tag))
    return (*(asset.sha256 for asset in build.artifacts), *packages)


def recorded(digests: Iterable[str], contents: Mapping[str, Contents]) -> list[Contents]:
    """Return the records of a variant's archives; none if one of them was not read."""
    records = [contents.get(digest) for digest in digests]
    return [each for each in records if each] if all(records) else []


def release_file(
    data: Mapping[str, Any], channels: Iterable[str], role: str = "targets", **more: Any
) -> ReleaseFile:
    """Return the bytes of a release file, and the entry that is signed with it.

    The entry has what a list of releases needs, so that no release file must be read for the list.
    ``sequence`` orders releases: it is upstream's build number. ``more`` are further fields.
    """
    tag = data["release"]
    number = tag.removeprefix("b")
    if not number.isdecimal():
        raise PublishError(f"{tag}: a release is named b and its build number")
    entry = {
        key: data[key] for key in ("release", "version", "publisher", "published") if key in data
    }
    return ReleaseFile(
        path=f"releases/{tag}.json",
        data=json_bytes(data),
        custom={**entry, "sequence": int(number), "channels": sorted(channels), **more},
        role=role,
    )


def check_listed(data: Mapping[str, Any]) -> None:
    """Refuse a release file with an archive whose files are not listed.

    Raises ``PublishError``.
    """
    unlisted = {
        artifact["url"].rpartition("/")[2]
        for platform in data["platforms"].values()
        for variant in platform["variants"].values()
        for artifact in variant["artifacts"]
        if "files" not in artifact
    }
    if unlisted:
        tag = data["release"]
        names = ", ".join(sorted(unlisted))
        raise PublishError(f"{tag}: no files are listed for {names}; run: refresh {tag} --download")


def json_bytes(data: Any) -> bytes:
    """Return JSON that people can review: two spaces, one line feed at the end."""
    return (json.dumps(data, indent=2, ensure_ascii=True) + "\n").encode()


def _platform(name: str, variants: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """Return a platform's entry; backends without a build in this release are left out."""
    platform = rules.platforms[name]
    if platform.default not in variants:
        raise PublishError(f"{name}: there is no variant {platform.default}, its default")
    present = {variant["backend"] for variant in variants.values()}
    # A backend in no order could never be chosen by preference.
    missing = present - {backend for order in platform.preference.values() for backend in order}
    if missing:
        raise PublishError(f"{name}: no preference for {', '.join(sorted(missing))}")
    preference = {
        policy: [backend for backend in order if backend in present]
        for policy, order in platform.preference.items()
    }
    return {"default": platform.default, "preference": preference, "variants": dict(variants)}


def layout(name: str, tag: str) -> tuple[str, str]:
    """Return the format and the top folder of an upstream asset.

    A zip file is flat, and the top folder of a CUDA companion has the companion's name.
    """
    if name.endswith(".zip"):
        return "zip", ""
    stem = name.removesuffix(".tar.gz")
    return "tar.gz", stem if name.startswith("cudart-") else f"llama-{tag}"


# --- what a variant requires: measured values replace those that the rules assume --------------


def requirements(
    assumed: Mapping[str, Any], archives: Sequence[Contents], known: Collection[str]
) -> dict[str, Any]:
    """Return a variant's requirements, from the rules and the records of its archives.

    The first archive is the build itself, and only its device code counts: a companion's cuBLAS has
    code for other devices, too. Without records the rules' values stay. Raises ``PublishError`` for
    device code that the rules do not expect, for expected device code that is missing, and for a
    library that neither the archives bring nor every system has, unless it is in ``known``: those
    are what clients look for on each machine.
    """
    if not archives:
        return dict(assumed)
    needed = {library for each in archives for library in each.libraries}
    asked = not_of_the_system(needed - {name for each in archives for name in each.brings})
    if unknown := asked - set(known):
        raise UnknownLibraries(unknown)
    code = _measured_cuda(assumed, archives[0]) | _measured_rocm(assumed, archives[0])
    # What was assumed of libraries does not count where the files show what they need.
    found = {key: value for key, value in assumed.items() if key != "libraries"}
    libraries = {"libraries": sorted(asked)} if asked else {}
    return {**found, **_measured_floors(archives), **libraries, **code}


def _measured_floors(archives: Sequence[Contents]) -> dict[str, str]:
    found = {
        name: [each.floors[name] for each in archives if name in each.floors] for name in _FLOORS
    }
    return {
        name: max(floors, key=lambda floor: [*map(int, floor.split("."))])
        for name, floors in found.items()
        if floors
    }


def _measured_cuda(assumed: Mapping[str, Any], build: Contents) -> dict[str, Any]:
    codes = [*build.device_code.values()]
    if "cuda" not in assumed:
        if codes:
            raise PublishError(f"{', '.join(build.device_code)}: CUDA code that no rule expects")
        return {}
    # One set of architectures holds for the whole variant, so two different ones cannot be stated.
    if not codes or any(code != codes[0] for code in codes):
        raise PublishError(f"{len(codes)} of its files have CUDA code; one is expected")
    return {"cuda": {**assumed["cuda"], **codes[0]}}


def _measured_rocm(assumed: Mapping[str, Any], build: Contents) -> dict[str, Any]:
    """Return the GPUs of a HIP build; a list that cannot be read leaves the rule's."""
    found = [*build.gfx.values()]
    if not found:
        return {}
    if "rocm" not in assumed:
        raise PublishError(f"{', '.join(build.gfx)}: HIP code that no rule expects")
    if any(each != found[0] for each in found):
        raise PublishError(f"{len(found)} of its files have HIP code; one is expected")
    return {"rocm": {**assumed["rocm"], "gfx": found[0]}}
