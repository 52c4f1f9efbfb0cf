"""Which archives belong into a mirror: all that are signed, or those that an operator names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.manifest import Artifact, Platform, Release, ReleaseEntry, Variant
from tsuku_llm.choose.selection import Request, known_request, select, variants_for
from tsuku_llm.ground.errors import UnknownRequest, did_you_mean
from tsuku_llm.machine.hardware import Hardware
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.probe import probe
from tsuku_llm.steps.session import Session


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What an operator wants of a repository; an empty field narrows nothing.

    ``machines`` are files of recorded machines: with them, only variants that fit at least one.
    """

    platforms: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    machines: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class MirrorContents:
    """The archives that belong into a mirror, each once, and the tags of their releases."""

    releases: tuple[str, ...]
    artifacts: tuple[Artifact, ...]


def contents_of(session: Session, catalog: Catalog, narrow: Narrowing) -> MirrorContents:
    """Return the archives of the wanted builds, the newest release first.

    Revoked releases, and those that this version cannot read, are left out with a note. Raises
    ``UnknownRequest`` for a name that does not exist, and if nothing is left. Raises
    ``SnapshotError`` for a file that is no recorded machine.
    """
    machines = [probe(ReplayHost.load(path)) for path in narrow.machines]
    entries = []
    for entry in _named(catalog, narrow):
        if why := catalog.revocation(entry):
            session.user.note(f"{entry.release} was {why.summary}; it is left out")
        else:
            entries.append(entry)
    releases = [release for _, release in catalog.readable(entries, session.user.note)]
    _require_known(releases, narrow)
    wanted: list[Artifact] = []
    tags = []
    for release in releases:
        variants = list(_variants(release, narrow, machines))
        tags += [release.release] if variants else []
        wanted += chain.from_iterable(each.artifacts for each in variants)
    if not wanted:
        raise UnknownRequest(
            "no build of this repository is all of what was asked for",
            facts=tuple(f"{release.release}: {_offer(release)}" for release in releases),
            hint="leave out one of the options that narrow the mirror",
        )
    return MirrorContents(tuple(tags), tuple(each_once(wanted).values()))


def each_once(artifacts: Iterable[Artifact]) -> dict[str, Artifact]:
    """Return each archive once, by its digest, with its size if one of them names that."""
    found: dict[str, Artifact] = {}
    for artifact in artifacts:
        known = found.get(artifact.sha256)
        if known is None or known.size is None:
            found[artifact.sha256] = artifact
    return found


def _named(catalog: Catalog, narrow: Narrowing) -> tuple[ReleaseEntry, ...]:
    """Return the releases of the named channels that are named. Raises ``UnknownRequest``."""
    entries = catalog.entries
    if narrow.channels:
        chosen = {each.release for name in narrow.channels for each in catalog.releases(name)}
        entries = tuple(each for each in entries if each.release in chosen)
    if narrow.releases:
        chosen = {catalog.entry(name).release for name in narrow.releases}
        entries = tuple(each for each in entries if each.release in chosen)
    return entries


def _require_known(releases: Sequence[Release], narrow: Narrowing) -> None:
    """Refuse a platform or backend that none of the releases has, before anything is fetched."""
    platforms = {name: each for release in releases for name, each in release.platforms.items()}
    for name in narrow.platforms:
        if name not in platforms:
            raise UnknownRequest(
                f"no release has a build for the platform {name!r}",
                facts=(f"platforms: {', '.join(sorted(platforms))}",),
                hint=did_you_mean(name, platforms, "name one of them with --platform"),
            )
    variants = {
        variant.name: variant
        for release in releases
        for platform in release.platforms.values()
        for variant in platform.variants
    }
    for word in narrow.backends:
        known_request(word, variants)


def _variants(
    release: Release, narrow: Narrowing, machines: Sequence[Hardware]
) -> Iterator[Variant]:
    for platform in release.platforms.values():
        if narrow.platforms and platform.name not in narrow.platforms:
            continue
        fitting = _fitting(release, platform, machines)
        for variant in platform.variants:
            if variant.name in fitting and is_wanted(variant, platform, narrow.backends):
                yield variant


def _fitting(release: Release, platform: Platform, machines: Sequence[Hardware]) -> set[str]:
    """Return the names of the variants that fit one of the machines; all without machines."""
    if not machines:
        return {variant.name for variant in platform.variants}
    # Not only the best: if it does not start there, an install takes the next one.
    return {
        candidate.variant.name
        for machine in machines
        if machine.platform == platform.name
        for candidate in select(release, machine, Request()).compatible
    }


def is_wanted(variant: Variant, platform: Platform, backends: Sequence[str]) -> bool:
    """Tell whether one of these backends needs a variant; without backends each is."""
    for word in backends:
        # A variant of another platform may have this name.
        with suppress(UnknownRequest):
            if any(variant in each.signed for each in variants_for(word, platform)):
                return True
    return not backends


def _offer(release: Release) -> str:
    """Say which platforms and variants a release has."""
    return "; ".join(
        f"{name}: {', '.join(variant.name for variant in platform.variants)}"
        for name, platform in release.platforms.items()
    )
