"""The entries of a verified copy: which releases it offers, and which are skipped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tsuku_llm import trust
from tsuku_llm.ground.errors import CorruptStore, ManifestError, TrustError, UnsafeLocation
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.trust import Copy, Target, TrustedRepository
from tsuku_llm.trust.delegations import is_own_file, matches

if TYPE_CHECKING:  # msgspec, below the manifest, is loaded when a manifest is read
    from tsuku_llm.catalog.manifest import ReleaseEntry

_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
_MOST_NOTES = 8
"""The most notes about one copy: a thief of a key could sign thousands of unreadable entries."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verified copy with its entries (newest first), which this version can read.

    ``files`` has the signed file of each entry, and of each skipped release, by its tag.
    ``skipped`` has the reason for each release whose entry cannot be read, by its tag, or by its
    path if the tag belongs to another role. ``notes`` say what was skipped.
    """

    source: str
    copy: Copy
    trusted: TrustedRepository
    entries: tuple[ReleaseEntry, ...]
    files: Mapping[str, Target]
    skipped: Mapping[str, str]
    notes: tuple[str, ...]


def with_entries(source: str, copy: Copy, trusted: TrustedRepository) -> Loaded:
    """Read the entries of all releases, newest first; skip what a role may not offer.

    A path delegated to the role "nightly" is only for the channel "nightly". A name that a user
    can ask for, tag or version, belongs to the role of the highest priority that claims it. So an
    automatic signer of one channel can neither add releases to another channel nor take the names
    of its releases. An unreadable entry is skipped with a note: it must not hide other releases or
    the revocations of the same metadata. Raises ``StoreError`` for the disk.
    """
    entries: dict[str, ReleaseEntry] = {}
    files: dict[str, Target] = {}
    names: dict[str, str | None] = {}
    skipped: dict[str, str] = {}
    held: dict[str, Target] = {}
    notes = [f"the role {role[:60]!a} is skipped: {why}" for role, why in trusted.refused.items()]
    # The targets come in the order of their roles' priority: the first claim counts.
    for path, target in trusted.targets.items():
        try:
            entry = _entry(path, target, copy, trusted)
        except _Unreadable as reason:
            # Only the path says which release this is. It keeps its names from the roles after its
            # own: else they could pass off another release as this one.
            name = path.rpartition("/")[2].removesuffix(".json")
            tag = name.removeprefix("v")
            if _NAME.fullmatch(name) and names.setdefault(tag, target.branch) == target.branch:
                names.setdefault(_stated_version(target) or tag, target.branch)
                held.setdefault(name, target)
            else:
                name = path
            skipped.setdefault(name, str(reason))
            shown = name if matches(path, trust.RELEASES) else f"{path[:100]!a}"
            notes.append(f"{shown} is skipped: {reason}")
            continue
        if entry is None:
            continue
        tag = entry.release
        if tag in files:
            # The very same file in a second role's folder, as after a promotion: the release is in
            # both channels. Another file of that name would take the name of the first one.
            if files[tag].sha256 == target.sha256:
                channels = dict.fromkeys((*entries[tag].channels, *entry.channels))
                entries[tag] = replace(entries[tag], channels=tuple(channels))
            continue
        # A tag may look like the version of another release, also with the "v" of
        # ``Catalog.entry``.
        claimed = {tag.removeprefix("v"), entry.version or tag}
        if any(names.get(name, target.branch) != target.branch for name in claimed):
            continue
        names |= dict.fromkeys(claimed, target.branch)
        entries[tag], files[tag] = entry, target
    if (more := len(notes) - _MOST_NOTES) > 0:
        notes[_MOST_NOTES:] = [f"{more} more are skipped: {TSUKU} list --available"]
    newest = sorted(entries.values(), key=lambda each: (each.sequence, each.release), reverse=True)
    return Loaded(source, copy, trusted, tuple(newest), {**held, **files}, skipped, tuple(notes))


class _Unreadable(Exception):
    """The reason why a release has no entry that this version can read."""


def _entry(
    path: str, target: Target, copy: Copy, trusted: TrustedRepository
) -> ReleaseEntry | None:
    """Read the entry of one target; None if it is not offered.

    In ``releases/`` the entry is signed with the target. In a role's own folder there is none: the
    folder is the channel, and the release file says the rest. Raises ``_Unreadable``, and
    ``StoreError`` for the disk.
    """
    from tsuku_llm.catalog.manifest import entry_in, parse_entry

    try:
        if matches(path, trust.RELEASES):
            entry = parse_entry(target)
            if path != f"releases/{entry.release}.json":
                raise ManifestError(f"the entry of {path[:100]!r} describes {entry.release}")
            is_offered = target.branch is None or entry.channels == (target.branch,)
            return entry if is_offered else None
        if target.branch is None or not is_own_file(path, target.branch):
            return None
        tag = path.rpartition("/")[2].removesuffix(".json")
        data = copy.read(target.name)
        if data is None:
            raise _Unreadable("its file is missing")
        return entry_in(trusted.read(path, data), tag, target.branch)
    except (TrustError, CorruptStore, UnsafeLocation) as error:
        raise _Unreadable(": ".join((error.message, *error.facts[:1]))) from error


def _stated_version(target: Target) -> str | None:
    """Return the version in an entry that is otherwise not understood."""
    stated = target.custom.get("version") if isinstance(target.custom, dict) else None
    return stated if isinstance(stated, str) else None
