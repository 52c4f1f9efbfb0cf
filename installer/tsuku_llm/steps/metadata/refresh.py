"""The download of a repository's newest signed metadata, by itself and before an install.

A publisher may have revoked a release since the known metadata was signed. So ``install`` and
``bench`` ask the repository first, for a few seconds at most; ``mirror`` and ``bundle`` ask each
time, and wait longer. Without an answer they print how old the known metadata is, and use it.
``update`` fails without an answer.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from datetime import datetime, timedelta
from pathlib import Path

from tsuku_llm import fetch, trust
from tsuku_llm.catalog import loading, metadata_status, refreshing
from tsuku_llm.catalog.copies import LARGEST_FILE, TIMESTAMP
from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.metadata_status import Freshness
from tsuku_llm.catalog.repositories import (
    OFFICIAL,
    Repository,
)
from tsuku_llm.fetch.http.urls import PACKAGE_SCHEME, scheme_of, shown
from tsuku_llm.ground.errors import (
    BodyError,
    DownloadError,
    HostUnreachable,
    HttpStatusError,
    MetadataError,
    PackageIndexError,
    ProxyError,
    StaleMetadata,
    StoreError,
    TlsError,
    TrustError,
    TsukuError,
    UsageError,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.steps.choosing.choice import load_catalog
from tsuku_llm.steps.choosing.revocation import note_metadata_status, note_others
from tsuku_llm.steps.metadata.places import download_from
from tsuku_llm.steps.session import DEFAULT_CHANNEL, Session, repository_of, way_to_undo
from tsuku_llm.store.store import Store

PATIENCE = 5.0
"""Seconds that an install waits for newer metadata: for the lock and all files together."""

_GLANCE = 2.0
"""Seconds in which places that are not needed may say that they have newer metadata."""

WAYS_OUT = "docs/tasks/closed-networks.md, Metadata from several places"
"""Where the ways stand to newer metadata of the official repository."""

RECENT = timedelta(days=1)
"""With the policy ``auto``, ask only if the signature and the last answer are older than this."""


def refresh(session: Session, *, patience: float | None = None) -> Catalog:
    """Download and verify the newest metadata of the session's repository, under a lock.

    The places of the repository are asked in their order, and the newest valid answer counts.
    Everything has to arrive within ``Limits.metadata`` seconds, from all places together and
    including retries, redirects and other addresses. ``patience`` is a shorter limit in seconds,
    for the lock as well. Raises ``DownloadError`` if the metadata cannot be downloaded,
    ``MetadataError`` if it cannot be trusted, and ``ClockBehind`` if this machine's clock cannot
    be right. After an error the metadata trusted before still counts.
    """
    repository = repository_of(session.paths.data, session.settings)
    seconds, timeout = fetch.Limits().metadata, session.settings.lock_timeout
    if patience is not None:
        seconds, timeout = min(seconds, patience), min(timeout, patience)
    note_others(session, but=repository.name)
    progress = session.user.progress
    # A host that does not answer takes seconds.
    progress.stage(f"metadata of {repository.name}", "refreshing")
    with (
        fetch.Network(session.machine.environ, on_wait=session.user.note) as network,
        ExitStack() as until_the_end,
    ):
        until_the_end.callback(progress.finish)
        # Two processes must not write the copies of one repository at the same time. A short
        # patience covers the wait for the lock; without one, the network has all its time.
        began = network.clock()
        with session.store.lock(f"metadata-{repository.name}", timeout=timeout) as locked:
            deadline = (network.clock() if patience is None else began) + seconds
            found = _newest_valid(session, repository, network, deadline, alone=locked)
        note_metadata_status(session.paths.data, found.metadata_status())
    found.freshness.require_clock(session.machine.now)
    channel = session.settings.channel or DEFAULT_CHANNEL
    for line in refreshing.require_channel(found, channel, session.machine.now):
        session.user.note(line)
    with suppress(StoreError):  # a missing note only makes the next install ask again
        metadata_status.note_refresh(session.paths.data, repository.name, session.machine.now)
    return found


def _newest_valid(
    session: Session,
    repository: Repository,
    network: fetch.Network,
    deadline: float,
    *,
    alone: bool,
) -> Catalog:
    """Ask the places of a repository in their order, and take the newest valid answer.

    A place that does not answer, or whose answer is refused, does not stop the others; a note says
    why it was passed over. The places after the first valid answer are only asked whether they have
    anything newer. Raises the error of the only place, or one error that lists them all.
    """
    data, channel = session.paths.data, session.settings.channel or DEFAULT_CHANNEL
    failed: list[tuple[str, DownloadError | TrustError]] = []
    for number, place in enumerate(repository.places):
        # An equal share of what is left: a place that sends nothing must not use up the time of
        # those after it, and one that fails at once leaves its share to them.
        now = network.clock()
        until = now + (deadline - now) / (len(repository.places) - number)
        there = repository.at(place)
        try:
            download = download_from(session.store, there, network, until)
            found = refreshing.refresh(there, data, download, channel, alone=alone)
        except (DownloadError, TrustError) as error:
            failed.append((place, error))
            continue
        for passed_over, reason in failed:
            warning = "warning: " if isinstance(reason, TrustError) else ""
            session.user.note(f"{warning}{shown(passed_over)} was passed over: {reason.told}")
        later, newest = repository.places[number + 1 :], place
        for newer in _newer_places(session.store, repository, later, network, deadline, found):
            there = repository.at(newer)
            try:
                download = download_from(session.store, there, network, deadline)
                found = refreshing.refresh(there, data, download, channel, alone=alone)
            except (DownloadError, TrustError) as error:
                session.user.note(f"warning: {shown(newer)} was passed over: {error.told}")
            else:
                session.user.note(
                    f"warning: {shown(newest)} has older metadata than {shown(newer)}: it may be "
                    "an outdated mirror, or hold newer metadata back"
                )
                newest = newer
        return found
    if any(isinstance(error, TlsError | MetadataError) for _, error in failed):
        _require_clock(repository, data, session.machine.now)
    raise _explained(session, repository, failed)


def _newer_places(
    store: Store,
    repository: Repository,
    places: tuple[str, ...],
    network: fetch.Network,
    deadline: float,
    known: Catalog,
) -> list[str]:
    """Return those of the places that say that they have newer metadata than the known one.

    All are asked at once, for a short time: one that does not answer tells nothing. What they say
    is not verified, so it only decides who is asked for all files.
    """
    until = min(deadline, network.clock() + _GLANCE)
    # pip runs in one folder for a repository: one package at a time.
    one_package = threading.Lock()
    root, timestamp = known.trusted.roles["root"].version, known.trusted.versions["timestamp"]

    def has_newer(place: str) -> bool:
        there = repository.at(place)
        try:
            with one_package if scheme_of(place) == PACKAGE_SCHEME else nullcontext():
                download = download_from(store, there, network, until)
            # A new root may begin the other versions again, after stolen keys.
            with suppress(HttpStatusError):
                download(f"metadata/{root + 1}.root.json", LARGEST_FILE)
                return True
            data = download(TIMESTAMP, LARGEST_FILE)
            return trust.check_metadata(data).state.version > timestamp
        except (DownloadError, TrustError):
            return False

    if not places:
        return []
    with ThreadPoolExecutor(len(places)) as pool:
        answers = list(pool.map(has_newer, places))
    return [place for place, newer in zip(places, answers, strict=True) if newer]


def _explained(
    session: Session,
    repository: Repository,
    failed: list[tuple[str, DownloadError | TrustError]],
) -> DownloadError | TrustError:
    """Return the error to raise where no place gave a valid answer, with a hint that helps here.

    Of several errors it is the first refused answer, or else the first failed download; its facts
    are then the reasons of all places.
    """
    errors = [error for _, error in failed]
    error = next((each for each in errors if isinstance(each, TrustError)), errors[0])
    if isinstance(error, StaleMetadata) and _is_mirrored(session, repository):
        error.hint = (
            "most often the mirror is not kept up to date: its operator can run the command again "
            "that made it; else its publisher has stopped signing, this machine's clock is wrong, "
            "or someone withholds newer metadata"
        )
    # What a download says of llm.mirror may send the user round in circles.
    elif not _is_local(error) and isinstance(error, HostUnreachable | HttpStatusError | BodyError):
        # A folder does not come back by itself, as a host may.
        folders = [place for place, _ in failed if scheme_of(place) == "file"]
        way = "try again later, or from another network"
        if len(folders) == len(failed):
            listed = " and in ".join(map(shown, folders))
            way = f"check that the whole repository lies in {listed}"
        error.hint = f"{way}; {_elsewhere(session, repository, error)}"
    elif isinstance(error, PackageIndexError) or (
        isinstance(error, ProxyError) and not _is_mirrored(session, repository)
    ):
        error.hint = f"{error.hint}; {_elsewhere(session, repository, error)}"
    if len(failed) > 1:
        error.facts = tuple(f"{shown(place)}: {each.told}" for place, each in failed)
        error.message = f"none of the {len(failed)} places of {repository.name} gave valid metadata"
    return error


def _is_local(error: TsukuError) -> bool:
    """Tell whether this machine's own settings are wrong: certificates, proxy or credentials."""
    denied = isinstance(error, HttpStatusError) and error.is_denial
    return denied or isinstance(error, TlsError | ProxyError)


def _is_mirrored(session: Session, repository: Repository) -> bool:
    """Tell whether ``llm.mirror`` stands for the publisher's own address of the metadata."""
    settings = session.settings
    return repository.name == OFFICIAL and bool(settings.mirror) and not settings.repository_url


def _elsewhere(session: Session, repository: Repository, error: TsukuError) -> str:
    """Say what else brings newer metadata than the place that gave this error.

    The ways that are open from here are not known: a page has them, and no name is given that may
    lead nowhere.
    """
    name = repository.name
    if name == OFFICIAL:
        if session.settings.repository_url:
            undo = way_to_undo(session.settings, session.machine.environ, "llm.repository_url")
            return f"or ask the publisher's own address: {undo}; or see {WAYS_OUT}"
        if session.settings.mirror:
            # Nothing else is asked. An operator made the mirror, and can repair what it lacks.
            way = "make sure that the mirror works and can be reached"
            lacks = isinstance(error, HttpStatusError) and error.is_absence
            if lacks or isinstance(error, BodyError):
                way = "the mirror's operator can repair it with the command that made it"
            undo = way_to_undo(session.settings, session.machine.environ, "llm.mirror")
            return f"{way}; or ask the publisher's own hosts: {undo}"
        return f"for other ways see {WAYS_OUT}"
    return (
        f"or, if it has moved: {TSUKU} repository remove {name}, and then "
        f"{TSUKU} repository add {name} URL --root FILE"
    )


def _require_clock(repository: Repository, data: Path, now: datetime) -> None:
    """Raise ``ClockBehind`` if a wrong clock explains why certificates or metadata are refused."""
    try:
        known = loading.load(repository, data)
    except (TrustError, StoreError):
        return
    known.freshness.require_clock(now)


def asked_catalog(session: Session, *, ask: bool = True, patience: float = PATIENCE) -> Catalog:
    """Load the catalog to install from; first ask the repository for a newer one if that is due.

    Expired metadata leads to a note, or to an error if fresh metadata is required. Without ``ask``
    this only reads the disk.

    Raises ``UsageError`` for ``offline`` together with ``require_fresh``. With ``require_fresh``
    also raises ``StaleMetadata`` if the repository does not answer, ``ClockBehind``, ``TrustError``
    for an answer that cannot be trusted, and ``StoreError``. If this machine has no valid metadata
    yet, raises the errors of ``refresh``.
    """
    settings, now = session.settings, session.machine.now
    if ask and session.offline and settings.require_fresh:
        raise UsageError(
            "--offline uses no network, but fresh metadata is required",
            hint=f"leave out one of them; see: {TSUKU} config get llm.refresh",
        )
    may_ask = ask and not session.offline and settings.refresh != "never"
    try:
        catalog = known = load_catalog(session)
    except MetadataError:
        if not may_ask:
            raise
        catalog = refresh(session)  # with its full time limit: nothing else can be used
    else:
        if ask and settings.require_fresh:
            catalog = _required(session, known.freshness)
        elif may_ask and is_due(
            settings.refresh,
            known.freshness,
            metadata_status.refreshed(session.paths.data, known.repository.name),
            now,
        ):
            try:
                # There is metadata to go on with: a host that is slow or down must stop neither an
                # install nor a copy for other machines.
                catalog = refresh(session, patience=patience)
            except (DownloadError, TrustError, StoreError) as error:
                own = error.hint if _is_local(error) else ""
                way = own or _elsewhere(session, known.repository, error)
                session.user.note(_told(error, known.freshness, now, way))
    freshness = catalog.freshness_in(settings.channel)
    if settings.require_fresh:
        freshness.require(now)
    if warning := freshness.warning(now):
        session.user.note(warning)
    return catalog


def is_due(policy: str, known: Freshness, refreshed: datetime | None, now: datetime) -> bool:
    """Return whether to ask for newer metadata. Pure.

    ``refreshed`` is when the repository last gave a valid answer. A failed attempt does not count:
    otherwise an attacker who blocks the network could make old metadata look fresh. A date in the
    future comes from a wrong clock, and does not count either.
    """
    if policy != "auto":
        return policy == "always"
    dates = [date for date in (known.signed, refreshed) if date is not None]
    recent = any(timedelta(0) <= now - date < RECENT for date in dates)
    return known.expired(now) or not recent


def _required(session: Session, known: Freshness) -> Catalog:
    """Refresh with the full time limit. Raises ``StaleMetadata`` without an answer."""
    try:
        return refresh(session)
    except DownloadError as error:
        raise StaleMetadata(
            f"fresh metadata of {known.repository} is required, but could not be fetched",
            facts=(
                error.message,
                *error.facts,
                f"the metadata here: {known.age(session.machine.now)}",
            ),
            hint=error.hint,
        ) from error


def _told(error: TsukuError, known: Freshness, now: datetime, way: str) -> str:
    """Say that there is only the known metadata, how old it is, and where the ways out stand.

    ``repository refresh`` tells the whole reason. ``way`` says what to do.
    """
    going_on = f"using the metadata {known.age(now)}"
    if isinstance(error, TrustError):
        return f"warning: {error.told}; it is not used; {going_on}"
    return (
        f"newer metadata of {known.repository} could not be fetched: {error.message}; "
        f"{going_on}, without newer releases and revocations; {way}"
    )
