"""The choice of a release and its variants, made from the catalog, the probe and the selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from packaging.version import Version

from tsuku_llm.archive.composing import kept_artifacts
from tsuku_llm.catalog import loading
from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.manifest import Release, ReleaseEntry, Variant
from tsuku_llm.catalog.repositories import OFFICIAL
from tsuku_llm.catalog.revocations import Revocation
from tsuku_llm.choose.chain.judging import remedy
from tsuku_llm.choose.chain.ways import Way, ways_to_gpus
from tsuku_llm.choose.fitting import BY_COMPILING, Reason, system_obstacle
from tsuku_llm.choose.selection import Candidate, Rejection, Request, Selection, select
from tsuku_llm.ground.errors import (
    GateFailed,
    ManifestError,
    Revoked,
    SelectionError,
    StoreError,
    TrustError,
    TsukuError,
    UnknownRequest,
    WrongBundle,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.machine.backends import facts_of
from tsuku_llm.machine.hardware import Hardware, Problem
from tsuku_llm.probe import libc, probe, program
from tsuku_llm.steps.choosing.passing_over import (
    NOT_IN_BUNDLE,
    RELEASE,
    REVOKED,
    Bounds,
    Kept,
    Offered,
    PassedOver,
    take,
    why_passed_over,
)
from tsuku_llm.steps.choosing.revocation import note_others, revoked
from tsuku_llm.steps.session import (
    DEFAULT_CHANNEL,
    Session,
    note_place,
    repository_of,
    way_to_undo,
)
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import version_id
from tsuku_llm.store.records.updates import RolledBack, read_marks


@documented(
    *("*selection", "selected", "*release", "repository", "stale", "revocation"),
    *("channel", "kept_by", "passed_over", "platform", "simulated", "problems", "ways", "hint"),
)
@dataclass(frozen=True, slots=True)
class Choice:
    """A release, this machine, and how the release's variants compare here.

    ``sequence`` is the release's place in the signed order of releases. ``revocation`` is set if
    this release was revoked. ``passed_over`` says of the releases of the channel that were not
    taken why, newest first. ``kept_by`` is the setting that named the release. ``hint`` is
    ``what_helps``, if no variant fits. ``ways`` are the cheapest ways to GPUs that are not used, if
    the user left the choice of a backend to the machine. ``stale`` says that the metadata has
    expired, or that this machine's clock must be wrong.
    """

    catalog: Catalog
    channel: str
    sequence: int
    release: Release
    hardware: Hardware
    selection: Selection
    revocation: Revocation | None = None
    passed_over: tuple[PassedOver, ...] = ()
    kept_by: str | None = None
    hint: str | None = None
    stale: str | None = None
    ways: tuple[Way, ...] = ()

    @property
    def best(self) -> Candidate | None:
        """The candidate that fits best; None if none fits."""
        return next(iter(self.selection.compatible), None)

    @property
    def selected(self) -> str | None:
        """The name of the variant that fits best; None if none fits."""
        return self.best.variant.name if self.best else None

    @property
    def repository(self) -> str:
        """The repository of the release."""
        return self.catalog.repository.name

    @property
    def platform(self) -> str:
        """The system and processor for which it was made."""
        return self.hardware.platform

    @property
    def simulated(self) -> str | None:
        """The recorded machine that replaces this one, if one does."""
        return self.hardware.simulated

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The known problems of the machine."""
        return self.hardware.all_problems

    def line(self, candidate: Candidate | None) -> str:
        """Return the line of the decision, which every start prints and the receipt keeps."""
        detected = ",".join(self.selection.detected)
        selected = candidate.variant.name if candidate else "none"
        line = f"requested={self.selection.requested} detected=[{detected}] selected={selected}"
        return f"{line} hardware={self.hardware.simulated}" if self.hardware.simulated else line


def version_of(release: str, variant: Variant) -> str:
    """Return the id of the installed version that a variant of a release becomes."""
    return version_id(release, variant.name, (artifact.sha256 for artifact in variant.artifacts))


def load_catalog(session: Session) -> Catalog:
    """Load the newest valid metadata of the session's repository, from disk only."""
    repository = repository_of(session.paths.data, session.settings)
    # Another repository may have revoked the same archives: its word counts as well.
    note_others(session, but=repository.name)
    catalog = loading.load(repository, session.paths.data)
    for note in catalog.notes:
        session.user.note(note)
    return catalog


def staying(session: Session) -> Session:
    """Return the session of a user who stays at the installed release, if ``llm.release`` says so.

    The release is then the active one, with its channel and repository. A setting or a flag for
    another repository ends the hold.
    """
    settings = session.settings
    if not settings.hold or settings.release:
        return session
    try:
        installed = session.reader.active()
    except StoreError as error:
        # An install is what repairs this, so it must go on.
        session.user.note(f"{RELEASE} holds nothing: {error.message}")
        return session
    if installed is None:
        return session
    active = installed.receipt
    if settings.repository not in {None, active.repository}:
        return session
    if "channel" in settings.flags and settings.channel != active.channel:
        session.user.note(
            f"--channel {settings.channel} changes nothing: {RELEASE} keeps {active.release} of "
            f"the channel {active.channel}; to end that: {TSUKU} config unset {RELEASE}"
        )
    return session.with_settings(
        release=active.release, repository=active.repository, channel=active.channel
    )


def choose(
    session: Session,
    *,
    release: str | None = None,
    hardware: Hardware | None = None,
    catalog: Catalog | None = None,
) -> Choice:
    """Decide, without a network, what would be installed.

    ``release`` names a release ("b11429", "v0.6.0"), and so does the setting. Without both, this
    takes the newest release that has a variant for this machine and request, from the session's
    channel, or ``stable``. If none has such a variant, it takes the newest release. A revoked
    release, one that is younger than ``llm.min_age``, and one that was rolled back here are taken
    only by their names. A release that cannot be read is left out with a note.

    Raises ``UnknownRequest`` for names that do not exist. Raises ``Revoked`` if all releases of the
    channel are revoked, or the named one was revoked and dropped. Raises ``SelectionError`` if
    all are passed over, ``WrongBundle`` if a bundle has none. Raises ``TrustError`` for
    metadata that does not verify, and for a release file that cannot be read if it is named or the
    only one.
    """
    catalog = catalog or load_catalog(session)
    hardware = hardware or probe(session.machine.host, session.settings.probe_timeout)
    kept: Kept | None = None
    if release is None and session.settings.release:
        undo = way_to_undo(session.settings, session.machine.environ, RELEASE)
        kept = Kept(session.settings.release, undo)
    if release := release or session.settings.release:
        try:
            entry = _named(catalog, release)
        except UnknownRequest as error:
            if kept:
                note_place(session.settings, "release", error)
                error.hint = f"{RELEASE} names it; {_way_to_leave(kept)}"
            raise
        named = session.settings.channel or next(iter(entry.channels), DEFAULT_CHANNEL)
        left = _newer(session, catalog, named, entry, kept) if kept else ()
        choice = _compared(session, catalog, named, (entry, catalog.read(entry)), hardware)
        return replace(
            choice,
            revocation=catalog.revocation(entry),
            kept_by=RELEASE if kept else None,
            passed_over=left,
        )
    channel = session.settings.channel or DEFAULT_CHANNEL
    try:
        entries, passed_over = _usable(session, catalog, channel, hardware.platform)
    except UnknownRequest as error:
        note_place(session.settings, "channel", error)
        raise
    read: list[tuple[ReleaseEntry, Release]] = []
    why_not: dict[str, str] = {}
    attainable = None
    # The newest release comes first; the first one that has a fitting variant wins.
    for found in catalog.readable(entries, session.user.note):
        # A release without a build for this platform does not end the search.
        with suppress(UnknownRequest):
            choice = _compared(session, catalog, channel, found, hardware)
            if choice.selection.compatible:
                if read:
                    newer = ", ".join(each.release for each, _ in read)
                    taken, variant = found[0].release, choice.selection.selected.variant.name
                    lacks = f": {variant}: {why_not[variant]}" if variant in why_not else ""
                    session.user.note(
                        f"{taken} is the newest that fits this machine, not {newer}{lacks}"
                    )
                break
            if attainable is None and _lacks_only_a_gpu(choice):
                attainable = found
            why_not |= {
                each.variant.name: each.reason.text
                for each in choice.selection.rejected
                if each.variant.name not in why_not
            }
        read.append(found)
    else:
        # So that the caller can say why each variant does not fit: of the newest release to which
        # a driver leads, else of the newest.
        found = attainable or read[0]
        choice = _compared(session, catalog, channel, found, hardware)
    # A release that is revoked got here only if that is allowed.
    why = catalog.revocation(found[0]) if session.allow_revoked else None
    return replace(choice, revocation=why, passed_over=passed_over)


def _lacks_only_a_gpu(choice: Choice) -> bool:
    """Tell whether the system could run a variant that was asked for, if it had the GPU."""
    asked = (each for each in choice.selection.rejected if each.reason.slug != "not-requested")
    return any(system_obstacle(each.variant, choice.hardware) is None for each in asked)


def _newer(
    session: Session, catalog: Catalog, channel: str, entry: ReleaseEntry, kept: Kept
) -> tuple[PassedOver, ...]:
    """Return why the newer releases of the channel are not taken, and print the newest."""
    name, now, allow = catalog.repository.name, session.machine.now, session.allow_revoked
    bounds = Bounds(name, now, allow_revoked=allow, kept=kept._replace(release=entry.release))
    found = [
        why_passed_over(offered(catalog, each), bounds)
        for each in catalog.entries
        if channel in each.channels and each.sequence > entry.sequence
    ]
    if newest := next((each[0] for each in found if each[0].slug != REVOKED), None):
        session.user.note(f"{newest.release} is there, and {newest.text}; {_way_to_leave(kept)}")
    return tuple(chain.from_iterable(found))


def _way_to_leave(kept: Kept) -> str:
    return f"to take the newest release: {kept.undo}"


def required(session: Session, choice: Choice) -> Candidate:
    """Return the best candidate of a choice.

    Raises ``SelectionError`` with every reason, and with the one thing that helps on this machine.
    """
    try:
        return choice.selection.selected
    except SelectionError as error:
        if session.held is not None:
            raise _nothing_held("no build that fits this machine", error.facts) from error
        error.hint = what_helps(session, choice)
        raise


def what_helps(session: Session, choice: Choice, active: str = "") -> str:
    """Say the one thing that helps on this machine if no variant of a choice fits.

    ``active`` is the variant that is in use already.
    """
    hardware, request = choice.hardware, Request(prefer=session.settings.prefer)
    everything = select(choice.release, hardware, request)
    elsewhere = _elsewhere(session, choice)
    helps = remedy(choice.selection.requested, everything, hardware, elsewhere, active)
    # A signed build of what was asked for is better. Without one, this machine may compile it.
    if not elsewhere and (command := _compiling(choice)):
        return f"{helps}; or compile a build here: {command}" if helps else command
    return helps


def _compiling(choice: Choice) -> str:
    """Return the command that compiles a build here, where that helps; "" where it does not.

    It needs the GPU's driver, as a signed build does; and nothing is compiled on Windows.
    """
    hardware, requested = choice.hardware, choice.selection.requested
    if hardware.simulated or hardware.os == "windows":
        return ""
    for each in choice.selection.rejected:
        backend = facts_of(each.variant.backend)
        gpus = hardware.api(backend.api).hardware_gpus
        # llama.cpp has no code for NVIDIA's cards before Maxwell.
        able = [gpu for gpu in gpus if Version(gpu.compute_capability or "5.0") >= Version("5.0")]
        if each.reason.slug in BY_COMPILING and (able or backend.name == "cpu"):
            named = "" if requested in ("auto", "gpu") else f" --backend {backend.name}"
            return f"{TSUKU} install --from-source{named}"
    return ""


def _elsewhere(session: Session, choice: Choice) -> str:
    """Return the command that takes a fitting variant from another release; "" if none fits.

    The channel of the choice comes first, and then the others.
    """
    catalog = choice.catalog
    channels = dict.fromkeys((choice.channel, *catalog.channels))
    for channel in channels:
        for entry in catalog.releases(channel):
            # What cannot be read or is revoked does not help, and this is about another error.
            with suppress(UnknownRequest, TrustError, StoreError):
                if catalog.revocation(entry):
                    continue
                found = (entry, catalog.read(entry))
                other = _compared(session, catalog, channel, found, choice.hardware)
                if other.selection.compatible:
                    backend = other.selection.requested
                    asked = "" if backend == "auto" else f" --backend {backend}"
                    name = catalog.repository.name
                    where = "" if name == OFFICIAL else f" --repository {name}"
                    words = f"--release {entry.release} --channel {channel}{asked}"
                    return f"{TSUKU} install {words}{where}"
    return ""


def refuse_revoked(choice: Choice, *, allow_revoked: bool) -> None:
    """Refuse a revoked release, and name the newest one that is not revoked. Raises ``Revoked``."""
    if choice.revocation is None or allow_revoked:
        return
    entry = choice.catalog.entry(choice.release.release)
    hint = f"{way_out(choice.catalog, entry.channels)}; or add --allow-revoked"
    raise revoked(choice.release.release, choice.revocation, hint)


def choose_like(
    session: Session,
    installed: Installed | None,
    catalog: Catalog | None = None,
    *,
    hardware: Hardware | None = None,
) -> Choice:
    """Compare the variants of an installed release, or of the newest if that one is gone.

    An unsigned build belongs to no release.
    """
    if installed is None or installed.receipt.unsigned is not None:
        return choose(session, catalog=catalog, hardware=hardware)
    # The settings may name another channel by now; the release belongs to this one. It also belongs
    # to its repository, unless the user names another one.
    receipt, settings = installed.receipt, session.settings
    session = session.with_settings(
        channel=receipt.channel, repository=settings.repository or receipt.repository
    )
    try:
        return choose(
            session, release=installed.receipt.release, catalog=catalog, hardware=hardware
        )
    except (UnknownRequest, TrustError, StoreError):  # the release was dropped or is unreadable
        return choose(session, catalog=catalog, hardware=hardware)


def way_out(catalog: Catalog, channels: Iterable[str]) -> str:
    """Say what to do about a revoked release: take the newest release that is not revoked."""
    wanted = set(channels)
    # Entries are sorted, the newest first.
    for entry in catalog.entries:
        if wanted & set(entry.channels) and catalog.revocation(entry) is None:
            return (
                f"take {entry.release}, the newest that is not revoked: "
                f"{take(entry.release, catalog.repository.name)}"
            )
    return f"no other release of its channel can be used: wait for the next one, {TSUKU} update"


def _named(catalog: Catalog, release: str) -> ReleaseEntry:
    """Return the entry of a release; raise ``Revoked`` if it was revoked and then dropped."""
    try:
        return catalog.entry(release)
    except (UnknownRequest, ManifestError):
        # Revocations are kept when the publisher drops the release from the metadata, and count
        # also if its entry cannot be read.
        for each in catalog.revoked:
            if each.of((catalog.repository.name,), release.lower(), ()):
                hint = way_out(catalog, catalog.channels)
                raise revoked(each.release, each, hint) from None
        raise


def bounds_here(session: Session, repository: str, marks: tuple[RolledBack, ...]) -> Bounds:
    """Return what bounds the choice among the releases of a repository on this machine."""
    settings, here = session.settings, None
    if marks or settings.min_age:
        with suppress(
            StoreError
        ):  # an install is what repairs an active version that is unreadable
            active = session.reader.active()
            if active and active.receipt.repository == repository:
                here = active.receipt.release
    return Bounds(
        repository,
        session.machine.now,
        settings.min_age,
        allow_revoked=session.allow_revoked,
        here=here,
        marks=marks,
        held=session.held,
    )


def offered(catalog: Catalog, entry: ReleaseEntry, held_for: str | None = None) -> Offered:
    """Return what the catalog says of a release; ``held_for`` is a platform, for a bundle."""
    builds: tuple[tuple[str, ...], ...] | None = None
    if held_for is not None:
        # What cannot be read is reported where it is read.
        with suppress(TrustError, StoreError):
            platform = catalog.read(entry).platforms.get(held_for)
            builds = tuple(map(_digests_of, platform.variants)) if platform else ()
    return Offered(entry.release, entry.published, catalog.revocation(entry), builds)


def _usable(
    session: Session, catalog: Catalog, channel: str, platform: str
) -> tuple[list[ReleaseEntry], tuple[PassedOver, ...]]:
    """Return the releases of a channel that may be taken, and why the others may not.

    Raises ``Revoked``, ``WrongBundle`` or ``SelectionError`` if none may.
    """
    entries = catalog.releases(channel)
    bounds = bounds_here(session, catalog.repository.name, read_marks(session.paths.data))
    held_for = platform if bounds.held is not None else None
    found = [(each, why_passed_over(offered(catalog, each, held_for), bounds)) for each in entries]
    usable = [entry for entry, reasons in found if not reasons]
    first = [reasons[0] for _, reasons in found if reasons]
    for each in first:
        # A bundle lacks nearly all releases that its metadata names.
        if usable and each.slug != NOT_IN_BUNDLE:
            ends = f"; to take it: {each.ends}" if each.ends else ""
            session.user.note(f"{each.release} was {each.text}; it is skipped{ends}")
    if not usable:
        raise _none_usable(catalog, channel, platform, first)
    return usable, tuple(chain.from_iterable(reasons for _, reasons in found))


def _none_usable(
    catalog: Catalog, channel: str, platform: str, first: Sequence[PassedOver]
) -> TsukuError:
    """Return the error for a channel whose releases are all passed over."""
    slugs, name = {each.slug for each in first}, catalog.repository.name
    if NOT_IN_BUNDLE in slugs:
        return _nothing_held(f"no build of channel {channel} for {platform}")
    facts = tuple(f"{each.release}: {each.text}" for each in first)
    if slugs == {REVOKED}:
        ways = dict.fromkeys(
            f"; or, if you do not trust that repository: {e.ends}" for e in first if e.ends
        )
        return Revoked(
            f"every release of channel {channel} was revoked",
            facts=facts,
            hint="wait for the next release "
            f"({TSUKU} repository refresh {name}), or name another --channel{''.join(ways)}",
        )
    newest = next(each for each in first if each.slug != REVOKED)
    return SelectionError(
        f"every release of channel {channel} is passed over",
        facts=facts,
        hint=f"to take the newest: {take(newest.release, name)}",
    )


def _compared(
    session: Session,
    catalog: Catalog,
    channel: str,
    found: tuple[ReleaseEntry, Release],
    hardware: Hardware,
) -> Choice:
    entry, release = found
    settings = session.settings
    hardware = _with_libraries(session, release, hardware)
    request = Request(settings.backend, settings.prefer, settings.combine)
    try:
        selection = select(release, hardware, request, conflict_in)
    except UnknownRequest as error:
        if hardware.platform not in release.platforms:
            error.hint = _platform_hint(catalog, hardware.platform)
        else:
            note_place(session.settings, "backend", error)
        raise
    if session.held is not None:
        selection = _held_only(selection, session.held)
    stale = catalog.freshness.warning(session.machine.now)
    ways: tuple[Way, ...] = ()
    if selection.requested in ("auto", "gpu"):
        everything = select(release, hardware, Request(prefer=settings.prefer))
        ways = ways_to_gpus(everything, hardware)
    return Choice(
        catalog, channel, entry.sequence, release, hardware, selection, stale=stale, ways=ways
    )


# The metadata in a bundle names every release of its repository, because it is signed as a whole.
# Its archives are a few of them: an install from a bundle chooses among the builds that it holds.


def _digests_of(variant: Variant) -> tuple[str, ...]:
    return tuple(artifact.sha256 for artifact in variant.artifacts)


def _held_only(selection: Selection, held: frozenset[str]) -> Selection:
    """Return a selection in which a variant that is not in the bundle does not fit."""
    fitting = [each for each in selection.compatible if held.issuperset(_digests_of(each.variant))]
    reason = Reason(NOT_IN_BUNDLE, "it fits, but the bundle does not have it")
    missing = (
        Rejection(each.variant, reason) for each in selection.compatible if each not in fitting
    )
    return replace(
        selection,
        compatible=tuple(replace(each, rank=rank) for rank, each in enumerate(fitting, 1)),
        rejected=(*missing, *selection.rejected),
    )


def _nothing_held(what: str, facts: tuple[str, ...] = ()) -> WrongBundle:
    """Return the error for a bundle that lacks what this machine needs."""
    return WrongBundle(
        f"the bundle has {what}",
        facts=facts,
        hint=f"see what it has: {TSUKU} bundle show FILE; a bundle for this machine is made with "
        f"what probe --record MACHINE.json writes here: {TSUKU} bundle create FILE --hardware "
        "MACHINE.json",
    )


def _with_libraries(session: Session, release: Release, hardware: Hardware) -> Hardware:
    """Ask for the libraries of a release that the probe did not ask for.

    A recorded machine cannot be asked: nothing is known of them.
    """
    platform = release.platforms.get(hardware.platform)
    variants = platform.variants if platform else ()
    needed = {name for each in variants for name in each.requires.libraries}
    unknown = sorted(needed - hardware.libraries.keys())
    if not unknown or hardware.simulated:
        return hardware
    host, asked = session.machine.host, libc.library_question(unknown)
    answer = host.ask(program(host), (asked,), session.settings.probe_timeout)()[asked]
    return replace(hardware, libraries={**hardware.libraries, **libc.parse_libraries(answer)})


def conflict_in(variant: Variant) -> Reason | None:
    """Tell why the signed lists of a variant make no tree; None if they do.

    Without these lists nothing is known before the archives are unpacked.
    """
    try:
        _ = kept_artifacts(variant)
    except GateFailed as error:
        return Reason(error.slug, error.reason)
    return None


def _platform_hint(catalog: Catalog, platform: str) -> str:
    """Name the newest release that has a build for a platform, or say that there is none."""
    for entry in catalog.entries:
        with suppress(TrustError, StoreError):
            if catalog.revocation(entry) is None and platform in catalog.read(entry).platforms:
                return take(entry.release, catalog.repository.name)
    none = f"no release of {catalog.repository.name} is for {platform}"
    if system := _WITH_A_PACKAGE.get(platform.partition("-")[0]):
        return f"{none}; {system} has its own llama.cpp, without {TSUKU}: pkg install llama-cpp"
    return f"nothing here changes that: {none}"


# packages/llama-cpp of termux/termux-packages, and misc/llama-cpp of freebsd/freebsd-ports.
_WITH_A_PACKAGE = {"android": "Termux", "freebsd": "FreeBSD"}


def tell_temporary(note: Callable[[str], None], choice: Choice) -> None:
    """Print the problems that will pass, such as a driver that waits for a reboot, and their fixes.

    Without this note, the user would take the CPU build for the best one that fits.
    """
    for problem in choice.hardware.all_problems:
        if problem.transient:
            note(f"temporary: {problem.text}; {problem.fix}")


def tell_idle(note: Callable[[str], None], choice: Choice) -> None:
    """Print what would bring the GPUs into use that are not, or that nothing does."""
    for way in choice.ways:
        note(way.told)
    told = {way.gpu for way in choice.ways}
    if names := [name for name in choice.selection.idle if name not in told]:
        note(f"idle: {', '.join(names)}; why: {TSUKU} doctor --backend gpu")


def require_lasting(environ: Mapping[str, str], choice: Choice, active: Installed) -> None:
    """Refuse to leave the GPU of the active version because of a problem that will pass.

    A request for the CPU is not refused. Raises ``SelectionError``.
    """
    best = choice.best
    leaves_gpu = best is None or best.variant.backend == "cpu"
    if active.receipt.backend == "cpu" or not leaves_gpu:
        return
    if best and choice.selection.requested not in ("auto", "gpu"):
        return
    problems = [each for each in choice.hardware.all_problems if each.transient]
    row = facts_of(active.receipt.backend)
    api = choice.hardware.api(row.api)
    # A driver that works, but shows no GPU: a variable may hide it from this command only.
    if api.library and not api.hardware_gpus:
        problems += [
            Problem("gpu-hidden", f"{name} is set, which can hide the GPU", f"unset {name}")
            for name in row.hiding_variables
            if name in environ
        ]
    if problems:
        raise SelectionError(
            "the GPU cannot be used at the moment, and the only build that fits is for the CPU",
            facts=tuple(problem.text for problem in problems),
            hint=f"{problems[0].fix}; or take the CPU: {TSUKU} install --backend cpu",
        )
