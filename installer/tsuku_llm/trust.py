"""Verification of a signed repository; the only maker of ``VerifiedBytes``.

A repository is one of The Update Framework (TUF 1.0): a chain of roots from a pinned one,
then timestamp → snapshot → targets. It is verified whole and anew at every load, with
python-tuf's public metadata API; nothing is stored as "already checked". On top of the
specification this program accepts Ed25519 only, no delegations, consistent snapshots only,
no public key twice and none of small order, and JSON that cannot be read in two ways.

Expiry is a fact here, not a refusal: what was trusted yesterday may be installed offline.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NewType, Protocol

from tsuku_llm.errors import DigestMismatch, MetadataError

if TYPE_CHECKING:
    from tuf.api.metadata import (  # type: ignore[attr-defined]  # its own re-exports
        Metadata,
        MetaFile,
        Root,
        Signed,
        Snapshot,
        TargetFile,
        Targets,
        Timestamp,
    )

VerifiedBytes = NewType("VerifiedBytes", bytes)
"""Bytes whose signature chain, length and SHA-256 were checked in this process."""

ROLES = ("root", "timestamp", "snapshot", "targets")
MAX_ROTATIONS = 256
"""So many roots after the pinned one are a flood; python-tuf's client stops there as well."""

TIME = "%Y-%m-%dT%H:%M:%SZ"
_LARGEST_INTEGER = 2**53
_DEEPEST = 32
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|$))[A-Za-z0-9_.+@-]+(?:/[A-Za-z0-9_.+@-]+)*")
_LONGEST_PATH = 150
"""What every file system and every URL takes as it is, a digest before the name included."""

_HINT = "fetch the metadata anew: tsuku-llm repository refresh"

_P = 2**255 - 19
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        _P - 1,
        int.from_bytes(
            bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
            "little",
        ),
        int.from_bytes(
            bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
            "little",
        ),
    }
)
"""The y coordinates of edwards25519's eight points of small order (RFC 8032, section 5.1)."""


class Copy(Protocol):
    """A copy of a repository, as published: ``metadata/…`` and ``targets/…``."""

    def read(self, name: str) -> bytes | None:
        """The file of that path relative to the repository, None if it is not there."""
        ...


@dataclass(frozen=True, slots=True)
class RoleState:
    """What a role's signed file says of itself; times are in UTC.

    ``issued`` is when it was signed, None where the publisher does not say.
    """

    version: int
    expires: datetime
    issued: datetime | None


@dataclass(frozen=True, slots=True)
class Target:
    """One signed target: ``length`` in bytes, ``custom`` as the publisher signed it."""

    path: str
    length: int
    sha256: str
    custom: Any

    @property
    def name(self) -> str:
        """Its file in a copy of the repository (TUF's hash-prefixed name)."""
        folder, slash, file = self.path.rpartition("/")
        return f"targets/{folder}{slash}{self.sha256}.{file}"


@dataclass(frozen=True, slots=True)
class TrustedRepository:
    """A repository whose whole chain was verified in this process.

    ``revoked`` is the field of that name of the targets metadata, as the publisher signed it.
    """

    roles: Mapping[str, RoleState]
    targets: Mapping[str, Target]
    revoked: Any = ()

    def read(self, path: str, data: bytes) -> VerifiedBytes:
        """Check a target's bytes against the signed length and SHA-256.

        Raises ``DigestMismatch``, and ``MetadataError`` for a target that is not signed.
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
                hint=_HINT,
            )
        return VerifiedBytes(data)

    def expired(self, now: datetime) -> tuple[str, ...]:
        """The roles that are past their expiry; ``now`` in UTC."""
        return tuple(role for role in ROLES if self.roles[role].expires <= now)


def load(copy: Copy, pinned_root: bytes) -> TrustedRepository:
    """Verify a whole repository, starting at the pinned root.

    The order and the checks are those of the TUF specification's client workflow
    (section 5), without the comparison with an earlier copy, which needs two of them.
    Raises ``MetadataError`` with the role and the fact that decided.
    """
    root = newest_root(copy, pinned_root)
    timestamp: Timestamp = _delegate(root, _read(copy, "timestamp.json"), "timestamp")
    snapshot: Snapshot = _referred(copy, root, "snapshot", timestamp.snapshot_meta)
    about_targets = snapshot.meta.get("targets.json")
    if about_targets is None:
        raise _refusal("snapshot", "it does not name the targets metadata")
    targets: Targets = _referred(copy, root, "targets", about_targets)
    return TrustedRepository(
        roles={signed.type: _state(signed) for signed in (root, timestamp, snapshot, targets)},
        targets={path: _target(path, file) for path, file in targets.targets.items()},
        revoked=targets.unrecognized_fields.get("revoked", []),
    )


def newest_root(copy: Copy, pinned_root: bytes) -> Root:
    """Walk from the pinned root to the newest one, each signed by the old and the new keys.

    Raises ``MetadataError``.
    """
    root = check_root(pinned_root)
    for _ in range(MAX_ROTATIONS):
        data = copy.read(f"metadata/{root.version + 1}.root.json")
        if data is None:
            return root
        root = _next_root(root, data)
    raise _refusal("root", f"{MAX_ROTATIONS} rotations or more since the pinned root")


def check_root(data: bytes) -> Root:
    """Read a root that is its own authority: a pinned one, or one that a user adds.

    Raises ``MetadataError`` when it does not verify against itself.
    """
    metadata: Metadata[Root] = _of_role(data, "root")
    result = metadata.signed.get_root_verification_result(
        None, metadata.signed_bytes, metadata.signatures
    )
    if not result:
        raise _refusal("root", _threshold_fact(result.first))
    return metadata.signed


def check_metadata(data: bytes) -> tuple[str, RoleState]:
    """Refuse metadata that this program would refuse whatever signed it.

    For metadata on its way to python-tuf's updater, whose rules are those of the
    specification only. Gives the role that it says it is, and its state. Raises
    ``MetadataError``.
    """
    signed = _parse(data, "downloaded").signed
    return signed.type, _state(signed)


def decode_json(data: bytes) -> Any:
    """Decode JSON of which two readers cannot have two opinions.

    As RFC 7493 (I-JSON) asks: UTF-8, no key twice, integers within 53 bits only, no lone
    surrogates. Nested no deeper than any signed file, as readers give up at depths of their
    own: ``json`` takes what python-tuf then cannot verify. Raises ``ValueError`` or
    ``RecursionError``.
    """
    value = json.loads(
        data.decode("utf-8"),
        object_pairs_hook=_unique,
        parse_int=_integer,
        parse_float=_no_number,
        parse_constant=_no_number,
    )
    _require_shallow(value)
    json.dumps(value, ensure_ascii=False).encode("utf-8")  # a lone surrogate cannot be encoded
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result


def _integer(text: str) -> int:
    if len(text) > len(str(_LARGEST_INTEGER)) + 1 or abs(int(text)) > _LARGEST_INTEGER:
        raise ValueError("a number has more than 53 bits")
    return int(text)


def _require_shallow(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for each in level for inner in _within(each)]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _no_number(text: str) -> Any:
    raise ValueError(f"the number {text[:40]} is not an integer")


# --- the chain -------------------------------------------------------------------------


def _next_root(root: Root, data: bytes) -> Root:
    metadata: Metadata[Root] = _of_role(data, "root")
    version = metadata.signed.version
    if version != root.version + 1:
        raise _refusal("root", f"expected version {root.version + 1}, it says {version}")
    result = metadata.signed.get_root_verification_result(
        root, metadata.signed_bytes, metadata.signatures
    )
    for keys, part in (("old", result.first), ("new", result.second)):
        if not part:
            raise _refusal("root", f"version {version}, {keys} keys: {_threshold_fact(part)}")
    return metadata.signed


def _referred(copy: Copy, root: Root, role: str, about: MetaFile) -> Any:
    """The role's file, which must be the very one that the referring role names."""
    from tuf.api.exceptions import LengthOrHashMismatchError  # noqa: PLC0415

    data = _read(copy, f"{about.version}.{role}.json")
    try:
        about.verify_length_and_hashes(data)
    except LengthOrHashMismatchError as error:
        raise _refusal(role, str(error)) from error
    signed = _delegate(root, data, role)
    if signed.version != about.version:
        raise _refusal(role, f"expected version {about.version}, it says {signed.version}")
    return signed


def _delegate(root: Root, data: bytes, role: str) -> Any:
    metadata = _of_role(data, role)
    result = root.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
    if not result:
        raise _refusal(role, _threshold_fact(result))
    return metadata.signed


def _read(copy: Copy, name: str) -> bytes:
    data = copy.read(f"metadata/{name}")
    if data is None:
        role = name.removesuffix(".json").rpartition(".")[2]
        raise _refusal(role, f"{name} is missing")
    return data


def _of_role(data: bytes, role: str) -> Metadata[Any]:
    metadata = _parse(data, role)
    if metadata.signed.type != role:
        raise _refusal(role, f"it says that it is {metadata.signed.type}")
    return metadata


def _parse(data: bytes, role: str) -> Metadata[Any]:
    from tuf.api.metadata import Metadata  # noqa: PLC0415
    from tuf.api.serialization import DeserializationError  # noqa: PLC0415

    try:
        decode_json(data)
        metadata: Metadata[Any] = Metadata.from_bytes(data)
        for fact in _objections(metadata.signed):
            raise _refusal(role, fact)
    except (DeserializationError, ValueError, TypeError, RecursionError) as error:
        cause = error.__cause__ or error
        raise _refusal(role, f"it cannot be understood: {str(cause)[:200]}") from error
    return metadata


# --- what this program does not accept ---------------------------------------------------


def _objections(signed: Any) -> Iterator[str]:
    if any(type(number) is not int for number in _numbers(signed)):
        yield "a version, threshold or length is not an integer"
    if signed.type == "root":
        yield from _root_objections(signed)
    if signed.type == "targets":
        yield from _targets_objections(signed)


def _numbers(signed: Any) -> Iterator[Any]:
    """Every number that a comparison relies on: to Python, ``true`` is one as well."""
    yield signed.version
    if signed.type == "root":
        yield from (role.threshold for role in signed.roles.values())
    elif signed.type == "targets":
        yield from (file.length for file in signed.targets.values())
    else:
        files = signed.meta.values() if signed.type == "snapshot" else [signed.snapshot_meta]
        yield from (file.version for file in files)
        yield from (file.length for file in files if file.length is not None)


def _root_objections(root: Root) -> Iterator[str]:
    if root.consistent_snapshot is not True:
        yield "it does not use consistent snapshots"
    if any((key.keytype, key.scheme) != ("ed25519", "ed25519") for key in root.keys.values()):
        yield "it has a key that is not Ed25519"
        return
    public = [str(key.keyval.get("public")) for key in root.keys.values()]
    if len({text.lower() for text in public}) != len(public):
        yield "it lists one public key twice"
    for text in public:
        if not _SHA256.fullmatch(text):
            yield "it has a malformed public key"
        elif is_weak(bytes.fromhex(text)):
            yield "it has a public key of small order, under which signatures can be forged"


def _targets_objections(targets: Targets) -> Iterator[str]:
    if targets.delegations is not None:
        yield "it delegates, which this program does not follow"
    for path, file in targets.targets.items():
        if not _SHA256.fullmatch(str(file.hashes.get("sha256"))):
            yield f"{path[:100]!r} has no SHA-256"
        if len(path) > _LONGEST_PATH or not _PATH.fullmatch(path):
            yield f"{path[:100]!a} is not a path within the repository"


def is_weak(public: bytes) -> bool:
    """Whether a 32-byte Ed25519 public key is of small order or not canonical.

    ``cryptography`` accepts such keys, and under them one signature fits many messages.
    """
    y = int.from_bytes(public, "little") % 2**255
    return y >= _P or y in _SMALL_ORDER


# --- values ------------------------------------------------------------------------------


def _state(signed: Signed) -> RoleState:
    issued = signed.unrecognized_fields.get("issued")
    if issued is None:
        return RoleState(signed.version, signed.expires, None)
    try:
        when = datetime.strptime(issued, TIME).replace(tzinfo=timezone.utc)
    except (TypeError, ValueError) as error:
        raise _refusal(signed.type, "its date of issue is malformed") from error
    return RoleState(signed.version, signed.expires, when)


def _target(path: str, file: TargetFile) -> Target:
    return Target(path, file.length, file.hashes["sha256"], file.custom)


def _refusal(role: str, fact: str) -> MetadataError:
    return MetadataError(f"the {role} metadata is not trusted", facts=(fact,), hint=_HINT)


def _threshold_fact(result: Any) -> str:
    return f"{len(result.signed)} valid signatures, {result.threshold} are needed"
