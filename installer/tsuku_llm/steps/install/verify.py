"""The check of everything that is installed against what was signed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tsuku_llm.archive.composing import kept_artifacts
from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.manifest import ReleaseEntry, Variant
from tsuku_llm.choose.selection import variant_named
from tsuku_llm.ground.errors import (
    CorruptStore,
    GateFailed,
    NotInstalled,
    SelectionError,
    StoreError,
    TrustError,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.records import documented
from tsuku_llm.steps.choosing.choice import load_catalog, version_of
from tsuku_llm.steps.install.versions import all_ids, found, resolve
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import Receipt


class ComputedNow(NamedTuple):
    """How rightly a build computes now: ``deviation`` and ``not_computed`` as in a receipt.

    ``failure`` is why it must not be used, None if it computes rightly.
    """

    deviation: float | None
    not_computed: str = ""
    failure: GateFailed | None = None


@documented("id", "intact", "differences", "repair", "receipt", "not_signed", "computed")
@dataclass(frozen=True, slots=True)
class VersionCheck:
    """One version: every difference in words, and the command to repair it, None if it is intact.

    ``receipt`` is None if it cannot be read. ``not_signed`` says why the files were compared only
    with the receipt, which is not signed; None if the signed list was used as well. ``computed`` is
    None for a version that was not asked to compute.
    """

    id: str
    differences: tuple[str, ...]
    repair: str | None
    receipt: Receipt | None = None
    not_signed: str | None = None
    computed: ComputedNow | None = None

    @property
    def intact(self) -> bool:
        """True if the build is as it was installed."""
        return not self.differences


def verify(
    session: Session,
    names: Sequence[str] = (),
    *,
    compute: bool = False,
    on_version: Callable[[str], None] = lambda _: None,
) -> tuple[VersionCheck, ...]:
    """Hash every file of the named versions, or of all; the names are those of ``use``.

    This compares the files with the receipt, and the receipt with the release that the repository
    signed, as this machine knows it. It asks no host. With ``compute`` the named versions, else the
    active one, are tried as well. Raises ``NotInstalled`` and
    ``UsageError`` as ``use`` does, and ``NotInstalled`` if no version is named or active that could
    compute. ``on_version`` is called with the id of each version before its files are hashed.
    """
    reader = session.reader
    ids = resolve(reader, names) if names else all_ids(reader)
    to_try: Collection[str] = ids if compute and names else ()
    if compute and not names:
        active = reader.active()
        if active is None:
            raise NotInstalled("no version is active", hint=f"run: {TSUKU} install")
        to_try = (active.id,)

    @cache
    def catalog(repository: str) -> Catalog | str:
        """Return the metadata of a repository, or in words why there is none."""
        try:
            return load_catalog(session.with_settings(repository=repository))
        except (SelectionError, TrustError, StoreError) as error:
            return error.message

    def check(version: str) -> VersionCheck:
        on_version(version)
        try:
            installed = found(reader, version)
        except CorruptStore as error:
            facts = (error.message, *error.facts)
            return VersionCheck(version, facts, f"{TSUKU} uninstall {version}")
        receipt = installed.receipt
        # The receipt is as easy to change as the files: only what was signed proves anything.
        signed: tuple[ReleaseEntry, tuple[Variant, ...]] | str
        if receipt.unsigned is None:
            signed = _signed(receipt, catalog(receipt.repository))
        else:
            signed = f"it is an unsigned build, installed from {receipt.unsigned}"
        differences = reader.verify(installed)
        if isinstance(signed, str):
            not_signed = signed
        else:
            entry, variants = signed
            not_signed = None
            # Platforms may share a build: it is enough that one of them matches.
            found_each = [tuple(signed_differences(receipt, entry, each)) for each in variants]
            differences = (*differences, *min(found_each, key=len))
        repair = receipt.reinstall if differences else None
        # The files may be gone from which an unsigned build was installed or compiled. A source
        # that pip fetches is not a path.
        source = receipt.unsigned or ""
        if repair and os.path.isabs(source) and not os.path.exists(source):
            repair = f"{TSUKU} uninstall {version}"
        computed = _computed(session, installed, differences) if version in to_try else None
        return VersionCheck(version, differences, repair, receipt, not_signed, computed)

    return tuple(check(version) for version in ids)


def _computed(session: Session, installed: Installed, differences: Sequence[str]) -> ComputedNow:
    """Let a build compute now; a changed one is not run."""
    if differences:
        return ComputedNow(None, "its files are not as they were installed")
    from tsuku_llm.steps.install.trial import try_installed  # noqa: PLC0415 - few checks compute

    try:
        receipt = try_installed(session, installed)
    except GateFailed as error:
        return ComputedNow(error.deviation, failure=error)
    return ComputedNow(receipt.deviation, receipt.not_computed)


def _signed(
    receipt: Receipt, catalog: Catalog | str
) -> tuple[ReleaseEntry, tuple[Variant, ...]] | str:
    """Return what was signed about the build of a receipt, or in words why there is nothing."""
    if isinstance(catalog, str):
        return catalog
    name = f"{receipt.release} of repository {catalog.repository.name}"
    entry = next((each for each in catalog.entries if each.release == receipt.release), None)
    if entry is None:
        why = catalog.skipped.get(receipt.release)
        return (
            f"{name} {f'cannot be read: {why}' if why else 'is no longer in its signed metadata'}"
        )
    try:
        release = catalog.read(entry)
    except TrustError as error:
        return error.message
    named = (variant_named(platform, receipt.variant) for platform in release.platforms.values())
    variants = tuple(
        each for each in named if each and version_of(receipt.release, each) == receipt.id
    )
    if not variants:
        return f"{name} has no such build in its signed metadata"
    if any(artifact.files is None for each in variants for artifact in each.artifacts):
        return f"{name} has no signed list of files"
    return entry, variants


def signed_differences(receipt: Receipt, entry: ReleaseEntry, variant: Variant) -> Iterator[str]:
    """Yield the differences between a receipt and what was signed. Pure.

    The variant has a list of files for each of its archives.
    """
    facts = {
        "publisher": (receipt.publisher, entry.publisher),
        "sequence": (receipt.sequence, entry.sequence),
        "backend": (receipt.backend, variant.backend),
        "server": (receipt.server, variant.server),
        "arguments": (receipt.arguments, variant.arguments),
        "parts": (
            tuple((part.variant, part.backend) for part in receipt.parts),
            tuple((part.name, part.backend) for part in variant.parts),
        ),
    }
    for name, (said, signed) in facts.items():
        if said != signed:
            yield f"the receipt's {name} is {said!r}, and {signed!r} was signed"
    # Revocations name the archives of a build: with others in the receipt, none would count.
    digests = ([each.sha256 for each in part.artifacts] for part in variant.signed)
    if receipt.builds != tuple(tuple(sorted(each)) for each in digests):
        yield "the receipt names other archives than those that were signed"
    try:
        artifacts = kept_artifacts(variant)
    except GateFailed as error:
        # It was installed by a version with other rules.
        yield error.reason
        return
    signed_files = {
        file.path: (file.size, file.sha256, file.executable)
        for artifact in artifacts
        for file in artifact.files or ()
    }
    files = {file.path: (file.size, file.sha256, file.executable) for file in receipt.files}
    links = {link.path: link.target for link in receipt.links}
    signed_links = {link.path: link.target for each in artifacts for link in each.links}
    for path in sorted(signed_files.keys() | files.keys()):
        if files.get(path) != signed_files.get(path):
            yield f"not as it was signed: {path}"
    for path in sorted(signed_links.keys() | links.keys()):
        if links.get(path) != signed_links.get(path):
            yield f"not the link that was signed: {path}"
