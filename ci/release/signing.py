"""TUF metadata from a plan, its release files and signers; Ed25519 signs deterministically."""

from collections.abc import Iterable, Mapping
from typing import Any

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)
from tuf.api.serialization.json import JSONSerializer

from ci.release.build import ReleaseFile
from ci.release.errors import ReleaseError
from ci.release.plan import Plan, RolePlan

TIME = "%Y-%m-%dT%H:%M:%SZ"
_READABLE = JSONSerializer(compact=False)


def sign(
    plan: Plan, releases: Iterable[ReleaseFile], signers: Mapping[str, CryptoSigner]
) -> dict[str, bytes]:
    """Every file of the repository by its path. Raises ``ReleaseError`` for missing signers."""
    releases = tuple(releases)
    roles = plan.roles
    missing = {name for role in roles.values() for name in role.signers} - signers.keys()
    if missing:
        raise ReleaseError(f"these are not among the signers: {', '.join(sorted(missing))}")
    targets = _targets(roles["targets"], releases)
    files = {
        f"targets/{prefixed}": release.data
        for release in releases
        for prefixed in targets.targets[release.path].get_prefixed_paths()
    }
    targets_data = _signed("targets", targets, plan, signers)
    snapshot = Snapshot(**_common(roles["snapshot"]))
    snapshot.meta["targets.json"] = MetaFile.from_data(targets.version, targets_data, ["sha256"])
    snapshot_data = _signed("snapshot", snapshot, plan, signers)
    timestamp = Timestamp(**_common(roles["timestamp"]))
    timestamp.snapshot_meta = MetaFile.from_data(snapshot.version, snapshot_data, ["sha256"])
    root = _root(plan, signers)
    return files | {
        f"metadata/{root.version}.root.json": _signed("root", root, plan, signers),
        f"metadata/{targets.version}.targets.json": targets_data,
        f"metadata/{snapshot.version}.snapshot.json": snapshot_data,
        "metadata/timestamp.json": _signed("timestamp", timestamp, plan, signers),
    }


def _root(plan: Plan, signers: Mapping[str, CryptoSigner]) -> Root:
    root = Root(**_common(plan.roles["root"]), consistent_snapshot=True)
    for name, role in plan.roles.items():
        for signer in role.signers:
            root.add_key(signers[signer].public_key, name)
        root.roles[name].threshold = role.threshold
    return root


def _targets(role: RolePlan, releases: Iterable[ReleaseFile]) -> Targets:
    targets = Targets(**_common(role))
    for release in releases:
        file = TargetFile.from_data(release.path, release.data, ["sha256"])
        file.unrecognized_fields["custom"] = dict(release.custom)
        targets.targets[release.path] = file
    return targets


def _signed(name: str, signed: Any, plan: Plan, signers: Mapping[str, CryptoSigner]) -> bytes:
    """All of a role's signers sign: a client needs the threshold, a rotation may need each."""
    metadata = Metadata(signed)
    for signer in plan.roles[name].signers:
        metadata.sign(signers[signer], append=True)
    return metadata.to_bytes(_READABLE) + b"\n"


def _common(role: RolePlan) -> dict[str, Any]:
    return {
        "version": role.version,
        "expires": role.expires,
        "unrecognized_fields": {"issued": role.issued.strftime(TIME)},
    }
