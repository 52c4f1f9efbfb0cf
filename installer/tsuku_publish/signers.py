"""The maintainers' signers, from the file that ``TSUKU_LLM_SIGNERS`` names.

The file maps a signer's name to ``{"scheme": "ed25519", "seed": hex, "public": hex}``. Messages of
this module may contain names from it, but nothing else.
"""

import json
import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # its re-export

from tsuku_publish.errors import PublishError

VARIABLE = "TSUKU_LLM_SIGNERS"


def load_signers(environ: Mapping[str, str] = os.environ) -> dict[str, CryptoSigner]:
    """Return every signer of the file by its name.

    Raises ``PublishError``, also for a file that other users can read or write, because they may
    know its content.
    """
    return {name: CryptoSigner(key) for name, key in _load_keys(environ, closed=True).items()}


def load_seeds(environ: Mapping[str, str] = os.environ) -> dict[str, bytes]:
    """Return every signer's seed by its name, to search for it where it must not be.

    Other users may be able to read the file, as nothing is signed with it: it may be what leaked.
    Raises ``PublishError``.
    """
    return {
        name: key.private_bytes_raw() for name, key in _load_keys(environ, closed=False).items()
    }


def make_signer(name: str, path: Path) -> str:
    """Write a file with one new signer that only its owner can read; return its public key.

    Raises ``PublishError``.
    """
    private = Ed25519PrivateKey.generate()
    raw = {
        "scheme": "ed25519",
        "seed": private.private_bytes_raw().hex(),
        "public": _public(private),
    }
    try:
        # Make the file with its final mode: other users can never open it, not even while it is
        # empty.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise PublishError(f"{path} cannot be made: {error.strerror}") from error
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - opened with a mode
        json.dump({name: raw}, file)
    return _public(private)


def _load_keys(environ: Mapping[str, str], *, closed: bool) -> dict[str, Ed25519PrivateKey]:
    path = environ.get(VARIABLE)
    if not path:
        raise PublishError(f"{VARIABLE} names no file of signers; new-signer makes one")
    try:
        with Path(path).open(encoding="utf-8") as file:
            if closed:
                _require_closed(path, os.fstat(file.fileno()))
            raw = json.loads(file.read())
        return {name: _key(name, signer) for name, signer in raw.items()}
    except OSError as error:
        raise PublishError(f"{VARIABLE}: {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        # The error's text quotes what could not be read, maybe a seed: do not chain it.
        raise PublishError(f"{VARIABLE} names a file that is no file of signers") from None


def _require_closed(path: str, status: os.stat_result) -> None:
    """Refuse a file that users other than its owner can open, or that another user owns."""
    if os.name != "posix":  # Windows has no such modes
        return
    if status.st_uid not in (0, os.geteuid()):
        raise PublishError(f"{VARIABLE}: {path} belongs to another user (uid {status.st_uid})")
    if status.st_mode & 0o077:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise PublishError(
            f"{VARIABLE}: other users can open {path} (mode {mode}): "
            f"run chmod 600 {shlex.quote(path)}, and replace its signers if anybody did"
        )


def _key(name: str, raw: Mapping[str, Any]) -> Ed25519PrivateKey:
    if raw["scheme"] != "ed25519":
        raise PublishError(f"signer {name} is not Ed25519")
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(raw["seed"]))
    if _public(private) != raw["public"]:
        raise PublishError(f"signer {name}: the public key is not the seed's")
    return private


def _public(private: Ed25519PrivateKey) -> str:
    return private.public_key().public_bytes_raw().hex()
