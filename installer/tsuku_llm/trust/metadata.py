"""One signed metadata file: parsed strictly and verified with its delegator's keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from urllib.parse import quote

from tsuku_llm.ground.errors import MetadataError
from tsuku_llm.ground.foreign import parse_json
from tsuku_llm.trust.keys import key_objections

if TYPE_CHECKING:
    from tuf.api.metadata import (  # type: ignore[attr-defined]  # its own re-exports
        Delegations,
        Metadata,
        MetaFile,
        Root,
        Signed,
        Targets,
    )


_LARGEST_INTEGER = 2**53


def decode_json(data: bytes) -> Any:
    """Decode JSON as ``foreign.parse_json``, with integers within 53 bits as the only numbers.

    Readers have different limits: ``json`` accepts documents that python-tuf then cannot verify.
    Raises ``ValueError``.
    """
    return parse_json(data, parse_int=_integer, parse_float=_no_number)


def _integer(text: str) -> int:
    # The length first: converting a very long text to an integer takes quadratic time.
    if len(text) > len(str(_LARGEST_INTEGER)) + 1 or abs(int(text)) > _LARGEST_INTEGER:
        raise ValueError("a number has more than 53 bits")
    return int(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:40]} is not an integer")


ROLES = ("root", "timestamp", "snapshot", "targets")
"""The roles that every repository has; targets may delegate to more roles."""

TIME = "%Y-%m-%dT%H:%M:%SZ"
HINT = "it is not used; if the error remains, tell the publisher of the repository"

NEVER = datetime(9999, 12, 31, tzinfo=timezone.utc)
"""When a role expires that signs nothing: its own date says nothing either."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
RELATIVE_PATH = r"(?!.*(?:^|/)\.{1,2}(?:/|$))[A-Za-z0-9_.+@-]+(?:/[A-Za-z0-9_.+@-]+)*"
"""A path with slashes in signed data: plain characters, no empty part, no "." and no ".."."""

_PATH = re.compile(RELATIVE_PATH)
_LONGEST_PATH = 150
"""The longest path that fits into every file system and URL, with a digest before the name."""


class Copy(Protocol):
    """A copy of a repository, as published: ``metadata/…`` and ``targets/…``."""

    def read(self, name: str) -> bytes | None:
        """Read the file at a path relative to the repository; None if it does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class RoleState:
    """The version and dates in a role's signed file; times are in UTC.

    ``issued`` is when it was signed, None if the publisher does not say.
    """

    version: int
    expires: datetime
    issued: datetime | None


@dataclass(frozen=True, slots=True)
class Stated:
    """The content of one signed file: its role, its state, and the files that it names.

    ``versions`` has its own version, and the version of each role whose file it names. ``files``
    has what it says of each such file, by the file's name in a copy.
    """

    role: str
    state: RoleState
    versions: Mapping[str, int]
    files: Mapping[str, MetaFile]


def check_metadata(data: bytes) -> Stated:
    """Refuse metadata that this program would refuse under any signature; return its content.

    The signatures are not checked here. Raises ``MetadataError``.
    """
    return stated_by(_parse(data, "downloaded").signed)


def check_role(root: Root, data: bytes, role: str) -> Stated:
    """Verify one file of a role under a root, by its signatures alone.

    Raises ``MetadataError``.
    """
    return stated_by(delegated(root, data, role, role))


def stated_by(signed: Signed) -> Stated:
    """Return the content of a signed file. Raises ``MetadataError``."""
    files = {file_name(role, about.version): about for role, about in _named_by(signed).items()}
    return Stated(signed.type, state_of(signed), versions_of(signed), files)


def file_name(role: str, version: int) -> str:
    """Name a role's file in a copy; escaping keeps every name inside the folder."""
    return f"metadata/{version}.{quote(role, safe='')}.json"


def state_of(signed: Signed) -> RoleState:
    """Read version and dates. Raises ``MetadataError``."""
    issued = signed.unrecognized_fields.get("issued")
    if issued is None:
        return RoleState(signed.version, signed.expires, None)
    try:
        when = datetime.strptime(issued, TIME).replace(tzinfo=timezone.utc)
    except (TypeError, ValueError) as error:
        fact = f"its issued is {f'{issued!a}'[:40]}, and not a time such as 2026-11-20T00:00:00Z"
        raise refusal(signed.type, fact) from error
    return RoleState(signed.version, signed.expires, when)


def versions_of(signed: Any) -> dict[str, int]:
    """Return the version of a signed file, and of the roles whose files it names."""
    named = {role: file.version for role, file in _named_by(signed).items()}
    return {**named, signed.type: signed.version}


def _named_by(signed: Any) -> Mapping[str, MetaFile]:
    """Return what a signed file says of other roles' files, by their roles."""
    named: Mapping[str, MetaFile] = {}
    if signed.type == "timestamp":
        named = {"snapshot.json": signed.snapshot_meta}
    elif signed.type == "snapshot":
        named = signed.meta
    return {name.removesuffix(".json"): file for name, file in named.items()}


def referred(
    copy: Copy, delegator: Root | Targets, role: str, about: MetaFile, kind: str = "targets"
) -> Any:
    """Read and verify exactly the file of a role that ``about`` names.

    ``kind`` is the type that the file must state. Raises ``MetadataError``.
    """
    from tuf.api.exceptions import LengthOrHashMismatchError

    data = read(copy, file_name(role, about.version), role)
    try:
        # Before the signatures are checked or the file is parsed: other bytes than the named ones
        # are not worth looking at (TUF 5.5.2, 5.6.2).
        about.verify_length_and_hashes(data)
    except LengthOrHashMismatchError as error:
        raise refusal(role, str(error)) from error
    signed = delegated(delegator, data, role, kind)
    if signed.version != about.version:
        raise refusal(role, f"expected version {about.version}, it says {signed.version}")
    return signed


def named_state(copy: Copy, delegator: Targets, role: str, about: MetaFile) -> RoleState | None:
    """Return the state of a refused role's file if no host can have made it.

    A snapshot that has digests names the very bytes. Of one that names versions only, the role's
    own keys must have signed the content that is refused. None if it may be the host's forgery, or
    if only bytes outside the signed content are wrong. Raises ``MetadataError`` for a missing file.
    """
    from tuf.api.exceptions import LengthOrHashMismatchError
    from tuf.api.metadata import Metadata
    from tuf.api.serialization import DeserializationError, SerializationError

    data = read(copy, file_name(role, about.version), role)
    try:
        about.verify_length_and_hashes(data)
        if about.hashes:
            return RoleState(about.version, NEVER, None)
        metadata: Metadata[Any] = Metadata.from_bytes(data)
        signed = metadata.signed
        # To Python, ``true`` is a number too.
        if not (
            signed.type == "targets"
            and type(signed.version) is int
            and signed.version == about.version
            and delegator.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
        ):
            return None
        content = json.dumps({"signatures": [], "signed": signed.to_dict()}).encode()
    except (LengthOrHashMismatchError, DeserializationError, SerializationError):
        return None
    except (ValueError, TypeError, RecursionError):
        return None
    try:
        state_of(_parse(content, role).signed)
    except MetadataError:
        return RoleState(signed.version, NEVER, None)
    return None


def delegated(delegator: Root | Targets, data: bytes, role: str, kind: str) -> Any:
    """Verify a role's file with the keys that the delegator lists for it.

    Raises ``MetadataError``.
    """
    metadata = of_kind(data, kind, role)
    # The delegator decides which keys count, and how many of them must have signed.
    result = delegator.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
    if not result:
        raise refusal(role, threshold_fact(result))
    return metadata.signed


def read(copy: Copy, name: str, role: str) -> bytes:
    """Read a file that must exist. Raises ``MetadataError``."""
    data = copy.read(name)
    if data is None:
        raise refusal(role, f"{name.removeprefix('metadata/')} is missing")
    return data


def of_kind(data: bytes, kind: str, role: str) -> Metadata[Any]:
    """Parse a file that must state this type. Raises ``MetadataError``."""
    metadata = _parse(data, role)
    if metadata.signed.type != kind:
        raise refusal(role, f"it says that it is {metadata.signed.type}")
    return metadata


def _parse(data: bytes, role: str) -> Metadata[Any]:
    from tuf.api.metadata import Metadata
    from tuf.api.serialization import DeserializationError

    try:
        decode_json(data)
        metadata: Metadata[Any] = Metadata.from_bytes(data)
        # Raise for the first objection.
        for fact in _objections(metadata.signed):
            raise refusal(role, fact)
    except (DeserializationError, ValueError, TypeError, RecursionError) as error:
        cause = error.__cause__ or error
        raise refusal(role, f"it cannot be understood: {str(cause)[:200]}") from error
    return metadata


def refusal(role: str, fact: str) -> MetadataError:
    """Make the error for a role; names of delegated roles are foreign text, shown escaped."""
    shown = role[:60] if role.isascii() and role.isidentifier() else f"{role[:60]!a}"
    return MetadataError(f"the {shown} metadata is not trusted", facts=(fact,), hint=HINT)


def threshold_fact(result: Any) -> str:
    """State how many signatures are valid and how many are needed."""
    return f"{len(result.signed)} valid signatures, {result.threshold} are needed"


# --- what this program does not accept ---------------------------------------------------


def _objections(signed: Any) -> Iterator[str]:
    if any(type(number) is not int for number in _numbers(signed)):
        yield "a version, threshold or length is not an integer"
    if signed.type == "root":
        if signed.consistent_snapshot is not True:
            yield "it does not use consistent snapshots"
        yield from key_objections(signed.keys)
    if signed.type == "targets":
        for path, file in signed.targets.items():
            if not _SHA256.fullmatch(str(file.hashes.get("sha256"))):
                yield f"{path[:100]!r} has no SHA-256"
            if len(path) > _LONGEST_PATH or not _PATH.fullmatch(path):
                yield f"{path[:100]!a} is not a path within the repository"
        if signed.delegations is not None:
            yield from _delegation_objections(signed.delegations)


def _numbers(signed: Any) -> Iterator[Any]:
    """Yield every number that a comparison relies on; to Python, ``true`` is a number too."""
    yield signed.version
    if signed.type == "root":
        yield from (role.threshold for role in signed.roles.values())
    elif signed.type == "targets":
        yield from (file.length for file in signed.targets.values())
        if signed.delegations is not None:
            yield from (role.threshold for role in (signed.delegations.roles or {}).values())
        if signed.delegations is not None and signed.delegations.succinct_roles is not None:
            yield signed.delegations.succinct_roles.threshold
            yield signed.delegations.succinct_roles.bit_length
    else:
        files = signed.meta.values() if signed.type == "snapshot" else [signed.snapshot_meta]
        yield from (file.version for file in files)
        yield from (file.length for file in files if file.length is not None)


def _delegation_objections(delegations: Delegations) -> Iterator[str]:
    yield from key_objections(delegations.keys)
    succinct = delegations.succinct_roles
    if succinct is not None:
        yield from _name_objections(f"{succinct.name_prefix}-{'0' * succinct.suffix_len}")
    # A role's name is that of its file: some file systems keep only one of two such files.
    spelled = set(ROLES)
    for name, role in (delegations.roles or {}).items():
        yield from _name_objections(name)
        if str(name).lower() in spelled:
            yield f"two roles differ in upper and lower case only: {str(name)[:60]!a}"
        spelled.add(str(name).lower())
        # Every text is true to Python, also "false".
        if not isinstance(role.terminating, bool):
            yield f"its delegation to {name[:60]!a} does not say whether it is terminating"


def _name_objections(name: object) -> Iterator[str]:
    if not isinstance(name, str) or len(quote(name, safe="")) > _LONGEST_PATH:
        yield f"it delegates to a role whose name is not text or too long: {str(name)[:60]!a}"
