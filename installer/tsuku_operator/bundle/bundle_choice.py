"""Which builds belong into a bundle: those that an install would try on each of its machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.manifest import Platform, Release, ReleaseEntry, Variant
from tsuku_llm.choose.selection import known_request, variants_for
from tsuku_llm.fetch.places.bundle_file import BundledBuild
from tsuku_llm.ground.errors import SelectionError, UnknownRequest, did_you_mean
from tsuku_llm.machine.hardware import Hardware
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.probe import probe
from tsuku_llm.steps.choosing.choice import choose, conflict_in, refuse_revoked, required, way_out
from tsuku_llm.steps.choosing.revocation import revoked
from tsuku_llm.steps.session import DEFAULT_CHANNEL, Session
from tsuku_operator.bundle.program_wheels import USUAL_GLIBC
from tsuku_operator.mirror.mirror_choice import is_wanted


@dataclass(frozen=True, slots=True)
class BundleWish:
    """What an operator wants in a bundle.

    ``machines`` are files of recorded machines, ``platforms`` names such as ``linux-amd64``.
    Without both it is for a machine like this one. Empty ``backends`` mean all that an install
    tries.
    ``release`` is None for the newest. ``pythons`` are those of the machines. ``wheel`` is the
    program's own wheel, None to take it from the running copy; ``program`` is False for a bundle
    without the program.
    """

    platforms: tuple[str, ...] = ()
    machines: tuple[Path, ...] = ()
    backends: tuple[str, ...] = ()
    release: str | None = None
    pythons: tuple[str, ...] = ()
    program: bool = True
    wheel: Path | None = None


@dataclass(frozen=True, slots=True)
class ChosenBuild:
    """A build for one platform, and what ``bundle.json`` says of it."""

    release: Release
    variant: Variant
    told: BundledBuild

    @classmethod
    def of(cls, release: Release, channel: str, platform: str, variant: Variant) -> ChosenBuild:
        """Return a variant that was chosen from a channel."""
        archives = tuple(each.sha256 for each in variant.artifacts)
        told = BundledBuild(release.release, channel, platform, variant.name, archives)
        return cls(release, variant, told)


@dataclass(frozen=True, slots=True)
class BundleContents:
    """The builds, each once, and the platforms with the oldest glibc of their machines."""

    builds: tuple[ChosenBuild, ...]
    platforms: tuple[tuple[str, str], ...]


def bundle_contents(session: Session, catalog: Catalog, wish: BundleWish) -> BundleContents:
    """Choose the builds for each machine and each platform.

    For a machine these are all that fit, because an install takes the next one if the best does not
    start. Raises ``SelectionError`` if none fits one of them, ``UnknownRequest``, ``Revoked``,
    ``SnapshotError``, and the errors of ``choose``.
    """
    platforms: dict[str, str] = dict.fromkeys(wish.platforms, USUAL_GLIBC)
    found: dict[tuple[str, ...], ChosenBuild] = {}
    machines = [(str(path), probe(ReplayHost.load(path))) for path in wish.machines]
    if machines or wish.platforms:
        # What this machine is to stay at, or to avoid, says nothing about others.
        session = session.with_settings(backend="auto", release=None, hold=False, min_age=0)
    else:
        machines = [("this machine", probe(session.machine.host, session.settings.probe_timeout))]
    for name, hardware in machines:
        for build in _for_machine(session, catalog, wish, name, hardware):
            found[build.told.release, build.told.platform, build.told.variant] = build
        libc = hardware.libc
        here = libc.version if libc and libc.name == "glibc" else None
        before = platforms.get(hardware.platform, here or USUAL_GLIBC)
        platforms[hardware.platform] = min(
            before, here or USUAL_GLIBC, key=lambda glibc: int(glibc.split(".")[1])
        )
    for platform in wish.platforms:
        for build in _for_platform(session, catalog, wish, platform):
            found[build.told.release, build.told.platform, build.told.variant] = build
    return BundleContents(
        tuple(found[key] for key in sorted(found)), tuple(sorted(platforms.items()))
    )


def _for_machine(
    session: Session, catalog: Catalog, wish: BundleWish, name: str, hardware: Hardware
) -> Iterator[ChosenBuild]:
    for backend in wish.backends or (session.settings.backend,):
        wanted = session.with_settings(backend=backend)
        try:
            choice = choose(wanted, release=wish.release, hardware=hardware, catalog=catalog)
            refuse_revoked(choice, allow_revoked=wanted.allow_revoked)
            _ = required(wanted, choice)
        except SelectionError as error:
            error.message = f"{name}: {error.message}"
            raise
        for candidate in choice.selection.compatible:
            yield ChosenBuild.of(
                choice.release, choice.channel, hardware.platform, candidate.variant
            )


def _has_all(platform: Platform, word: str) -> bool:
    """Tell whether a platform has all signed builds that a version of this backend is made of."""
    with suppress(UnknownRequest):
        made = [each for each in variants_for(word, platform) if each.parts]
        return not made or any(conflict_in(each) is None for each in made)
    return False


def _for_platform(
    session: Session, catalog: Catalog, wish: BundleWish, platform: str
) -> Iterator[ChosenBuild]:
    """Choose the newest release that has what is wanted for a platform."""
    channel = session.settings.channel or DEFAULT_CHANNEL
    entries: tuple[ReleaseEntry, ...] = ()
    if wish.release:
        entries = (catalog.entry(wish.release),)
        channel = session.settings.channel or next(iter(entries[0].channels), channel)
    else:
        entries = catalog.releases(channel)
    offered: dict[str, None] = {}
    for entry, release in catalog.readable(entries, session.user.note):
        if why := catalog.revocation(entry):
            if wish.release:
                raise revoked(entry.release, why, way_out(catalog, entry.channels))
            session.user.note(f"{entry.release} was {why.summary}; it is left out")
            continue
        offered |= dict.fromkeys(release.platforms)
        there = release.platforms.get(platform)
        if there is None:
            continue
        for word in wish.backends:
            known_request(word, [each.name for each in there.variants])
        # Half of what was asked for is not enough: an older release may have both.
        if not all(_has_all(there, word) for word in wish.backends):
            continue
        builds = [each for each in there.variants if is_wanted(each, there, wish.backends)]
        if builds:
            yield from (ChosenBuild.of(release, channel, platform, each) for each in builds)
            return
    raise UnknownRequest(
        f"no release has such a build for the platform {platform!r}",
        facts=(f"platforms: {', '.join(sorted(offered))}",),
        # A platform that exists is not suggested again: it has builds, but other ones.
        hint="name another platform, backend or release"
        if platform in offered
        else did_you_mean(platform, offered, "name another platform"),
    )
