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
from ci.release.copies import Files
from ci.release.errors import ReleaseError
from ci.release.plan import Plan, RolePlan
from tsuku_llm import trust

Signers = Mapping[str, CryptoSigner]

TIME = "%Y-%m-%dT%H:%M:%SZ"
_READABLE = JSONSerializer(compact=False)
_NOTHING: trust.Copy = Files({})


def sign(
    plan: Plan,
    releases: Iterable[ReleaseFile],
    signers: Signers,
    published: trust.Copy = _NOTHING,
) -> dict[str, bytes]:
    """Every file of the repository by its path; a root that is published stays as it is.

    A next root is also signed by those of the last root's signers that are at hand: clients
    ask for the last root's threshold, too. Raises ``ReleaseError`` for missing signers.
    """
    releases = tuple(releases)
    targets = _targets(plan.roles["targets"], releases)
    files = {
        f"targets/{prefixed}": release.data
        for release in releases
        for prefixed in targets.targets[release.path].get_prefixed_paths()
    }
    root = f"metadata/{plan.roles['root'].version}.root.json"
    files[root] = _kept(published.read(root), plan, signers) or _root(plan, signers, published)
    data = _signed(targets, plan, signers)
    files[f"metadata/{targets.version}.targets.json"] = data
    return files | _online(plan, MetaFile.from_data(targets.version, data, ["sha256"]), signers)


def sign_again(
    plan: Plan, repository: trust.TrustedRepository, copy: trust.Copy, signers: Signers
) -> dict[str, bytes]:
    """The files of a verified repository, with the plan's new snapshot and timestamp.

    Only their signer is needed. Raises ``ReleaseError``.
    """
    version = repository.roles["targets"].version
    names = [target.name for target in repository.targets.values()]
    names += [f"metadata/{repository.roles['root'].version}.root.json"]
    names += [f"metadata/{version}.targets.json"]
    files = {name: data for name in names if (data := copy.read(name)) is not None}
    about_targets = MetaFile.from_data(
        version, files[f"metadata/{version}.targets.json"], ["sha256"]
    )
    return files | _online(plan, about_targets, signers)


def _online(plan: Plan, about_targets: MetaFile, signers: Signers) -> dict[str, bytes]:
    snapshot = Snapshot(**_common(plan.roles["snapshot"]))
    snapshot.meta["targets.json"] = about_targets
    data = _signed(snapshot, plan, signers)
    timestamp = Timestamp(**_common(plan.roles["timestamp"]))
    timestamp.snapshot_meta = MetaFile.from_data(snapshot.version, data, ["sha256"])
    return {
        f"metadata/{snapshot.version}.snapshot.json": data,
        "metadata/timestamp.json": _signed(timestamp, plan, signers),
    }


def _root(plan: Plan, signers: Signers, published: trust.Copy) -> bytes:
    root = Root(**_common(plan.roles["root"]), consistent_snapshot=True)
    for name, role in plan.roles.items():
        for signer in _named(role.signers, signers):
            root.add_key(signer.public_key, name)
        root.roles[name].threshold = role.threshold
    return _signed(root, plan, signers, _last_signers(root.version, signers, published))


def _kept(data: bytes | None, plan: Plan, signers: Signers) -> bytes | None:
    """A published root, if it says what the plan says. Raises ``ReleaseError``."""
    if data is None:
        return None
    root = trust.check_root(data)
    same = root.expires == plan.roles["root"].expires
    for name, role in plan.roles.items():
        known = root.roles[name]
        keyids = {signers[each].public_key.keyid for each in role.signers if each in signers}
        same &= (role.threshold, len(role.signers)) == (known.threshold, len(known.keyids))
        same &= keyids <= set(known.keyids)
    if not same:
        raise ReleaseError(f"root {root.version} is published with other signers or days: rotate")
    return data


def _last_signers(version: int, signers: Signers, published: trust.Copy) -> list[CryptoSigner]:
    """Those at hand of the signers that the root before names for roots."""
    data = published.read(f"metadata/{version - 1}.root.json")
    if data is None:
        return []
    keyids = trust.check_root(data).roles["root"].keyids
    return [signer for signer in signers.values() if signer.public_key.keyid in keyids]


def _targets(role: RolePlan, releases: Iterable[ReleaseFile]) -> Targets:
    targets = Targets(**_common(role))
    for release in releases:
        file = TargetFile.from_data(release.path, release.data, ["sha256"])
        file.unrecognized_fields["custom"] = dict(release.custom)
        targets.targets[release.path] = file
    return targets


def _signed(
    signed: Any, plan: Plan, signers: Signers, others: Iterable[CryptoSigner] = ()
) -> bytes:
    """All of a role's signers sign: a client needs the threshold, a rotation may need each."""
    metadata = Metadata(signed)
    keyids = set()
    for signer in (*_named(plan.roles[signed.type].signers, signers), *others):
        if signer.public_key.keyid not in keyids:
            keyids.add(signer.public_key.keyid)
            metadata.sign(signer, append=True)
    return metadata.to_bytes(_READABLE) + b"\n"


def _named(names: Iterable[str], signers: Signers) -> list[CryptoSigner]:
    missing = set(names) - signers.keys()
    if missing:
        raise ReleaseError(f"these are not among the signers: {', '.join(sorted(missing))}")
    return [signers[name] for name in names]


def _common(role: RolePlan) -> dict[str, Any]:
    return {
        "version": role.version,
        "expires": role.expires,
        "unrecognized_fields": {"issued": role.issued.strftime(TIME)},
    }
