"""The rules for public keys: an accepted kind, strong, and listed once.

Accepted are Ed25519, ECDSA on P-256 and P-384, and RSA-PSS, as securesystemslib verifies them
and as TUF repositories use them. A key is refused if others than its owner can sign with it. A
key that is listed twice is refused too: one signer would count as two.

ECDSA and RSA-PSS signatures can be changed into other valid ones (s and n-s, another salt).
This does no harm here: signatures are counted by key and never compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuf.api.metadata import Key  # type: ignore[attr-defined]  # its own re-export

MOST_KEYS = 64
"""The most keys that one file may list: checking a large RSA key takes up to a second."""

_CURVES = {"ecdsa-sha2-nistp256": "secp256r1", "ecdsa-sha2-nistp384": "secp384r1"}
_RSA_SCHEMES = ("rsassa-pss-sha256", "rsassa-pss-sha384", "rsassa-pss-sha512")
_RSA_BITS = range(3072, 4096 + 1)
"""From the strength of the others (NIST SP 800-57: 128 bits) to the most that services offer."""

_RSA_EXPONENTS = range(65537, 2**32, 2)

_HEX = re.compile(r"[0-9a-f]{64}")
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

_SMALL_PRIMES = math.prod(
    number for number in range(2, 752) if all(number % each for each in range(2, number))
)


_OTHER_KIND = "it has a public key of another kind than its scheme says"


_PublicKey = tuple[str | int, ...]
"""A public key's kind and numbers: equal for the same key, even if the texts differ.

The numbers are the 32 bytes of Ed25519 as a number, the point of ECDSA, the modulus of RSA.
"""


def key_objections(keys: Mapping[str, Key]) -> Iterator[str]:
    """Yield the reasons to refuse a list of keys; none if all keys are accepted."""
    if len(keys) > MOST_KEYS:
        yield f"it lists {len(keys)} keys, and {MOST_KEYS} are the most"
        return
    # Not by key id: the same key can be listed under two ids, with other spellings of its text.
    seen = set()
    for key in keys.values():
        try:
            public = _public_key(key)
        except ValueError as error:
            yield str(error)
            return
        if public in seen:
            yield "it lists one public key twice"
        seen.add(public)


def is_weak(public: bytes) -> bool:
    """Tell whether a 32-byte Ed25519 public key is of small order or not canonical.

    ``cryptography`` accepts such keys. Under them, one signature is valid for many messages.
    """
    # The highest bit is the sign of x; the rest is y.
    y = int.from_bytes(public, "little") % 2**255
    return y >= _P or y in _SMALL_ORDER


@lru_cache(maxsize=1024)
def is_weak_modulus(modulus: int) -> bool:
    """Tell whether anyone can factor an RSA modulus at once.

    This is the partial validation of NIST SP 800-89, section 5.3.3. The modulus is weak if a
    prime below 752 divides it, or if it is a prime or a power of a prime. For a prime p, p
    divides both p**k and 2**p**k - 2.
    """
    if math.gcd(modulus, _SMALL_PRIMES) != 1:
        return True
    return math.gcd(pow(2, modulus, modulus) - 2, modulus) != 1


def _public_key(key: Key) -> _PublicKey:
    """Read a key by its scheme. Raises ``ValueError`` with the reason to refuse it."""
    kind, text = (key.keytype, key.scheme), key.keyval.get("public")
    if kind == ("ed25519", "ed25519"):
        public = str(text)
        if not _HEX.fullmatch(public):
            raise ValueError("it has a malformed public key")
        if is_weak(bytes.fromhex(public)):
            raise ValueError(
                "it has a public key of small order, under which signatures can be forged"
            )
        return "ed25519", int(public, 16)
    if kind == ("rsa", key.scheme) and key.scheme in _RSA_SCHEMES:
        return _rsa(str(text))
    # For years, sigstore's and other repositories used the scheme's name as the key type too.
    if key.scheme in _CURVES and key.keytype in ("ecdsa", key.scheme):
        return _ecdsa(str(text), _CURVES[key.scheme])
    raise ValueError("it has a key that is not Ed25519, ECDSA on P-256 or P-384, or RSA-PSS")


def _ecdsa(text: str, curve: str) -> _PublicKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    # Loading refuses points that are not on the curve, and curves that it does not know.
    found = _from_pem(text)
    if not isinstance(found, ec.EllipticCurvePublicKey) or found.curve.name != curve:
        raise ValueError(_OTHER_KIND)
    numbers = found.public_numbers()
    return curve, numbers.x, numbers.y


def _rsa(text: str) -> _PublicKey:
    from cryptography.hazmat.primitives.asymmetric import rsa

    found = _from_pem(text)
    if not isinstance(found, rsa.RSAPublicKey):
        raise ValueError(_OTHER_KIND)
    if found.key_size not in _RSA_BITS:
        raise ValueError(
            f"it has an RSA key of {found.key_size} bits: "
            f"{_RSA_BITS.start} to {_RSA_BITS.stop - 1} are accepted"
        )
    numbers = found.public_numbers()
    if numbers.e not in _RSA_EXPONENTS:
        raise ValueError("it has an RSA key whose exponent is even, below 65537 or too large")
    if is_weak_modulus(numbers.n):
        raise ValueError("it has an RSA key that anyone can factor")
    return "rsa", numbers.n


def _from_pem(text: str) -> object:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        return load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("it has a malformed public key") from error
