"""Verification of a signed repository; the only maker of ``VerifiedBytes``.

A repository follows The Update Framework (TUF 1.0): a chain of roots from a pinned one, then
timestamp → snapshot → targets and the roles that targets delegates to. The whole is verified at
every load, with python-tuf's public metadata API. No result is stored as "already checked".
Beyond the specification, this program requires strong keys, each listed once (``trust.keys``),
consistent snapshots, and JSON that all readers understand in the same way.

Expiry is reported here, not refused: what was trusted yesterday may be installed offline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NewType

from tsuku_llm.ground.errors import DigestMismatch, MetadataError, TsukuError
from tsuku_llm.trust.delegations import Target, TargetsRoles
from tsuku_llm.trust.keys import is_weak
from tsuku_llm.trust.metadata import (
    HINT,
    ROLES,
    Copy,
    RoleState,
    Stated,
    check_metadata,
    check_role,
    decode_json,
    delegated,
    file_name,
    of_kind,
    read,
    referred,
    refusal,
    state_of,
    stated_by,
    threshold_fact,
    versions_of,
)

if TYPE_CHECKING:
    from tuf.api.metadata import (  # type: ignore[attr-defined]  # its own re-exports
        Metadata,
        Root,
        Snapshot,
        Targets,
        Timestamp,
    )

__all__ = [
    "MAX_ROTATIONS",
    "RELEASES",
    "ROLES",
    "Copy",
    "RoleState",
    "Stated",
    "Target",
    "TrustedRepository",
    "VerifiedBytes",
    "check_metadata",
    "check_role",
    "check_root",
    "decode_json",
    "file_name",
    "is_weak",
    "later_roots",
    "load",
    "newest_root",
    "setbacks",
    "state_of",
    "versions",
]

VerifiedBytes = NewType("VerifiedBytes", bytes)
"""Bytes whose signature chain, length and SHA-256 were checked in this process."""

MAX_ROTATIONS = 256
"""So many roots after the pinned one are refused; python-tuf's client stops there too."""

RELEASES = "releases/*"
"""The pattern of the targets that the program reads: every file of this folder.

With it, the release files in a delegated role's own folder are read too.
"""


@dataclass(frozen=True, slots=True)
class TrustedRepository:
    """A repository whose whole chain was verified in this process.

    ``roles`` are the four of every repository and the delegated ones that were needed.
    ``targets`` are the ones asked for, in the order of their roles' priority. ``versions`` are
    the versions that must never go back: of timestamp, of snapshot, and of each role that the
    snapshot names. ``revoked`` is the field of that name in the top-level targets metadata, as
    the publisher signed it, and so is ``program``: the newest version of this program. ``refused``
    has each delegated role whose own keys signed what this program does not accept, with the
    reason; such a role signs no target. ``branches`` has the channel to which each delegated role
    belongs, None for one that signs for targets itself. ``unread`` are refused roles whose files
    were not looked at. ``withheld`` has each channel whose role the copy lacks or has forged, with
    the error.
    """

    roles: Mapping[str, RoleState]
    targets: Mapping[str, Target]
    versions: Mapping[str, int]
    revoked: Any = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    program: Any = None
    branches: Mapping[str, str | None] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    withheld: Mapping[str, TsukuError] = field(default_factory=dict)

    def read(self, path: str, data: bytes) -> VerifiedBytes:
        """Check a target's bytes against the signed length and SHA-256.

        Raises ``DigestMismatch``, and ``MetadataError`` if no such target is signed.
        """
        target = self.targets.get(path)
        if target is None:
            raise MetadataError(f"{path} is not a signed target of this repository")
        digest = hashlib.sha256(data).hexdigest()
        if (len(data), digest) != (target.length, target.sha256):
            raise DigestMismatch(
                f"{path} is not the file that was signed",
                facts=(
                    f"signed: {target.length} bytes, sha256 {target.sha256}",
                    f"found: {len(data)} bytes, sha256 {digest}",
                ),
                hint=HINT,
            )
        return VerifiedBytes(data)

    def expired(self, now: datetime, channel: str | None = None) -> tuple[str, ...]:
        """List the roles that have expired; ``now`` in UTC.

        Of delegated roles only those of the branch ``channel`` count: the others of this kind sign
        for other channels.
        """
        return tuple(role for role, state in self.within(channel).items() if state.expires <= now)

    def within(self, channel: str | None) -> Mapping[str, RoleState]:
        """Return the roles that decide for everybody, and those of one branch."""
        return {
            role: state
            for role, state in self.roles.items()
            if self.branches.get(role) in (None, channel)
        }

    def late(self, now: datetime) -> Mapping[str, RoleState]:
        """Return the first expired role of each branch; one that signs nothing has no date."""
        return {
            branch: state
            for role, state in reversed(tuple(self.roles.items()))
            if (branch := self.branches.get(role)) and state.expires <= now
            if not {role, branch} & self.refused.keys()
        }


def load(
    copy: Copy,
    pinned_root: bytes,
    sought: str = RELEASES,
    accept: Callable[[Stated], object] = lambda _: None,
) -> TrustedRepository:
    """Verify a whole repository, starting with the pinned root.

    The order and the checks are those of the TUF specification's client workflow (section 5),
    without the comparison with an earlier copy (``setbacks``). ``sought`` names the targets to
    find: one path, or a folder's files ("releases/*") and those in a delegated role's own folder.
    Only delegated roles that may sign one of them are read. ``accept`` gets the content of
    timestamp, snapshot and targets, each before the next file is read; it may raise to refuse it.
    Raises ``MetadataError`` with the role and the reason.
    """
    root = newest_root(copy, pinned_root)
    timestamp, snapshot = _online(copy, root, accept)
    about_targets = snapshot.meta.get("targets.json")
    if about_targets is None:
        raise refusal("snapshot", "it does not name the targets metadata")
    top: Targets = referred(copy, root, "targets", about_targets)
    accept(stated_by(top))
    tree = TargetsRoles(copy, snapshot, top)
    # A role may list paths that it is not delegated: ``paths`` finds candidates, and ``find``
    # decides who signs each one.
    paths = tree.paths(sought) if "*" in sought else (sought,)
    targets = {path: found for path in paths if (found := tree.find(path))}
    roles = {signed.type: state_of(signed) for signed in (root, timestamp, snapshot)}
    roles |= {name: state_of(signed) for name, signed in tree.roles.items()}
    # Both name the snapshot's version; ``referred`` has checked that they agree.
    known = {**versions_of(snapshot), **versions_of(timestamp)}
    revoked = top.unrecognized_fields.get("revoked", [])
    return TrustedRepository(
        roles,
        targets,
        known,
        revoked,
        tree.refused,
        top.unrecognized_fields.get("program"),
        tree.branches,
        frozenset(tree.unread),
        tree.withheld,
    )


def versions(copy: Copy, pinned_root: bytes) -> Mapping[str, int]:
    """Verify roots, timestamp and snapshot only; return the versions that they name.

    The roles that they name are not verified: their keys may have been replaced, and the
    versions in an earlier timestamp and snapshot still count (TUF 5.3.11). Raises
    ``MetadataError``.
    """
    timestamp, snapshot = _online(copy, newest_root(copy, pinned_root), lambda _: None)
    return {**versions_of(snapshot), **versions_of(timestamp)}


def setbacks(known: Mapping[str, int], other: Mapping[str, int]) -> tuple[str, ...]:
    """List each role that ``other`` has in a lower version than ``known``, or lacks.

    The rule is TUF 5.4.3, 5.5.5 and 5.6.4. It goes role by role: a higher version of one role
    does not excuse a lower version of another.
    """
    return tuple(role for role, version in known.items() if other.get(role, 0) < version)


def newest_root(copy: Copy, pinned_root: bytes) -> Root:
    """Walk from the pinned root to the newest one; each has old and new keys' signatures.

    Raises ``MetadataError``.
    """
    root = check_root(pinned_root)
    for later, _ in later_roots(copy, root):
        root = later
    return root


def later_roots(copy: Copy, root: Root) -> Iterator[tuple[Root, bytes]]:
    """Yield each later root of a copy with its bytes, verified by the one before and itself.

    Raises ``MetadataError`` for the first that does not verify, and after ``MAX_ROTATIONS``.
    """
    for _ in range(MAX_ROTATIONS):
        data = copy.read(f"metadata/{root.version + 1}.root.json")
        if data is None:
            return
        metadata: Metadata[Root] = of_kind(data, "root", "root")
        version = metadata.signed.version
        # TUF 5.3.5: no root may be skipped or repeated. Each one carries over the trust in its
        # keys.
        if version != root.version + 1:
            raise refusal("root", f"expected version {root.version + 1}, it says {version}")
        result = metadata.signed.get_root_verification_result(
            root, metadata.signed_bytes, metadata.signatures
        )
        # TUF 5.3.4: the old keys show that the change is wanted, the new ones that they work.
        for keys, part in (("old", result.first), ("new", result.second)):
            if not part:
                raise refusal("root", f"version {version}, {keys} keys: {threshold_fact(part)}")
        root = metadata.signed
        yield root, data
    raise refusal("root", f"{MAX_ROTATIONS} rotations or more since the pinned root")


def check_root(data: bytes) -> Root:
    """Read a root that is trusted as it is: a pinned one, or one that a user adds.

    Raises ``MetadataError`` if it does not verify against itself.
    """
    metadata: Metadata[Root] = of_kind(data, "root", "root")
    result = metadata.signed.get_root_verification_result(
        None, metadata.signed_bytes, metadata.signatures
    )
    if not result:
        raise refusal("root", threshold_fact(result.first))
    return metadata.signed


# --- the chain -------------------------------------------------------------------------


def _online(
    copy: Copy, root: Root, accept: Callable[[Stated], object]
) -> tuple[Timestamp, Snapshot]:
    data = read(copy, "metadata/timestamp.json", "timestamp")
    timestamp: Timestamp = delegated(root, data, "timestamp", "timestamp")
    accept(stated_by(timestamp))
    snapshot: Snapshot = referred(copy, root, "snapshot", timestamp.snapshot_meta, "snapshot")
    accept(stated_by(snapshot))
    return timestamp, snapshot
