"""TUF metadata from a plan, its release files and signers.

A file's content comes from the plan alone, and its signatures from the signers at hand. So the
holders of signers can sign the same bytes one after another, each on another machine. They pass on
the files in which the signatures are collected.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from securesystemslib.signer import (  # type: ignore[attr-defined]  # its own re-exports
    Signer,
    SSlibKey,
)
from tuf.api.metadata import (  # type: ignore[attr-defined]  # its own re-exports
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
    UnsignedMetadataError,
)
from tuf.api.serialization import DeserializationError
from tuf.api.serialization.json import JSONSerializer

from tsuku_llm import trust
from tsuku_llm.revocations import plain
from tsuku_publish.copies import MemoryCopy
from tsuku_publish.documents import ReleaseFile
from tsuku_publish.errors import PublishError
from tsuku_publish.plan import Plan, RolePlan

Signers = Mapping[str, Signer]

TIME = "%Y-%m-%dT%H:%M:%SZ"
_READABLE = JSONSerializer(compact=False)
_NOTHING: trust.Copy = MemoryCopy({})


def sign(
    plan: Plan,
    releases: Iterable[ReleaseFile],
    signers: Signers,
    published: trust.Copy = _NOTHING,
    gathered: trust.Copy = _NOTHING,
) -> dict[str, bytes]:
    """Return every file of the repository by its path.

    A root and targets that are ``published`` stay as they are, so their signers are not needed
    again. Otherwise the ``gathered`` signatures count as well as those of the signers at hand.
    Raises ``PublishError`` without the online signer.
    """
    releases = tuple(releases)
    files = offline_files(plan, releases, signers, published, gathered)
    version = plan.roles["targets"].version
    targets = files[f"metadata/{version}.targets.json"]
    # The snapshot names the targets by digest, so a host cannot mix files of two states.
    about_targets = MetaFile.from_data(version, targets, ["sha256"])
    return _release_files(plan, releases) | files | _online(plan, about_targets, signers)


def offline_files(
    plan: Plan,
    releases: Iterable[ReleaseFile],
    signers: Signers,
    published: trust.Copy,
    gathered: trust.Copy,
) -> dict[str, bytes]:
    """Return root and targets, with the signatures that exist so far.

    The signers of the last root also sign the next one: clients require its threshold, too. Raises
    ``PublishError`` before signing if other content of that version is published: with two signed
    contents of one version a host could show a different one to each user.
    """
    # The last root is one version below: clients accept a next root only if its keys signed it.
    root, last = _root(plan), _published_root(plan.roles["root"].version - 1, published)
    entitled = {
        "root": [*root.roles["root"].keyids, *(last.roles["root"].keyids if last else ())],
        "targets": root.roles["targets"].keyids,
    }
    files = {}
    for signed in (root, _targets(plan, releases)):
        name = f"metadata/{signed.version}.{signed.type}.json"
        kept = published.read(name)
        if kept is not None and not _same(signed, kept):
            raise PublishError(f"other content exists under the same version, raise it: {name}")
        # Published bytes stay as they are: clients have stored them, with these signatures.
        files[name] = kept or _signed(signed, signers, entitled[signed.type], gathered.read(name))
    return files


def lacking(plan: Plan, files: Mapping[str, bytes], published: trust.Copy) -> list[str]:
    """Return what root and targets still lack: one line for each threshold that is not reached."""
    version = plan.roles["root"].version
    data = _parsed(files[f"metadata/{version}.root.json"])
    targets = _parsed(files[f"metadata/{plan.roles['targets'].version}.targets.json"])
    root: Root = data.signed
    of_root = root.get_root_verification_result(
        _published_root(version - 1, published), data.signed_bytes, data.signatures
    )
    of_targets = root.get_verification_result("targets", targets.signed_bytes, targets.signatures)
    results = {"root, by the last root": of_root.first, "root": of_root.second}
    return [
        f"{name}: {len(result.signed)} of {result.threshold} signatures"
        for name, result in (results | {"targets": of_targets}).items()
        if not result
    ]


def sign_again(
    plan: Plan, repository: trust.TrustedRepository, copy: trust.Copy, signers: Signers
) -> dict[str, bytes]:
    """Return the files of a verified repository, with the plan's new snapshot and timestamp.

    Only their signer is needed. Raises ``PublishError``.
    """
    version = repository.roles["targets"].version
    names = [target.name for target in repository.targets.values()]
    names += [f"metadata/{repository.roles['root'].version}.root.json"]
    names += [f"metadata/{version}.targets.json"]
    files = {name: data for name in names if (data := copy.read(name)) is not None}
    targets = files[f"metadata/{version}.targets.json"]
    return files | _online(plan, MetaFile.from_data(version, targets, ["sha256"]), signers)


def _online(plan: Plan, about_targets: MetaFile, signers: Signers) -> dict[str, bytes]:
    snapshot = Snapshot(**_common(plan.roles["snapshot"]))
    snapshot.meta["targets.json"] = about_targets
    data = _signed_online(snapshot, plan, signers)
    timestamp = Timestamp(**_common(plan.roles["timestamp"]))
    timestamp.snapshot_meta = MetaFile.from_data(snapshot.version, data, ["sha256"])
    return {
        f"metadata/{snapshot.version}.snapshot.json": data,
        "metadata/timestamp.json": _signed_online(timestamp, plan, signers),
    }


def _root(plan: Plan) -> Root:
    root = Root(**_common(plan.roles["root"]), consistent_snapshot=True)
    for name, role in plan.roles.items():
        for signer in role.signers:
            root.add_key(_public_key(signer, plan), name)
        root.roles[name].threshold = role.threshold
    return root


def _published_root(version: int, published: trust.Copy) -> Root | None:
    data = published.read(f"metadata/{version}.root.json")
    root = _parsed(data).signed if data else None
    if root is not None and not isinstance(root, Root):
        raise PublishError(f"metadata/{version}.root.json is no root")
    return root


def _parsed(data: bytes) -> Metadata[Any]:
    try:
        return Metadata.from_bytes(data)
    except DeserializationError as error:
        raise PublishError(f"a file of metadata is damaged: {error.__cause__ or error}") from error


def _public_key(name: str, plan: Plan) -> SSlibKey:
    if name not in plan.keys:
        raise PublishError(f"[keys] has no public key of {name}")
    return plan.keys[name]


def _release_files(plan: Plan, releases: Iterable[ReleaseFile]) -> dict[str, bytes]:
    releases = tuple(releases)
    targets = _targets(plan, releases).targets
    return {
        f"targets/{prefixed}": release.data
        for release in releases
        for prefixed in targets[release.path].get_prefixed_paths()
    }


def _targets(plan: Plan, releases: Iterable[ReleaseFile]) -> Targets:
    targets = Targets(**_common(plan.roles["targets"]))
    if plan.revoked:
        # A separate field: a target's custom field would disappear with its target.
        targets.unrecognized_fields["revoked"] = plain(plan.revoked)
    for release in releases:
        file = TargetFile.from_data(release.path, release.data, ["sha256"])
        file.unrecognized_fields["custom"] = dict(release.custom)
        targets.targets[release.path] = file
    return targets


def _signed(signed: Any, signers: Signers, entitled: Iterable[str], begun: bytes | None) -> bytes:
    """Return readable JSON with the signatures of ``begun`` and of the signers at hand.

    ``entitled`` are keyids; the signatures come in their order, whichever was made first.
    """
    at_hand = {each.public_key.keyid: each for each in signers.values()}
    metadata: Metadata[Any] = Metadata(signed)
    before = _same(signed, begun)
    for keyid in dict.fromkeys(entitled):
        if keyid in at_hand:
            try:
                metadata.sign(at_hand[keyid], append=True)
            except UnsignedMetadataError as error:
                # Only its cause says which token or file failed, and why.
                raise PublishError(str(error.__cause__ or error)) from None
        # The signatures of other holders, over exactly the same content.
        elif before and keyid in before.signatures:
            metadata.signatures[keyid] = before.signatures[keyid]
    return metadata.to_bytes(_READABLE) + b"\n"


def _signed_online(signed: Any, plan: Plan, signers: Signers) -> bytes:
    names = plan.roles[signed.type].signers
    if not set(names) <= signers.keys():
        raise PublishError(f"the online signer is not at hand: {', '.join(names)}")
    return _signed(signed, signers, [_public_key(name, plan).keyid for name in names], None)


def _same(signed: Any, data: bytes | None) -> Metadata[Any] | None:
    """Return the metadata in a file if it signs exactly this content."""
    if data is None:
        return None
    metadata = _parsed(data)
    return metadata if metadata.signed_bytes == Metadata(signed).signed_bytes else None


def _common(role: RolePlan) -> dict[str, Any]:
    return {
        "version": role.version,
        "expires": role.expires,
        "unrecognized_fields": {"issued": role.issued.strftime(TIME)},
    }
