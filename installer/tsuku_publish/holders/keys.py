"""The public keys in ``[keys]`` of ``repository.toml``.

An Ed25519 key is written as 64 hexadecimal digits. Every other key is a table: ``scheme``, as TUF
names it, and ``public``, the key in PEM.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import tomli
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from securesystemslib.signer import Key, SSlibKey  # type: ignore[attr-defined]  # its re-export

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.foreign import read_foreign
from tsuku_llm.trust.keys import key_objections
from tsuku_publish.errors import LARGEST_FILE, PublishError, reading

ED25519 = "ed25519"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_FORMS = "write 64 hexadecimal digits (Ed25519), or a table with its scheme and its public PEM"


def require_signer_name(name: str) -> None:
    """Raise ``UsageError`` for a name that is no key of TOML, no file's name, or looks like others.

    Only ASCII: a letter of another script could look like one of a known name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!a} is no name of a signer",
            hint="take letters, digits, dots and dashes, such as anna",
        )


class PublicKeyTable(msgspec.Struct, forbid_unknown_fields=True):
    """A public key of any scheme: its PEM, and the scheme that it signs with."""

    scheme: str
    public: str


def read_public_keys(raw: Mapping[str, str | PublicKeyTable]) -> dict[str, SSlibKey]:
    """Return the public key of each signer.

    Raises ``PublishError`` for a text that is no key, for a key that clients refuse, and for one
    key under two names: one person would then sign as two.
    """
    found: dict[str, SSlibKey] = {}
    names: dict[str, str] = {}
    for name, text in raw.items():
        found[name] = key = read_public_key(name, text)
        first = names.setdefault(key.keyval["public"], name)
        if first != name:
            raise PublishError(f"[keys] has the same public key twice: {first} and {name}")
    return found


def load_public_keys(paths: Iterable[Path]) -> dict[str, SSlibKey]:
    """Read files with lines that ``new-signer`` printed. Raises ``PublishError``."""
    raw: dict[str, str | PublicKeyTable] = {}
    for path in paths:
        with reading(path):
            lines = tomli.loads(read_foreign(path, LARGEST_FILE).decode("utf-8"))
            raw |= msgspec.convert(lines, dict[str, str | PublicKeyTable])
    return read_public_keys(raw)


def read_public_key(name: str, raw: str | PublicKeyTable) -> SSlibKey:
    """Return the public key of one signer. Raises ``PublishError``."""
    try:
        if isinstance(raw, str):
            key = SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(bytes.fromhex(raw)))
        else:
            # The form of the text is lost here, so equal keys have equal texts.
            public = load_pem_public_key(raw.public.encode())
            key = SSlibKey.from_crypto(public, scheme=raw.scheme)
        reason = next(key_objections({key.keyid: key}), None)
    except (ValueError, UnsupportedAlgorithm):
        raise PublishError(f"[keys] has no public key of {name}: {_FORMS}") from None
    if reason is not None:
        raise PublishError(f"clients refuse the public key of {name}: {reason}")
    return key


def fingerprint(key: Key) -> str:
    """Return what two people compare of a key: its scheme, and its public half in full.

    Of another key than Ed25519 it is the SHA-256 of the PEM.
    """
    public = key.keyval["public"]
    if key.scheme == ED25519:
        return f"{key.scheme} {public}"
    return f"{key.scheme} sha256:{hashlib.sha256(public.encode()).hexdigest()}"


def key_line(name: str, key: SSlibKey) -> str:
    """Return the line for a key in ``[keys]``."""
    public = key.keyval["public"]
    if key.scheme == ED25519:
        return f'{_toml_key(name)} = "{public}"'
    # JSON's strings are TOML's strings, too: one line, with the line feeds of the PEM escaped.
    return f'{_toml_key(name)} = {{ scheme = "{key.scheme}", public = {json.dumps(public)} }}'


def _toml_key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)
