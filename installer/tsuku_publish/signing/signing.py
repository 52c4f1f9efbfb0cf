"""TUF metadata from a plan, its release files and signers.

A file's content comes from the plan alone, and its signatures from the signers at hand. So the
holders of signers can sign the same bytes one after another, each on another machine. They pass on
the files in which the signatures are collected.
"""

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from securesystemslib.signer import (  # type: ignore[attr-defined]  # its own re-exports
    Key,
    Signer,
    SSlibKey,
)
from tuf.api.metadata import (  # type: ignore[attr-defined]  # its own re-exports
    DelegatedRole,
    Delegations,
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
from tsuku_llm.catalog.copies import TIMESTAMP
from tsuku_llm.catalog.revocations import plain
from tsuku_publish.errors import PublishError, other_content
from tsuku_publish.release_files.documents import ReleaseFile
from tsuku_publish.release_files.plan import TARGETS, Plan, RolePlan
from tsuku_publish.release_files.sightings import TIME, parse_time
from tsuku_publish.repository.copies import MemoryCopy

Signers = Mapping[str, Signer]

_READABLE = JSONSerializer(compact=False)
NOTHING: trust.Copy = MemoryCopy({})
"""A repository that has no file yet."""


@dataclass(frozen=True, slots=True)
class NextState:
    """What is to be signed: a plan, the roles that sign it now, and their release files.

    Snapshot and timestamp always sign, so they are not among the ``roles``: these are
    ``due_roles``, or one channel for its own signer.
    """

    plan: Plan
    roles: tuple[str, ...]
    files: tuple[ReleaseFile, ...]


def sign(
    state: NextState, signers: Signers, published: trust.Copy, gathered: trust.Copy = NOTHING
) -> dict[str, bytes]:
    """Return every file of the repository by its path, but no older roots.

    Roles that the state does not sign stay as they are ``published``. Of those to sign, the
    ``gathered`` signatures count as well as those of the signers at hand. Raises ``PublishError``
    without the online signer.
    """
    plan, before = state.plan, _snapshot(published)
    files = offline_files(state, signers, published, gathered)
    states = {
        role: (version, files[name])
        for role in state.roles
        if role != "root" and (name := trust.file_name(role, version := plan.roles[role].version))
    }
    # A role that is not delegated any more stays in the snapshot: clients refuse one that lacks a
    # role that they know.
    for role, version in before.items():
        if role not in states:
            name = trust.file_name(role, version)
            files[name] = _required(published, name)
            states[role] = version, files[name]
    signed = (data for _, data in states.values())
    targets = _target_files(signed, state.files, published, gathered)
    return targets | files | _online(plan, states, signers, published)


def renewed(
    plan: Plan, signers: Signers, published: trust.Copy, roles: Collection[str]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the files of a published state whose roles get the plan's versions and days.

    ``roles`` are signed again, and snapshot and timestamp always; nothing else of their content
    changes, nor how long they hold. One that cannot be signed, such as for want of a passphrase,
    stays as it is: the second value has the reasons. Raises ``PublishError`` without the online
    signer.
    """
    keys, failed = published_keys(published), dict[str, str]()
    files: dict[str, bytes] = {}
    states: dict[str, tuple[int, bytes]] = {}
    for role, version in {"root": _root_number(published), **_snapshot(published)}.items():
        name = trust.file_name(role, version)
        number, data = version, _required(published, name)
        if role in roles:
            signed = _parsed(data, name).signed
            # Another lifetime in the plan is a change that people have not read yet.
            days = keys[role].days or plan.roles[role].days
            planned = replace(plan.roles[role], days=days)
            signed.version, signed.expires = planned.version, planned.expires
            signed.unrecognized_fields |= _common(planned)["unrecognized_fields"]
            try:
                data = _signed(signed, signers, keys[role].keys, None)
            except PublishError as error:
                failed[role] = error.message
            else:
                number = signed.version
        files[trust.file_name(role, number)] = data
        if role != "root":
            states[role] = number, data
    targets = _target_files((data for _, data in states.values()), (), published)
    return targets | files | _online(plan, states, signers, published), failed


def due_roles(plan: Plan, published: trust.Copy) -> tuple[str, ...]:
    """List the roles that people sign together: root, targets, and each channel that must begin.

    A channel's metadata begins, or begins again, if the published one is not signed as planned.
    """
    versions, targets = _snapshot(published), _targets(plan, TARGETS, ())
    due = ["root", TARGETS]
    for role in plan.delegated:
        name = trust.file_name(role, versions.get(role, 0))
        found = published.read(name)
        data = _parsed(found, name) if found else None
        if data is None or not targets.get_verification_result(
            role, data.signed_bytes, data.signatures
        ):
            due.append(role)
    return tuple(due)


def offline_files(
    state: NextState, signers: Signers, published: trust.Copy, gathered: trust.Copy
) -> dict[str, bytes]:
    """Return the metadata of the roles to sign, with the signatures that exist so far.

    Raises ``PublishError`` before signing if other content of that version is published or
    gathered: with two signed contents of one version a host could show a different one to each
    user.
    """
    plan, files = state.plan, dict[str, bytes]()
    for role in state.roles:
        signed = _signed_part(state, role)
        name = trust.file_name(role, signed.version)
        kept, begun = published.read(name), gathered.read(name)
        if kept is not None and not _same(signed, kept):
            raise other_content(name)
        if begun is not None and not _same(signed, begun):
            raise PublishError(
                f"other content is gathered under the same version: {name}; compare the data with "
                "those of its signers, or begin again in an empty folder"
            )
        # Published bytes stay as they are: clients have stored them, with these signatures.
        files[name] = kept or _signed(signed, signers, entitled(plan, role, published), begun)
    return files


def content(state: NextState, role: str) -> bytes:
    """Return the bytes over which signers of root, targets or a channel sign.

    Everything that a client obeys is in them: release files by their digest, their entries, other
    roles with keys, thresholds and paths, revocations, versions and dates.
    """
    return Metadata(_signed_part(state, role)).signed_bytes


def _signed_part(state: NextState, role: str) -> Any:
    return _root(state.plan) if role == "root" else _targets(state.plan, role, state.files)


def entitled(plan: Plan, role: str, published: trust.Copy) -> tuple[str, ...]:
    """Return the keyids of those whose signatures count for the planned version of a role.

    The signers of the last root also sign the next one: clients require its threshold, too.
    """
    keyids = [public_key(name, plan).keyid for name in plan.roles[role].signers]
    if role == "root":
        # The last root is one version below: clients accept a next root only if its keys signed it.
        last = _published_root(plan.roles[role].version - 1, published)
        keyids += last.roles["root"].keyids if last else []
    return tuple(dict.fromkeys(keyids))


def lacking(
    plan: Plan, files: Mapping[str, bytes], published: trust.Copy, at_hand: Collection[str] = ()
) -> list[str]:
    """Return what these files still lack: one line for each threshold that is not reached.

    The keyids ``at_hand`` count as if they had signed.
    """
    results: dict[str, Any] = {}
    for role, version in ((name, each.version) for name, each in plan.roles.items()):
        name = trust.file_name(role, version)
        if name not in files:
            continue
        data = _parsed(files[name], name)
        if role == "root":
            of_root = data.signed.get_root_verification_result(
                _published_root(version - 1, published), data.signed_bytes, data.signatures
            )
            results |= {"root, by the last root": of_root.first, "root": of_root.second}
        else:
            delegator = _root(plan) if role == TARGETS else _targets(plan, TARGETS, ())
            results[role] = delegator.get_verification_result(
                role, data.signed_bytes, data.signatures
            )
    counts = {
        name: len(result.signed) + len(result.unsigned.keys() & at_hand)
        for name, result in results.items()
    }
    return [
        f"{name}: {counts[name]} of {result.threshold} signatures"
        for name, result in results.items()
        if counts[name] < result.threshold
    ]


def _online(
    plan: Plan, states: Mapping[str, tuple[int, bytes]], signers: Signers, published: trust.Copy
) -> dict[str, bytes]:
    """Return snapshot and timestamp over these roles, each with its version and its file."""
    snapshot = Snapshot(**_common(plan.roles["snapshot"]))
    for role, (version, data) in states.items():
        # The snapshot names each file by digest, so a host cannot mix files of two states.
        snapshot.meta[f"{role}.json"] = MetaFile.from_data(version, data, ["sha256"])
    data = _signed_online(snapshot, plan, signers, published)
    timestamp = Timestamp(**_common(plan.roles["timestamp"]))
    timestamp.snapshot_meta = MetaFile.from_data(snapshot.version, data, ["sha256"])
    return {
        _name_of(snapshot): data,
        _name_of(timestamp): _signed_online(timestamp, plan, signers, published),
    }


def _name_of(signed: Any) -> str:
    if isinstance(signed, Timestamp):
        return TIMESTAMP
    # A channel's role has the type of targets, and another name: only the version is known here.
    return trust.file_name(signed.type, signed.version)


def _snapshot(published: trust.Copy) -> dict[str, int]:
    """Return the version of each role that the published snapshot names; empty without one."""
    timestamp = published.read(TIMESTAMP)
    if timestamp is None:
        return {}
    version = _parsed(timestamp, TIMESTAMP).signed.snapshot_meta.version
    name = trust.file_name("snapshot", version)
    snapshot = _parsed(_required(published, name), name).signed
    return {name.removesuffix(".json"): meta.version for name, meta in snapshot.meta.items()}


def _required(published: trust.Copy, name: str) -> bytes:
    data = published.read(name)
    if data is None:
        raise PublishError(f"{name} is missing in the published repository")
    return data


def _root(plan: Plan) -> Root:
    root = Root(**_common(plan.roles["root"]), consistent_snapshot=True)
    for name in trust.ROLES:
        for signer in plan.roles[name].signers:
            root.add_key(public_key(signer, plan), name)
        root.roles[name].threshold = plan.roles[name].threshold
    return root


@dataclass(frozen=True, slots=True)
class SigningRole:
    """Who signs a published role: keys by their ids, how many must, and the paths it may sign.

    ``days`` is how long its published signature holds; None if that does not say when it was made.
    """

    keys: Mapping[str, Key]
    threshold: int
    paths: tuple[str, ...] = ()
    days: int | None = None


def published_keys(published: trust.Copy) -> dict[str, SigningRole]:
    """Return who signs each role by the newest published root, and each channel by targets.

    The caller verifies the repository. Empty without one. Raises ``PublishError``.
    """
    versions = _snapshot(published)
    if not versions:
        return {}
    number = _root_number(published)
    timestamp: Any = _parsed(_required(published, TIMESTAMP), TIMESTAMP).signed
    versions |= {"root": number, "snapshot": timestamp.snapshot_meta.version}
    # The newest metadata of each role; one that is delegated and not begun has none.
    signed: dict[str, Any] = {"timestamp": timestamp}
    for role, version in versions.items():
        name = trust.file_name(role, version)
        signed[role] = _parsed(_required(published, name), name).signed

    def signing(name: str, role: Any, keys: Mapping[str, Key]) -> SigningRole:
        its = {keyid: keys[keyid] for keyid in role.keyids}
        paths = tuple(getattr(role, "paths", None) or ())
        made = signed.get(name) and signed[name].unrecognized_fields.get("issued")
        days = None
        with contextlib.suppress(ValueError):  # another program may have signed it
            days = (signed[name].expires - parse_time(str(made))).days
        return SigningRole(its, role.threshold, paths, days)

    root, delegations = signed["root"], signed[TARGETS].delegations
    found = {name: signing(name, role, root.keys) for name, role in root.roles.items()}
    if delegations is not None:
        its = (delegations.roles or {}).items()
        found |= {name: signing(name, role, delegations.keys) for name, role in its}
    return found


def _root_number(published: trust.Copy) -> int:
    """Return the version of the newest published root."""
    number = 1
    while published.read(trust.file_name("root", number + 1)) is not None:
        number += 1
    return number


def _published_root(version: int, published: trust.Copy) -> Root | None:
    name = trust.file_name("root", version)
    data = published.read(name)
    root = _parsed(data, name).signed if data else None
    if root is not None and not isinstance(root, Root):
        raise PublishError(f"{name} is no root")
    return root


def _parsed(data: bytes, name: str) -> Metadata[Any]:
    try:
        return Metadata.from_bytes(data)
    except DeserializationError as error:
        raise PublishError(
            f"{name} is damaged: {error.__cause__ or error}",
            hint="fetch the published repository, and the gathered folder, again",
        ) from error


def public_key(name: str, plan: Plan) -> SSlibKey:
    """Return the public key of a signer. Raises ``PublishError`` if the plan has none."""
    if name not in plan.keys:
        raise PublishError(f"[keys] has no public key of {name}")
    return plan.keys[name]


def absent(plan: Plan, role: str, signers: Signers) -> tuple[str, ...]:
    """Name the signers of a role whose keys are not at hand."""
    at_hand = {each.public_key.keyid for each in signers.values()}
    names = plan.roles[role].signers
    return tuple(name for name in names if public_key(name, plan).keyid not in at_hand)


def _target_files(
    roles: Iterable[bytes], releases: Iterable[ReleaseFile], *copies: trust.Copy
) -> dict[str, bytes]:
    """Return the release files that these roles name: those of ``releases``, or of the copies."""
    made = {_target_file(each).get_prefixed_paths()[0]: each.data for each in releases}
    found = {}
    signed = (_parsed(data, "a role of release files").signed for data in roles)
    for file in (file for each in signed for file in each.targets.values()):
        for path in file.get_prefixed_paths():
            name = f"targets/{path}"
            old = (data for copy in copies if (data := copy.read(name)) is not None)
            data = made.get(path) or next(old, None)
            # What is missing or has other bytes is found when the whole is verified.
            if data is not None:
                found[name] = data
    return found


def _targets(plan: Plan, role: str, releases: Iterable[ReleaseFile]) -> Targets:
    targets = Targets(**_common(plan.roles[role]))
    if role == TARGETS and plan.revoked:
        # A separate field: a target's custom field would disappear with its target.
        targets.unrecognized_fields["revoked"] = plain(plan.revoked)
    if role == TARGETS and plan.program:
        targets.unrecognized_fields["program"] = dict(plan.program)
    if role == TARGETS and plan.delegated:
        roles: dict[str, DelegatedRole] = {}
        targets.delegations = Delegations(keys={}, roles=roles)
        for name in plan.delegated:
            its = plan.roles[name]
            roles[name] = DelegatedRole(
                name, [], its.threshold, terminating=False, paths=[*its.paths]
            )
            for signer in its.signers:
                targets.add_key(public_key(signer, plan), name)
    targets.targets = {each.path: _target_file(each) for each in releases if each.role == role}
    return targets


def _target_file(release: ReleaseFile) -> TargetFile:
    file = TargetFile.from_data(release.path, release.data, ["sha256"])
    file.unrecognized_fields["custom"] = dict(release.custom)
    return file


def _signed(signed: Any, signers: Signers, keyids: Iterable[str], begun: bytes | None) -> bytes:
    """Return readable JSON with the signatures of ``begun`` and of the signers at hand.

    The signatures come in the order of the ``keyids``, whichever was made first.
    """
    at_hand = {each.public_key.keyid: each for each in signers.values()}
    metadata: Metadata[Any] = Metadata(signed)
    before = _same(signed, begun)
    for keyid in keyids:
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


def _signed_online(signed: Any, plan: Plan, signers: Signers, published: trust.Copy) -> bytes:
    kept = published.read(_name_of(signed))
    # Some signers give another signature each time: what is published keeps its bytes.
    if kept is not None and _same(signed, kept):
        return kept
    if missing := absent(plan, signed.type, signers):
        raise PublishError(
            f"the online signer is not at hand: {', '.join(missing)}",
            facts=(f"signers at hand: {', '.join(signers) or 'none'}",),
            hint="add its file to TSUKU_LLM_SIGNERS; several holders sign one after another with "
            "sign --gather FOLDER",
        )
    return _signed(signed, signers, entitled(plan, signed.type, published), None)


def _same(signed: Any, data: bytes | None) -> Metadata[Any] | None:
    """Return the metadata in a file if it signs exactly this content."""
    if data is None:
        return None
    metadata = _parsed(data, _name_of(signed))
    return metadata if metadata.signed_bytes == Metadata(signed).signed_bytes else None


def _common(role: RolePlan) -> dict[str, Any]:
    return {
        "version": role.version,
        "expires": role.expires,
        "unrecognized_fields": {"issued": role.issued.strftime(TIME)},
    }
