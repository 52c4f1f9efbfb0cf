"""Which release and which variants: the catalog, the probe and the selection, put together."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tsuku_llm import catalog as catalogs
from tsuku_llm.catalog import OFFICIAL, Catalog, Repository
from tsuku_llm.errors import Revoked, UnknownRequest
from tsuku_llm.hardware import Hardware
from tsuku_llm.manifest import Release, ReleaseEntry
from tsuku_llm.operations.session import DEFAULT_CHANNEL, Session
from tsuku_llm.probe import platform_key, probe
from tsuku_llm.selection import Candidate, Request, Selection, require_known, select


@dataclass(frozen=True, slots=True)
class Choice:
    """A release, this machine, and how its variants compare here.

    ``sequence`` is the release's place in the signed order of releases.
    """

    catalog: Catalog
    channel: str
    sequence: int
    release: Release
    hardware: Hardware
    selection: Selection

    def line(self, candidate: Candidate | None) -> str:
        """The one line that every start prints and the receipt keeps."""
        detected = ",".join(self.selection.detected)
        selected = candidate.variant.name if candidate else "none"
        line = f"requested={self.selection.requested} detected=[{detected}] selected={selected}"
        return f"{line} hardware={self.hardware.simulated}" if self.hardware.simulated else line


def repository_of(session: Session) -> Repository:
    """The repository that the session names, or the official one. Raises ``UnknownRequest``."""
    name = session.repository or OFFICIAL
    url = session.repository_url if name == OFFICIAL else None
    return catalogs.repository(session.data, name, url)


def load_catalog(session: Session) -> Catalog:
    """The newest valid metadata of the session's repository, from disk only."""
    catalog = catalogs.load(repository_of(session), session.data)
    for note in catalog.notes:
        session.note(note)
    return catalog


def choose(
    session: Session,
    *,
    release: str | None = None,
    channel: str | None = None,
    hardware: Hardware | None = None,
    catalog: Catalog | None = None,
) -> Choice:
    """Decide, without any network, what would be installed.

    ``release`` names one ("b11429", "v0.6.0"); otherwise it is the newest of ``channel``, of
    the session's channel, or of ``stable`` that has a variant for this machine and request;
    if none has, the newest. A revoked release is taken only by its name, and one that cannot be
    read is passed over with a note. Raises ``UnknownRequest`` for names that do not exist,
    ``Revoked`` where a channel has nothing else, ``TrustError`` for metadata that does not
    verify, and for a release file that cannot be read and is asked for, or the only one.
    """
    catalog = catalog or load_catalog(session)
    hardware = hardware or probe(session.host)
    if release:
        entry = catalog.entry(release)
        channel = session.channel or entry.channels[0]
        return _compared(session, catalog, channel, (entry, catalog.read(entry)), hardware)
    channel = channel or session.channel or DEFAULT_CHANNEL
    read: list[tuple[ReleaseEntry, Release]] = []
    for found in catalog.readable(_not_revoked(session, catalog, channel), session.note):
        with suppress(UnknownRequest):
            choice = _compared(session, catalog, channel, found, hardware)
            if choice.selection.compatible:
                _tell_skipped(session, [each.release for each, _ in read], found[0])
                return choice
        read.append(found)
    return _compared(session, catalog, channel, read[0], hardware)


def _not_revoked(session: Session, catalog: Catalog, channel: str) -> tuple[ReleaseEntry, ...]:
    """The releases of a channel that may be taken; whoever may not is told."""
    entries = catalog.releases(channel)
    if session.allow_revoked:
        return entries
    revoked = [entry for entry in entries if catalog.is_revoked(entry)]
    for entry in revoked:
        session.note(f"{entry.release} was revoked by its publisher and is not taken")
    if len(revoked) == len(entries):
        raise Revoked(
            f"every release of channel {channel} was revoked by its publisher",
            facts=(f"revoked: {', '.join(entry.release for entry in revoked)}",),
            hint="wait for the next release: tsuku-llm update, or name another channel",
        )
    return tuple(entry for entry in entries if entry not in revoked)


def _compared(
    session: Session,
    catalog: Catalog,
    channel: str,
    found: tuple[ReleaseEntry, Release],
    hardware: Hardware,
) -> Choice:
    entry, release = found
    selection = select(release, hardware, Request(session.backend, session.prefer))
    return Choice(catalog, channel, entry.sequence, release, hardware, selection)


def _tell_skipped(session: Session, skipped: list[str], taken: ReleaseEntry) -> None:
    if skipped:
        newer = ", ".join(skipped)
        session.note(f"{taken.release} is the newest that fits this machine, not {newer}")


def tell_temporary(session: Session, choice: Choice) -> None:
    """Say what passes, such as a driver that waits for a reboot, and how to end it.

    Without a word, the build for the processor would be taken for the best that there is.
    """
    for problem in choice.hardware.all_problems:
        if problem.transient:
            session.note(f"temporary: {problem.text}; {problem.fix}")


def check_backend(session: Session, word: str) -> None:
    """Refuse a value of ``llm.backend`` that no release has for this platform.

    Raises ``UnknownRequest``, whose facts list what exists, and ``TrustError`` where no release
    can be read.
    """
    platform = platform_key(session.host)
    catalog = load_catalog(session)
    releases = catalog.readable(catalog.entries, session.note)
    found = (release.platforms.get(platform) for _, release in releases)
    names = {variant.name for each in found if each for variant in each.variants}
    require_known(word, sorted(names))
