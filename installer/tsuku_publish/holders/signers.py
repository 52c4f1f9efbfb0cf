"""The maintainers' signers, from the files that ``TSUKU_LLM_SIGNERS`` names.

There are two kinds of files. A PEM file has one private key, encrypted or not. A JSON file maps
names to seeds, ``{"scheme": "ed25519", "seed": hex, "public": hex}``, or to keys in a token or a
service, ``{"uri": …, "scheme": …, "public": …}``. Messages have names and URIs, and nothing else.
"""

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from securesystemslib.signer import (  # type: ignore[attr-defined]  # its own re-exports
    CryptoSigner,
    Key,
    SecretsHandler,
    Signature,
    Signer,
    SSlibKey,
)

from tsuku_llm.ground.foreign import parse_json
from tsuku_publish.errors import PublishError
from tsuku_publish.holders import tokens
from tsuku_publish.holders.keys import PublicKeyTable, read_public_key
from tsuku_publish.holders.passphrases import Ask, Passphrases, nobody, read_closed, write_closed

VARIABLE = "TSUKU_LLM_SIGNERS"
_SECRET = 32
"""Bytes of a secret that are enough to find it."""

_PRIVATE = re.compile(
    r"-----BEGIN ((?:ENCRYPTED |RSA |EC )?PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL
)
_PUBLIC = re.compile(r"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)
_NAME = re.compile(r"Signer: (.+)")
"""The first line of a PEM file of ``new-signer``; without it, the file's name is the signer's."""


class LateSigner(Signer):
    """A signer whose private key is opened when it signs: only then a person is asked."""

    def __init__(
        self, name: str, public: SSlibKey, open_it: Callable[[], Signer], secrets: Passphrases
    ) -> None:
        self._name = name
        self._public = public
        self._open = open_it
        self._secrets = secrets

    @property
    def public_key(self) -> SSlibKey:
        """The public key, which is known without a passphrase."""
        return self._public

    def sign(self, payload: bytes) -> Signature:
        """Sign, and verify the signature. Raises ``PublishError``."""
        try:
            # Open it each time: another token may have needed another library meanwhile.
            signature = self._open().sign(payload)
            # A token may meanwhile hold another key than the registered one.
            self._public.verify_signature(signature, payload)
        except PublishError:
            raise
        except Exception as error:  # noqa: BLE001 - tokens and services raise errors of any kind
            said = self._secrets.hidden(str(error)) or type(error).__name__
            said += tokens.missing_package(error)
            # Not chained: such an error may hold what was sent to the token.
            raise PublishError(f"{self._name} cannot sign: {said}") from None
        return signature

    @classmethod
    def from_priv_key_uri(
        cls, priv_key_uri: str, public_key: Key, secrets_handler: SecretsHandler | None = None
    ) -> Signer:
        """Refuse: a holder is made from a file, which may have a URI."""
        raise NotImplementedError


def load_signers(environ: Mapping[str, str] = os.environ, ask: Ask = nobody) -> dict[str, Signer]:
    """Return every signer by its name; ``ask`` asks a person for a passphrase.

    Raises ``PublishError``, also for a file that other users can read or write, because they may
    know its content.
    """
    secrets = Passphrases(environ, ask)
    found: dict[str, Signer] = {}
    for path, text in _texts(environ, closed=True):
        for name, made in _signers_of(path, text, secrets):
            if name in found:
                raise PublishError(f"{VARIABLE}: {name} is in two files; the second is {path}")
            found[name] = made
    return found


def load_secrets(environ: Mapping[str, str] = os.environ) -> dict[str, bytes]:
    """Return 32 secret bytes of each signer in a file by its name, to search for them.

    They are the private number itself or, of an encrypted file, the end of what is encrypted. Other
    users may be able to read the files, as nothing is signed with them: they may be what leaked.
    Raises ``PublishError``.
    """
    secrets, found = Passphrases({}), {}
    for path, text in _texts(environ, closed=False):
        if _PRIVATE.search(text):
            name = _name_in(text) or path.stem
            if secret := _secret_part(path, text, name, secrets):
                found[name] = secret
        else:
            entries = _entries(path, text)
            found |= {
                name: _seed(path, name, raw).private_bytes_raw()
                for name, raw in entries.items()
                if "uri" not in raw
            }
    return found


def _secret_part(path: Path, text: str, name: str, secrets: Passphrases) -> bytes:
    """Return 32 bytes of a PEM file that nothing public has; fewer for a key of another kind."""
    if _is_encrypted(text) and (block := _PRIVATE.search(text)):
        lines = block[0].splitlines()[1:-1]
        # The old form has headers, and an empty line after them.
        body = "".join(line for line in lines if ":" not in line)
        try:
            return base64.b64decode(body)[-_SECRET:]
        except ValueError:
            raise PublishError(f"{path} cannot be opened: it is damaged") from None
    key = _private_key(path, text, name, secrets)
    if isinstance(key, Ed25519PrivateKey):
        return key.private_bytes_raw()
    if isinstance(key, EllipticCurvePrivateKey):
        # A file has it at the full length of its curve, also with zeros before it.
        number, bits = key.private_numbers().private_value, key.curve.key_size
    elif isinstance(key, RSAPrivateKey):
        number = key.private_numbers().p
        bits = number.bit_length()
    else:
        return b""
    return number.to_bytes(-(-bits // 8), "big")[:_SECRET]


def make_signer(name: str, path: Path, passphrase: str | None) -> SSlibKey:
    """Write a file with one new Ed25519 signer that only its owner can read; return its public key.

    With a passphrase the file is encrypted PEM, otherwise JSON with a seed. Raises
    ``PublishError``.
    """
    private = Ed25519PrivateKey.generate()
    public = SSlibKey.from_crypto(private.public_key())
    if passphrase is None:
        seed = private.private_bytes_raw().hex()
        raw = {"scheme": "ed25519", "seed": seed, "public": public.keyval["public"]}
        write_closed(path, json.dumps({name: raw}))
        return public
    blocks = (
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(passphrase.encode()),
        ),
    )
    write_closed(path, f"Signer: {name}\n{b''.join(blocks).decode()}")
    return public


def register_token(name: str, path: Path, uri: str, secrets: Passphrases) -> SSlibKey:
    """Write a file that names a key in a PKCS#11 token; return its public key.

    Raises ``PublishError``.
    """
    public = tokens.public_key_of(uri, lambda kind: secrets.of(name, kind))
    raw = {"uri": uri, "scheme": public.scheme, "public": public.keyval["public"]}
    write_closed(path, json.dumps({name: raw}))
    return public


def _texts(environ: Mapping[str, str], *, closed: bool) -> Iterator[tuple[Path, str]]:
    """Yield each file that the variable names, and each of the folders that it names."""
    named = environ.get(VARIABLE)
    if not named:
        raise PublishError(f"{VARIABLE} names no file of signers; new-signer makes one")
    for part in filter(None, named.split(os.pathsep)):
        path = Path(part)
        inside = sorted([*path.glob("*.json"), *path.glob("*.pem")]) if path.is_dir() else [path]
        if not inside:
            raise PublishError(f"{VARIABLE}: the folder {path} has no files *.json or *.pem")
        for each in inside:
            yield each, read_closed(each, VARIABLE, closed=closed)


def _signers_of(path: Path, text: str, secrets: Passphrases) -> Iterator[tuple[str, Signer]]:
    if _PRIVATE.search(text):
        yield _signer_of_pem(path, text, _name_in(text) or path.stem, None, secrets)
        return
    for name, raw in _entries(path, text).items():
        if "uri" in raw:
            yield _signer_of_uri(path, name, raw, secrets)
        else:
            yield name, CryptoSigner(_seed(path, name, raw))


def _signer_of_pem(
    path: Path, text: str, name: str, public: SSlibKey | None, secrets: Passphrases
) -> tuple[str, Signer]:
    """Return the signer of a PEM file; it is opened now if nothing says its public key."""

    def opened() -> CryptoSigner:
        return CryptoSigner(_private_key(path, text, name, secrets), public)

    block = _PUBLIC.search(text)
    try:
        if public is None and block is not None:
            key = serialization.load_pem_public_key(block[0].encode())
            public = SSlibKey.from_crypto(key)
        if public is None:
            return name, opened()
    except (ValueError, UnsupportedAlgorithm):
        raise PublishError(f"{path} has no key of a kind that clients accept") from None
    return name, LateSigner(name, public, opened, secrets)


def _signer_of_uri(
    path: Path, name: str, raw: Mapping[str, Any], secrets: Passphrases
) -> tuple[str, Signer]:
    uri, scheme, text = raw.get("uri"), raw.get("scheme"), raw.get("public")
    if not (isinstance(uri, str) and isinstance(scheme, str) and isinstance(text, str)):
        raise PublishError(f"{path}: signer {name} needs uri, scheme and public, each a text")
    public = read_public_key(name, PublicKeyTable(scheme, text) if "-----" in text else text)
    kind, _, rest = uri.partition(":")
    if kind == "file2":
        # securesystemslib opens no encrypted file, and does not look who can read it.
        file = path.parent / rest
        return _signer_of_pem(file, read_closed(file, VARIABLE), name, public, secrets)
    return name, LateSigner(
        name,
        public,
        lambda: tokens.open_signer(uri, public, lambda kind: secrets.of(name, kind)),
        secrets,
    )


def _private_key(path: Path, text: str, name: str, secrets: Passphrases) -> Any:
    found = _PRIVATE.search(text)
    if found is None:
        raise PublishError(f"{path} has no private key in PEM")
    passphrase = secrets.of(name).encode() if _is_encrypted(text) else None
    try:
        return serialization.load_pem_private_key(found[0].encode(), passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The error may quote the file.
        why = "the passphrase is wrong, or the file is damaged" if passphrase else "it is damaged"
        raise PublishError(f"{path} cannot be opened: {why}") from None


def _is_encrypted(text: str) -> bool:
    return "ENCRYPTED" in text


def _name_in(text: str) -> str | None:
    found = _NAME.match(text)
    return found[1].strip() if found else None


def _entries(path: Path, text: str) -> dict[str, dict[str, Any]]:
    try:
        raw = parse_json(text)
    except (ValueError, RecursionError):
        # The error's text quotes what could not be read, maybe a seed: do not chain it.
        raw = None
    if not isinstance(raw, dict) or not all(isinstance(each, dict) for each in raw.values()):
        raise PublishError(f"{VARIABLE}: {path} is no file of signers")
    return raw


def _seed(path: Path, name: str, raw: Mapping[str, Any]) -> Ed25519PrivateKey:
    try:
        if raw["scheme"] != "ed25519":
            raise PublishError(f"signer {name} is not Ed25519: a seed always is")
        private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(raw["seed"]))
        public = raw["public"]
    except (ValueError, KeyError, TypeError):
        raise PublishError(f"{VARIABLE}: {path} is no file of signers") from None
    if private.public_key().public_bytes_raw().hex() != public:
        raise PublishError(f"signer {name}: the public key is not the seed's")
    return private
