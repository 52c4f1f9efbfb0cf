"""An install from a bundle: its metadata and archives are verified as from the network."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tsuku_llm.catalog import refreshing
from tsuku_llm.catalog.copies import LARGEST_FILE
from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.repositories import (
    Repository,
    add_repository,
    check_url,
    remove_repository,
)
from tsuku_llm.catalog.repositories import repositories as configured_repositories
from tsuku_llm.fetch.places.bundle_file import (
    ARTIFACTS,
    BundleDescription,
    BundleFile,
    opened_bundle,
)
from tsuku_llm.ground.errors import MetadataError, StaleMetadata, UsageError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.steps.choosing.revocation import note_metadata_status, note_others
from tsuku_llm.steps.install.install import InstallReport, install
from tsuku_llm.steps.session import DEFAULT_CHANNEL, Session, User

_ROOT = re.compile(r"metadata/[0-9]+\.root\.json")

_MOST_PLACES = 8
"""Places of a bundle that are shown and asked about."""


@dataclass(frozen=True, slots=True)
class BundledCopy:
    """The copy of the repository in a bundle."""

    bundle: BundleFile

    def read(self, name: str) -> bytes | None:
        """Read the file at a path relative to the repository; None if it does not exist."""
        return self.bundle.read(name, LARGEST_FILE)


def install_bundle(
    session: Session,
    path: Path,
    *,
    release: str | None = None,
    fingerprint: str | None = None,
    expired_too: bool = False,
    force: bool = False,
) -> InstallReport:
    """Install the best build that a bundle has for this machine; no host is asked.

    The bundle's metadata is verified under the root that this machine knows, and kept. A repository
    that it does not know is added if ``fingerprint`` is the SHA-256 of its root. ``expired_too``
    accepts expired metadata, with a note.

    Raises ``BadBundle``, ``WrongBundle``, ``MetadataError``, ``UsageError``, and the errors of
    ``install``.
    """
    path = path.absolute()
    with opened_bundle(path) as bundle:
        about = bundle.description()
        held = frozenset(
            name.removeprefix(f"{ARTIFACTS}/")
            for name in bundle.sizes
            if name.startswith(f"{ARTIFACTS}/")
        )
        with _known_repository(session, bundle, about, fingerprint) as repository:
            catalog = _adopted(session, bundle, repository, expired_too=expired_too)
    session = session._replace(held=held).with_settings(
        repository=repository.name,
        mirror=(path.as_uri(),),
        # The bundle is all that there is to ask, and it was asked.
        refresh="never",
        require_fresh=False,
    )
    if release is None and session.settings.channel is None:
        session = session.with_settings(channel=_channel(catalog, about))
    return install(session, release=release, force=force)


@contextmanager
def _known_repository(
    session: Session, bundle: BundleFile, about: BundleDescription, fingerprint: str | None
) -> Iterator[Repository]:
    """Give the repository of a bundle; one that is added for the block goes after an error in it.

    Raises ``MetadataError`` if this machine does not know it and ``fingerprint`` does not name it.
    """
    wanted = re.sub(r"[\s:]", "", fingerprint).lower() if fingerprint else None
    if wanted not in (None, about.fingerprint):
        raise MetadataError(
            "the bundle has another root of trust than the named one",
            facts=(f"its own: sha256 {about.fingerprint}", f"the named one: sha256 {wanted}"),
            hint="compare the fingerprint with what the repository's owner says",
        )
    data, chosen = session.paths.data, session.settings.repository
    known = {hashlib.sha256(each.root).hexdigest(): each for each in configured_repositories(data)}
    found = known.get(about.fingerprint)
    if chosen and chosen != (found.name if found else about.repository):
        raise UsageError(
            f"the bundle is not of the repository {chosen}",
            facts=(f"it is of {about.repository}, with the root sha256 {about.fingerprint}",),
            hint="leave --repository out, or name another bundle",
        )
    if found is not None:
        yield found
        return
    root = next(
        (
            content
            for name in bundle.sizes
            if _ROOT.fullmatch(name)
            and (content := bundle.read(name, LARGEST_FILE)) is not None
            and hashlib.sha256(content).hexdigest() == about.fingerprint
        ),
        None,
    )
    if wanted is None or root is None:
        raise MetadataError(
            f"this machine does not know the repository of the bundle, {about.repository}",
            facts=(f"its root of trust: sha256 {about.fingerprint}",),
            hint="if its owner confirms that fingerprint, add: --fingerprint SHA256",
        )
    place, *others = _agreed_places(session.user, bundle, about)
    added = add_repository(data, about.repository, place, root, others)
    try:
        yield added
    except BaseException:
        remove_repository(data, added.name)
        raise


def _agreed_places(user: User, bundle: BundleFile, about: BundleDescription) -> tuple[str, ...]:
    """Return where an added repository is asked from now on: only where the user agrees.

    Nobody signed the places in a bundle, and its fingerprint says nothing of them. A host there
    learns of every refresh, and can hold newer metadata back. So without a yes, which ``--yes`` is
    not, the bundle itself is the repository's only place. Raises ``BadBundle``.
    """
    try:
        places = tuple(check_url(each) for each in about.places[:_MOST_PLACES])
    except UsageError as error:
        reason = "it names a place that no repository can have"
        raise bundle.refused(reason, *error.facts) from error
    name, shown = about.repository, " and ".join(places)
    if places and user.ask(
        f"The bundle says that the repository {name} is published at {shown}. No signature covers "
        "this. Ask there for newer metadata from now on?"
    ):
        return places
    user.note(
        f"the repository {name}, as the bundle calls it, is added without the places that the "
        f"bundle names, which are not signed ({shown or 'none'}): to ask there for newer metadata, "
        f"remove it and add it with {TSUKU} repository add"
    )
    return (bundle.path.as_uri(),)


def _adopted(
    session: Session, bundle: BundleFile, repository: Repository, *, expired_too: bool
) -> Catalog:
    """Verify the bundle's metadata, keep it, and say if it has expired."""
    now = session.machine.now
    note_others(session, but=repository.name)
    with session.store.lock(f"metadata-{repository.name}"):
        try:
            catalog = refreshing.adopt(
                repository, session.paths.data, BundledCopy(bundle), now, expired_too=expired_too
            )
        except StaleMetadata as error:
            error.message = "the signed metadata of the bundle has expired"
            error.hint = (
                "make a new bundle on a machine with a network; or, if a newer release or a "
                "revocation may be missing, accept it: --allow-expired"
            )
            raise
        note_metadata_status(session.paths.data, catalog.metadata_status())
    catalog.freshness.require_clock(now)
    if catalog.freshness.expired(now):
        session.user.note(
            "warning: the bundle's signed metadata has expired, and --allow-expired accepts it: "
            "a newer release or a revocation may be missing"
        )
    return catalog


def _channel(catalog: Catalog, about: BundleDescription) -> str:
    """Return the usual channel if the bundle has a build of it, else the one it was made from."""
    tags = {build.release for build in about.builds}
    usual = {each.release for each in catalog.entries if DEFAULT_CHANNEL in each.channels}
    others = (build.channel for build in about.builds)
    return DEFAULT_CHANNEL if tags & usual else next(others, DEFAULT_CHANNEL)
