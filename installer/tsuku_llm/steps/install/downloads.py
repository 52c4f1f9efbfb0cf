"""What an install downloads: less what other versions have, the disk space, the user's consent.

``space_of`` is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tsuku_llm import fetch
from tsuku_llm.archive.composing import needed_artifacts
from tsuku_llm.archive.placing import Aside
from tsuku_llm.archive.unpack import make_links
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.choose.selection import Candidate
from tsuku_llm.ground.disk import require_space
from tsuku_llm.ground.errors import (
    Declined,
    GateFailed,
    StoreError,
    TooLarge,
    TrustError,
    UsageError,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.tree_entry import TreeEntry
from tsuku_llm.machine.backends import build_name
from tsuku_llm.steps.choosing.choice import Choice, version_of
from tsuku_llm.steps.session import Session
from tsuku_llm.store.reuse import confirm, sources_of_all, supply, withdraw
from tsuku_llm.store.staging import Staging
from tsuku_llm.store.store import Store

_WHOLE = 10_000_000
"""Bytes from which a size is told in whole megabytes."""


@dataclass(frozen=True, slots=True)
class Reused:
    """An archive whose files were linked into ``folder``; ``known`` has the list of its files.

    The release file lists them, or the receipt of a version that has the same archive.
    """

    artifact: Artifact
    known: Artifact
    folder: Path


def _known(store: Store, artifact: Artifact, kept: Artifact) -> Artifact:
    """Return an archive with its content, which a receipt may tell if no signed list does.

    The archive's digest is signed, and the receipt was written when the archive was verified.
    ``kept`` has what the tree will have of it.
    """
    for other in store.installed() if artifact.files is None else ():
        for record in other.receipt.artifacts:
            if record.sha256 == artifact.sha256 and record.files:
                return replace(artifact, files=record.files, links=record.links)
    return kept


def reuse_files(
    store: Store,
    staging: Staging,
    needed: Iterable[tuple[Artifact, Artifact]],
    *,
    receipts: bool,
) -> tuple[Reused, ...]:
    """Link files of other versions in place of downloads; return the archives that need none.

    An archive is replaced if its files are known with sizes and digests, and every one of them is
    installed and undamaged. Files of one that the release file does not list go where it would be
    unpacked. The linked files must still be verified. ``needed`` is from ``needed_artifacts``.
    Without ``receipts`` only signed lists of files count.
    """
    found: list[Reused] = []
    for artifact, of_tree in needed:
        known = _known(store, artifact, of_tree) if receipts else of_tree
        aside = artifact.files is None
        folder = staging.unpacked / artifact.sha256 if aside else staging.tree
        if supply(folder, known.files or (), store.installed()):
            found.append(Reused(artifact, known, folder))
    return tuple(found)


def verify_reused(staging: Staging, linked: Iterable[Reused]) -> list[Aside]:
    """Hash the files linked for each archive; return the archives whose files are all right.

    For these archives this also makes the listed links. If one file differs, the archive is left
    out and its files are removed: it must be downloaded. Raises ``UnsafeArchive`` for links that
    unpacking would refuse.
    """
    found: list[Aside] = []
    for each in linked:
        files = each.known.files or ()
        if confirm(staging, each.folder, files):
            withdraw(each.folder, files)
        else:
            items: tuple[TreeEntry, ...] = (*files, *make_links(each.known, each.folder))
            found.append(Aside(each.artifact, each.folder, items))
    return found


class Space(NamedTuple):
    """Bytes that the artifacts of an install take, as far as the manifest says.

    ``missing`` is what must still be downloaded; ``left`` is the same, None if the manifest does
    not have every size. ``needed`` bytes must be free at least. ``facts`` say it for people.
    """

    missing: int
    left: int | None
    needed: int
    facts: tuple[str, ...]


def space_of(artifacts: Sequence[Artifact], present: Sequence[int]) -> Space:
    """Count the bytes; ``present`` are for each artifact those that an earlier run left."""
    sized = all(each.size is not None for each in artifacts)
    listed = all(each.files is not None for each in artifacts)
    sizes = [each.size or 0 for each in artifacts]
    missing = sum(max(0, size - there) for size, there in zip(sizes, present, strict=True))
    # Without a list of the files, they are at least as large as the archive.
    unpacked = sum(
        size if each.files is None else sum(file.size for file in each.files)
        for size, each in zip(sizes, artifacts, strict=True)
    )
    download, packed = _figure(missing, exact=sized), _figure(sum(sizes), exact=sized)
    facts = (
        f"download: {download} (the archives: {packed})",
        f"unpacking: {_figure(unpacked, exact=listed)}",
        "installing: nothing more, as what was unpacked is renamed",
    )
    return Space(missing, missing if sized else None, missing + unpacked, facts)


def _figure(count: int, *, exact: bool) -> str:
    shown = f"{count / 1e6:.1f} MB"
    if exact:
        return shown
    return f"at least {shown}, the exact size is unknown" if count else "unknown"


def left_to_download(session: Session, choice: Choice, candidate: Candidate) -> int | None:
    """Return the bytes that an install would download; None if the manifest does not say.

    What other versions have undamaged, or an earlier run left, is not counted.
    """
    return _space(session, choice, candidate, repair=False).left


def _space(session: Session, choice: Choice, candidate: Candidate, *, repair: bool) -> Space:
    reader = session.reader
    # Of a version that is installed nothing is downloaded, whatever its receipt tells of archives.
    with suppress(StoreError, TrustError):
        there = reader.find(version_of(choice.release.release, candidate.variant))
        if there and not repair:
            reader.check(there)
            return space_of((), ())
    store, variant = session.store, candidate.variant
    needed = tuple((each, each) for each in variant.artifacts)
    with suppress(GateFailed):  # the install says so
        needed = needed_artifacts(variant)
    missing: list[Artifact] = []
    for whole, part in needed:
        known = part if repair else _known(store, whole, part)
        if sources_of_all(known.files or (), store.installed()) is None:
            missing.append(whole)
    # Not ``store.partials``, which makes the folder: a question writes nothing.
    partials = session.paths.data / "partials"
    return space_of(missing, [fetch.present(each, partials) for each in missing])


def require_possible(
    session: Session, choice: Choice, candidate: Candidate, *, repair: bool
) -> int | None:
    """Refuse in a dry run what the install would refuse before its download.

    Returns what ``left_to_download`` does; ``repair`` is as for ``VersionBuilder``. Raises
    ``TooLarge``, ``NoSpace`` and ``StoreError``; a question is left to the install.
    """
    space = _space(session, choice, candidate, repair=repair)
    unasked = session._replace(agreed=True)
    require_consent(unasked, choice, candidate, space.left)
    require_space(session.paths.data, space.needed, space.facts)
    return space.left


def cost(size: int | None) -> str:
    """Say how large a download is."""
    return "a download of unknown size" if size is None else f"a download of {_megabytes(size)}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= _WHOLE else f"{size / 1e6:,.1f} MB"


def require_consent(
    session: Session, choice: Choice, candidate: Candidate, size: int | None
) -> None:
    """Let a download of this size go on: it is allowed, and the user agrees if it is large.

    Nobody is asked without a terminal. Raises ``TooLarge`` and ``Declined``.
    """
    what = build_name(candidate.variant.backend, choice.release.release)
    most, above = session.settings.max_download, session.settings.ask_above
    if most is not None and (size is None or size > most):
        raise TooLarge(
            f"{what} is {cost(size)}, and llm.max_download allows {_megabytes(most)}",
            hint=f"allow more: {TSUKU} config set llm.max_download SIZE; or choose a smaller "
            f"build: {TSUKU} explain",
        )
    if size is None or size > above:
        require_yes(session, f"{what[0].upper()}{what[1:]} is {cost(size)}. Download it?")


def require_yes(session: Session, question: str, unasked: UsageError | None = None) -> None:
    """Ask before what needs a yes of the user's, unless the user has agreed.

    Without a terminal to ask on, this raises ``unasked``, or returns if that is None. Raises
    ``Declined`` after a no.
    """
    if session.agreed:
        return
    if not session.user.can_ask:
        if unasked:
            raise unasked
    elif not session.user.ask(question):
        raise Declined("nothing was changed")


def require_consent_to_index(session: Session, choice: Choice, reason: str) -> Session:
    """Ask before a build of the package index replaces upstream's; return the session after a yes.

    Nobody is asked without a terminal. Raises ``Declined``.
    """
    if session.agreed or not session.user.can_ask:
        return session
    release, best = choice.release, choice.selection.selected
    instead = build_name(best.variant.backend, release.release)
    size = left_to_download(session, choice, best)
    require_yes(
        session,
        f"{reason}. Install {instead}, built by {release.publisher}, from the package index "
        f"instead ({cost(size)})?",
    )
    return session._replace(agreed=True)
