"""The making of a bundle: the program, metadata and builds in one file for other machines."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from tsuku_llm import __version__, fetch
from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.catalog.repositories import OFFICIAL
from tsuku_llm.fetch.http.urls import file_name
from tsuku_llm.fetch.places.bundle_file import (
    ARTIFACTS,
    DESCRIPTION,
    PROGRAMS,
    SBOM,
    START,
    WHEELS,
    BundleDescription,
    BundledProgram,
    opened_bundle,
)
from tsuku_llm.fetch.places.pip_index import locked_wheels
from tsuku_llm.ground.disk import disk_errors, require_space
from tsuku_llm.ground.errors import (
    DigestMismatch,
    HostUnreachable,
    PackageIndexError,
    ProxyError,
    TlsError,
    UsageError,
    did_you_mean,
)
from tsuku_llm.ground.foreign import open_foreign, read_foreign
from tsuku_llm.ground.records import documented
from tsuku_llm.ground.safe_text import has_secret
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.probe import SYSTEMS, platform_key
from tsuku_llm.steps.choosing.choice import load_catalog
from tsuku_llm.steps.program.signed_program import LockedPackage, parse_lock, program_in
from tsuku_llm.steps.session import INDEX_CHANNEL, Session, network_for
from tsuku_operator.bundle import bundle_start
from tsuku_operator.bundle.bundle_choice import BundleContents, BundleWish, bundle_contents
from tsuku_operator.bundle.bundle_sbom import sbom
from tsuku_operator.bundle.bundle_writer import BundleWriter, describe, written_bundle
from tsuku_operator.bundle.own_wheel import own_wheel
from tsuku_operator.bundle.program_wheels import (
    PLATFORMS,
    PYTHONS,
    ProgramTarget,
    needed_glibc,
    needed_there,
)
from tsuku_operator.mirror.mirror import catalog_to_copy, published_files, through_downloads
from tsuku_operator.mirror.mirror_choice import each_once
from tsuku_operator.mirror.mirror_folder import MARKER, mirror_marker

_CHUNK = 1 << 20
_LARGEST_WHEEL = 256 << 20
"""Bytes of a wheel in a bundle; the largest of this program's own has 5 MB."""


@documented("outcome", "path", "sha256", "size", "*description")
@dataclass(frozen=True, slots=True)
class BundleReport:
    """A bundle; ``outcome`` is planned, created or shown.

    ``sha256`` is that of the whole file, None for a plan. ``size`` is that of the file, or of the
    archives of a plan.
    """

    outcome: str
    path: Path
    description: BundleDescription
    size: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class _ProgramPart:
    """The wheels of the program by their names, and what each target takes of them."""

    wheels: Mapping[str, bytes]
    requirements: Mapping[str, bytes]
    programs: tuple[BundledProgram, ...]


def create_bundle(
    session: Session,
    path: Path,
    wish: BundleWish,
    *,
    force: bool = False,
    dry_run: bool = False,
    lock: str | None = None,
) -> BundleReport:
    """Make a bundle in the file ``path``; it appears when it is complete.

    The newest metadata is fetched first, if its host answers. Archives that were fetched stay after
    an error, and the next run goes on with them. ``force`` replaces a file. ``dry_run`` uses no
    network and writes nothing. ``lock`` has the program's packages, the locked ones if it is None.

    Raises ``UsageError`` for a file that exists, and for a program that cannot be put into it. Also
    raises the errors of ``catalog_to_copy``, of ``bundle_contents`` and of ``fetch``, and
    ``StoreError``.
    """
    path = path.absolute()
    _require_free(path, force=force)
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", hint="make it, or name another one")
    # Before any network is used: these may be the wrong files, and no release has such a platform.
    hosts = [ReplayHost.load(machine) for machine in wish.machines]
    _require_targets(wish, [platform_key(host) for host in hosts])
    own = None
    if wish.program:
        own = _given_wheel(wish.wheel) if wish.wheel else own_wheel()
    if dry_run:
        catalog = load_catalog(session)
        contents = bundle_contents(session, catalog, wish)
        size = sum(each.size or 0 for each in _artifacts(contents))
        return BundleReport("planned", path, _description(catalog, contents, ()), size)
    with session.store.lock_place(path):
        # Another process may have made it while this one waited.
        _require_free(path, force=force)
        catalog = catalog_to_copy(session)
        contents = bundle_contents(session, catalog, wish)
        part = _ProgramPart({}, {}, ())
        if own is not None:
            own = proven_wheel(session, catalog, own, given=wish.wheel is not None)
            part = _program(session, wish, own, contents, lock or _own_lock())
        artifacts = _artifacts(contents)
        size = sum(each.size or 0 for each in artifacts)
        # At the worst an archive is in the folder of downloads and in the bundle at one time.
        require_space(path.parent, size, (f"for the bundle: {size / 1e6:,.1f} MB",))
        description = _description(catalog, contents, part.programs)
        with written_bundle(path) as bundle:
            _write_small(bundle, catalog, contents, description, part)
            try:
                for artifact, file in through_downloads(session, artifacts, "packing"):
                    chunks = _verified_chunks(file, artifact)
                    name = f"{ARTIFACTS}/{artifact.sha256}"
                    bundle.add_chunks(name, file.stat().st_size, chunks)
            except (HostUnreachable, ProxyError, TlsError) as error:
                # An install would take them by itself. What goes to other machines is chosen.
                if INDEX_CHANNEL in catalog.channels and session.settings.channel is None:
                    index = f"--channel {INDEX_CHANNEL}"
                    error.hint += f"; or take the builds of the package index: {index}"
                raise
            sha256 = bundle.finish()
    return BundleReport("created", path, description, path.stat().st_size, sha256)


def _require_free(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", hint="name another file, or add --force")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name a file in it")


def _require_targets(wish: BundleWish, recorded: Sequence[str]) -> None:
    """Refuse a word that is no platform, and a machine for which the program has no wheels.

    ``recorded`` are the platforms of recorded machines. Raises ``UsageError``.
    """
    if strange := [each for each in wish.pythons if each not in PYTHONS]:
        raise UsageError(
            f"tsuku-llm does not run on Python {strange[0]}",
            hint=f"name one of these with --python: {', '.join(PYTHONS)}",
        )
    for platform in wish.platforms:
        system, _, processor = platform.partition("-")
        if system not in SYSTEMS.values() or not processor:
            raise UsageError(
                f"there is no platform {platform!r}",
                facts=(f"platforms: {', '.join(PLATFORMS)}",),
                hint=did_you_mean(platform, PLATFORMS, "name one of them with --platform"),
            )
    for platform in (*wish.platforms, *recorded) if wish.program else ():
        if platform not in PLATFORMS:
            raise UsageError(
                f"the program cannot be put into a bundle for {platform}",
                facts=(f"it can for: {', '.join(PLATFORMS)}",),
                hint="leave it out: --no-program",
            )


def show_bundle(path: Path) -> BundleReport:
    """Describe a bundle, and compare all of it with the digest that it has of itself.

    Raises ``BadBundle``, ``UsageError``.
    """
    path = path.absolute()
    with opened_bundle(path) as bundle:
        sha256 = bundle.sha256()
        return BundleReport("shown", path, bundle.description(), path.stat().st_size, sha256)


def _artifacts(contents: BundleContents) -> list[Artifact]:
    """Return the archives of all builds, each once, in the order of their digests."""
    found = each_once(each for build in contents.builds for each in build.variant.artifacts)
    return [found[sha256] for sha256 in sorted(found)]


def _description(
    catalog: Catalog, contents: BundleContents, programs: tuple[BundledProgram, ...]
) -> BundleDescription:
    repository = catalog.repository
    return BundleDescription(
        __version__,
        repository.name,
        hashlib.sha256(repository.root).hexdigest(),
        # The file goes through many hands. Only a setting of this machine can name such a place,
        # for the official repository, which every machine knows.
        tuple(place for place in repository.places if not has_secret(place)),
        f"{catalog.freshness.expires:%Y-%m-%dT%H:%M:%SZ}",
        tuple(build.told for build in contents.builds),
        programs,
    )


def _write_small(
    bundle: BundleWriter,
    catalog: Catalog,
    contents: BundleContents,
    description: BundleDescription,
    part: _ProgramPart,
) -> None:
    """Write everything but the archives: the description first, so that it is found at once."""
    bundle.add(DESCRIPTION, describe(description))
    bundle.add(START, inspect.getsource(bundle_start).encode())
    bundle.add(SBOM, sbom(__version__, part.wheels, contents.builds))
    files = published_files(catalog)
    digests = [each.sha256 for each in _artifacts(contents)]
    bundle.add(MARKER, mirror_marker(description.fingerprint, digests, files))
    for name in sorted(files):
        bundle.add(name, files[name])
    for name in sorted(part.requirements):
        bundle.add(name, part.requirements[name])
    for name in sorted(part.wheels):
        bundle.add(f"{WHEELS}/{name}", part.wheels[name])


def _verified_chunks(file: Path, artifact: Artifact) -> Iterator[bytes]:
    """Read a verified file, and compare its digest again: another program may have changed it."""
    found = hashlib.sha256()
    with disk_errors("reading an archive", file.parent), open_foreign(file) as opened:
        while chunk := opened.read(_CHUNK):
            found.update(chunk)
            yield chunk
    if found.hexdigest() != artifact.sha256:
        raise DigestMismatch(
            f"{file_name(artifact.url)} was changed while it was packed",
            facts=(f"file: {file}",),
            hint="run the command again",
        )


# --- the program -----------------------------------------------------------------------------


def _own_lock() -> str:
    """Read the lock that is part of this package; the package may be a zipped wheel."""
    return package_files("tsuku_llm").joinpath("locked.txt").read_text("utf-8")


def proven_wheel(
    session: Session, catalog: Catalog, own: tuple[str, bytes], *, given: bool
) -> tuple[str, bytes]:
    """Return the wheel that signed metadata name for this version, if they name one.

    It comes from the package index, unless the user has given it. Else the bundle has the files of
    the running copy, and a note says so. Raises ``DigestMismatch`` for another wheel.
    """
    if catalog.repository.name != OFFICIAL:
        # Only the official one may name the program. Its host may not be reached from here.
        catalog = load_catalog(session.with_settings(repository=OFFICIAL))
    signed = program_in(catalog)
    if signed is None or signed.version != str(Version(__version__)):
        session.user.note(
            f"not signed: no signed metadata name tsuku-llm {__version__}; "
            f"the bundle gets {'the given wheel' if given else 'the files of this copy'}"
        )
        return own
    if given:
        if hashlib.sha256(own[1]).hexdigest() != signed.sha256:
            raise DigestMismatch(
                f"{own[0]} is not the wheel of tsuku-llm {__version__} that was signed",
                facts=(f"signed: sha256 {signed.sha256}",),
                hint="leave out --wheel, or name that wheel",
            )
        return own
    pin = f"tsuku-llm=={signed.version} --hash=sha256:{signed.sha256}"
    with network_for(session) as network:
        found = _by_pip(session, network, pin, (), signed.sha256)
    for name, data in found.items():
        # pip has compared it; the bytes that are packed are compared again.
        if hashlib.sha256(data).hexdigest() == signed.sha256:
            return name, data
    raise DigestMismatch("pip fetched another wheel of this program than the signed one")


def _program(
    session: Session,
    wish: BundleWish,
    wheel: tuple[str, bytes],
    contents: BundleContents,
    lock: str,
) -> _ProgramPart:
    """Collect the program's wheels for each platform and Python; ``wheel`` is its own one."""
    name, data = wheel
    own = f"tsuku-llm=={__version__} --hash=sha256:{hashlib.sha256(data).hexdigest()}"
    wheels, requirements = {name: data}, dict[str, bytes]()
    programs: list[BundledProgram] = []
    packages = parse_lock(lock)
    with network_for(session) as network:
        for platform, glibc in contents.platforms:
            for python in wish.pythons or PYTHONS:
                target = ProgramTarget(platform, python, glibc)
                wanted = needed_there(packages, target)
                session.user.note(f"fetching the program for {platform} with Python {python}")
                files = _wheels_of(session, network, target, wanted)
                member = f"{PROGRAMS}/{platform}-{python}.txt"
                pins = sorted((own, *(_pin(each, files) for each in wanted)))
                requirements[member] = "".join(f"{pin}\n" for pin in pins).encode()
                wheels |= files
                names = tuple(f"{WHEELS}/{each}" for each in sorted((name, *files)))
                programs.append(
                    BundledProgram(platform, python, member, names, needed_glibc(files))
                )
    return _ProgramPart(wheels, requirements, tuple(programs))


def _wheels_of(
    session: Session,
    network: fetch.Network,
    target: ProgramTarget,
    wanted: Sequence[LockedPackage],
) -> dict[str, bytes]:
    """Let pip fetch the wheels of a target; they have the digests of the lock."""
    pins = "\n".join(each.pin for each in wanted)
    key = hashlib.sha256(f"{pins} {target}".encode()).hexdigest()
    try:
        found = _by_pip(session, network, pins, target.options, key)
    except PackageIndexError as error:
        # Some packages have no wheels for every platform.
        error.hint += "; or leave the program out: --no-program"
        raise
    allowed = {digest for each in wanted for digest in each.digests}
    for name, data in found.items():
        if hashlib.sha256(data).hexdigest() not in allowed:
            raise DigestMismatch(
                f"pip fetched another {name} than the locked one",
                hint="tell the operator of the package index",
            )
    return found


def _by_pip(
    session: Session, network: fetch.Network, pins: str, options: tuple[str, ...], key: str
) -> dict[str, bytes]:
    """Let pip fetch wheels into a folder that ``key`` names; return them by their names."""
    partials = session.store.partials
    with (
        session.store.lock(key),
        locked_wheels(pins, options, partials / f"{key}.index", network) as got,
        disk_errors("reading what pip fetched", partials),
    ):
        return {path.name: read_foreign(path, _LARGEST_WHEEL) for path in got}


def _pin(package: LockedPackage, files: Mapping[str, bytes]) -> str:
    """Return the requirement with the digest of the one file that is in the bundle."""
    (data,) = (data for name, data in files.items() if _project(name)[0] == package.name)
    digest = hashlib.sha256(data).hexdigest()
    return f"{package.name}{package.requirement.specifier} --hash=sha256:{digest}"


def _project(wheel: str) -> tuple[str, str]:
    project, version, *_ = parse_wheel_filename(wheel)
    return project, str(version)


def _given_wheel(path: Path) -> tuple[str, bytes]:
    """Read a wheel of this program that the user names. Raises ``UsageError``."""
    try:
        project, version = _project(path.name)
        data = read_foreign(path, _LARGEST_WHEEL)
    except (InvalidWheelFilename, OSError) as error:
        raise UsageError(
            f"{path} is no wheel that can be read", facts=(str(error),), hint="see: ci/package OUT"
        ) from error
    if (project, version) != ("tsuku-llm", __version__):
        raise UsageError(
            f"{path} is not the wheel of tsuku-llm {__version__}",
            facts=(f"it is {project} {version}",),
            hint="make the bundle with the program that the wheel has",
        )
    return path.name, data
