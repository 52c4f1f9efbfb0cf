"""The copy of a repository into an OCI registry."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tsuku_llm import fetch
from tsuku_llm.catalog.copies import LARGEST_FILE
from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.fetch.http.urls import file_name
from tsuku_llm.fetch.places.mirrors import Blob, RegistryPlace, parse_place
from tsuku_llm.ground.disk import require_space
from tsuku_llm.ground.errors import DownloadError, HttpStatusError, TrustError, UsageError
from tsuku_llm.steps.choosing.choice import load_catalog
from tsuku_llm.steps.session import Session, network_for
from tsuku_operator.mirror.mirror import (
    MirrorReport,
    catalog_to_copy,
    not_all_fetched,
    published_files,
    report_of,
    require_not_ahead,
)
from tsuku_operator.mirror.mirror_choice import Narrowing, contents_of
from tsuku_operator.mirror.registry_push import RegistryPush, of_bytes, of_file

_MISSING = 404
_SILENCE = 300.0
"""Seconds that a registry may take to answer: it hashes an archive when it has all of it."""


@dataclass(frozen=True, slots=True)
class RegistryCopy:
    """The files of a mirror in a registry, read when they are asked for."""

    place: RegistryPlace
    files: Mapping[str, Blob]
    network: fetch.Network

    def read(self, name: str) -> bytes | None:
        """Read the file at a path relative to the repository; None if it does not exist."""
        blob = self.files.get(name)
        if blob is None:
            return None
        # The size is the registry's own word: no file of metadata is larger.
        limit = min(blob.size, LARGEST_FILE)
        return fetch.get(self.place.blob(blob.sha256), limit, self.network)


def push_mirror(
    session: Session, url: str, narrow: Narrowing, *, dry_run: bool = False
) -> MirrorReport:
    """Bring a mirror in a registry up to date; what it has is not pushed again.

    The tag moves last, and only if every archive is there. Archives pass through this user's folder
    of downloads. ``dry_run`` uses no network.

    Raises ``ConfigError`` for the address, ``UsageError`` if the tag is of something else, and the
    errors of ``mirror``.
    """
    place = parse_place(url)
    if dry_run:
        catalog = load_catalog(session)
        contents = contents_of(session, catalog, narrow)
        return report_of("planned", str(place), catalog, contents, contents.artifacts)
    limits = fetch.Limits()
    patient = fetch.Limits(answer=limits.total, silence=_SILENCE)
    environ, note = session.machine.environ, session.user.note
    with (
        # The tag of one mirror is moved by one process of this user at a time.
        session.store.lock(hashlib.sha256(str(place).encode()).hexdigest()),
        fetch.Network(environ, limits=patient, on_wait=note) as outgoing,
    ):
        catalog = catalog_to_copy(session)
        contents = contents_of(session, catalog, narrow)
        root = hashlib.sha256(catalog.repository.root).hexdigest()
        there = _files_there(place, root, outgoing)
        require_not_ahead(session, RegistryCopy(place, there, outgoing), catalog)
        registry = RegistryPush(place, outgoing)
        sizes = {each.sha256: registry.size(each.sha256) for each in contents.artifacts}
        lacking = [
            each
            for each in contents.artifacts
            if sizes[each.sha256] is None or sizes[each.sha256] != (each.size or sizes[each.sha256])
        ]
        files = {f"sha256/{name}": Blob(name, size or 0) for name, size in sizes.items()}
        for artifact, blob in _pass_on(session, registry, lacking):
            files[f"sha256/{artifact.sha256}"] = blob
        for name, data in published_files(catalog).items():
            content = of_bytes(data)
            files[name] = content.blob
            if there.get(name) != content.blob and registry.size(content.blob.sha256) is None:
                registry.put(content)
        if changed := files != there:
            registry.tag(files, root)
    outcome = "updated" if lacking or changed else "unchanged"
    return report_of(outcome, str(place), catalog, contents, lacking)


def _files_there(place: RegistryPlace, root: str, network: fetch.Network) -> Mapping[str, Blob]:
    """Return the files of the mirror as it is; refuse a tag that is of something else."""
    try:
        _, found = fetch.registry_mirror(str(place), network)
    except HttpStatusError as error:
        if error.status == _MISSING:
            return {}
        raise
    if found.root != root:
        raise UsageError(
            f"{place} is the mirror of another repository",
            facts=(f"its root: sha256 {found.root}", f"the one named: sha256 {root}"),
            hint="use a name or a tag for each repository",
        )
    return found.files


def _pass_on(
    session: Session, registry: RegistryPush, lacking: Sequence[Artifact]
) -> Iterator[tuple[Artifact, Blob]]:
    """Fetch each archive, push it and remove it; raise at the end for those that failed."""
    store, failed = session.store, list[tuple[Artifact, DownloadError | TrustError]]()
    with network_for(session) as network:
        for artifact in lacking:
            name = file_name(artifact.url)
            # An install of this user may be downloading the same archive.
            with store.lock(artifact.sha256):
                try:
                    require_space(store.partials, artifact.size or 0, (f"to download: {name}",))
                    file = fetch.fetch(artifact, store.partials, network, session.user.progress)
                except (DownloadError, TrustError) as error:
                    failed.append((artifact, error))
                    continue
                session.user.progress.stage(name, "pushing")
                content = of_file(file, artifact.sha256)
                registry.put(content)
            store.drop_downloads([artifact.sha256])
            yield artifact, content.blob
    session.user.progress.finish()
    if failed:
        raise not_all_fetched(failed, len(lacking))
