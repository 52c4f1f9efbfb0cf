"""Kinds of keys: which are accepted in roots and delegations, and which are refused where."""

import base64
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib.signer import CryptoSigner, SSlibKey
from support.repository import (
    RepositorySimulator,
    other_signer,
    release_document,
    signer,
)

from tsuku_llm import trust
from tsuku_llm.catalog import refreshing
from tsuku_llm.ground.errors import MetadataError
from tsuku_llm.trust import keys

P256, P384 = "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384"
PSS256, PSS384, PSS512 = "rsassa-pss-sha256", "rsassa-pss-sha384", "rsassa-pss-sha512"
KEYID = "f" * 64
PRIME = 2**3217 - 1
"""A Mersenne prime."""


# --- kinds that are accepted -----------------------------------------------------------------


def signer_of(kind: str, keytype: str, scheme: str) -> CryptoSigner:
    """A signer whose key is written down with that type and scheme."""
    made = other_signer(kind)
    public = SSlibKey(KEYID, keytype, scheme, dict(made.public_key.keyval))
    return CryptoSigner(made._private_key, public)


ACCEPTED = {
    "p256": ("p256", "ecdsa", P256),
    "p256, the type's old name": ("p256", P256, P256),
    "p384": ("p384", "ecdsa", P384),
    "p384, the type's old name": ("p384", P384, P384),
    "rsa 3072": ("3072", "rsa", PSS256),
    "rsa 3072 sha384": ("3072", "rsa", PSS384),
    "rsa 4096 sha512": ("4096", "rsa", PSS512),
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("role", ["root", "targets", "timestamp", "nightly"])
@pytest.mark.filterwarnings("ignore:keytype 'ecdsa-sha2:DeprecationWarning")
def test_each_supported_kind_of_key_can_sign_a_role(name: str, role: str, tmp_path: Path) -> None:
    simulator = RepositorySimulator()
    other = signer_of(*ACCEPTED[name])
    if role == "nightly":
        simulator.delegate("nightly", "releases/n*.json", signers=[other])
        simulator.add(release_document("n1"), channels=["nightly"], role="nightly")
    else:
        simulator.signers[role] = [other, *simulator.signers[role][1:]]
        simulator.adopt_signers()
        simulator.sign_root()
    simulator.publish(release_document("b1"))
    found = refreshing.refresh(simulator.repository(), tmp_path, simulator.download)
    assert [each.release for each in found.entries] == ["n1", "b1"][role != "nightly" :]


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.filterwarnings("ignore:keytype 'ecdsa-sha2:DeprecationWarning")
def test_a_signature_by_another_key_of_the_same_kind_does_not_count(name: str) -> None:
    simulator = RepositorySimulator()
    other = signer_of(*ACCEPTED[name])
    simulator.signers["timestamp"] = [other]
    simulator.adopt_signers()
    simulator.sign_root()
    simulator.sign()
    data = bytearray(simulator.files["metadata/timestamp.json"])
    at = data.index(b'"sig"') + 60
    data[at] = ord("1") if data[at] != ord("1") else ord("2")
    simulator.files["metadata/timestamp.json"] = bytes(data)
    with pytest.raises(MetadataError, match="the timestamp metadata is not trusted"):
        trust.load(simulator, simulator.pinned_root)


# --- keys that are refused, in a root and in a delegation ------------------------------------


def pem(der: bytes) -> str:
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN PUBLIC KEY-----\n{text}-----END PUBLIC KEY-----\n"


def rsa_pem(modulus: int, exponent: int = 65537) -> str:
    key = rsa.RSAPublicNumbers(exponent, modulus).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def curve_pem(curve: ec.EllipticCurve) -> str:
    key = ec.derive_private_key(12345, curve).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def p256_der() -> bytes:
    key = ec.derive_private_key(12345, ec.SECP256R1()).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def beside_the_curve() -> str:
    der = bytearray(p256_der())
    der[-1] ^= 1
    return pem(bytes(der))


def at_infinity() -> str:
    head = bytes.fromhex("301306072a8648ce3d020106082a8648ce3d030107")
    body = head + bytes.fromhex("03020000")
    return pem(bytes([0x30, len(body)]) + body)


@cache
def modulus(bits: int) -> int:
    key = rsa.generate_private_key(65537, bits).public_key()
    return key.public_numbers().n


def composite(bits: int) -> int:
    """An odd number of so many bits without small factors; its making takes no time."""
    number = (1 << bits) - 1
    while keys.is_weak_modulus(number):
        number -= 2
    return number


WEAK: dict[str, tuple[str, str, Callable[[], str]]] = {
    "RSA of 1024 bits": ("rsa", PSS256, lambda: rsa_pem(modulus(1024))),
    "RSA of 2048 bits": ("rsa", PSS256, lambda: rsa_pem(modulus(2048))),
    "RSA of 3071 bits": ("rsa", PSS256, lambda: rsa_pem((1 << 3071) - 1)),
    "RSA of 4097 bits": ("rsa", PSS256, lambda: rsa_pem((1 << 4097) - 1)),
    "RSA of 20,000 bits": ("rsa", PSS256, lambda: rsa_pem((1 << 20_000) - 1)),
    "RSA, even": ("rsa", PSS256, lambda: rsa_pem((1 << 3072) - 2)),
    "RSA, a multiple of 751": ("rsa", PSS256, lambda: rsa_pem(751 * (2**3070 + 1))),
    "RSA, a prime": ("rsa", PSS256, lambda: rsa_pem(PRIME)),
    "RSA, the power of a prime": ("rsa", PSS256, lambda: rsa_pem((2**1279 - 1) ** 3)),
    "RSA, exponent 3": ("rsa", PSS256, lambda: rsa_pem(modulus(3072), 3)),
    "RSA, exponent 65535": ("rsa", PSS256, lambda: rsa_pem(modulus(3072), 65535)),
    "RSA, a huge exponent": ("rsa", PSS256, lambda: rsa_pem(modulus(3072), 2**3000 + 1)),
    "RSA, PKCS 1 v1.5": ("rsa", "rsa-pkcs1v15-sha256", lambda: rsa_pem(modulus(3072))),
    "ECDSA, beside its curve": ("ecdsa", P256, beside_the_curve),
    "ECDSA, at infinity": ("ecdsa", P256, at_infinity),
    "ECDSA, another curve": ("ecdsa", P256, lambda: curve_pem(ec.SECP384R1())),
    "ECDSA, secp256k1": ("ecdsa", P256, lambda: curve_pem(ec.SECP256K1())),
    "ECDSA, P-521": ("ecdsa", "ecdsa-sha2-nistp521", lambda: curve_pem(ec.SECP521R1())),
    "ECDSA, an RSA key": ("ecdsa", P256, lambda: rsa_pem(modulus(3072))),
    "RSA, an ECDSA key": ("rsa", PSS256, lambda: curve_pem(ec.SECP256R1())),
    "ECDSA, a bare point": ("ecdsa", P256, p256_der()[-65:].hex),
    "ECDSA, text": ("ecdsa", P384, lambda: "\x00"),
    "Ed25519, small order": ("ed25519", "ed25519", lambda: "01" + "00" * 31),
    "Ed25519, not canonical": ("ed25519", "ed25519", lambda: "ff" * 32),
    "Ed25519, upper case": ("ed25519", "ed25519", lambda: "AB" * 32),
}


def with_key(place: str, key: SSlibKey) -> RepositorySimulator:
    """A repository that lists another key, in its root, targets or in a delegated role."""
    simulator = RepositorySimulator()
    if place == "root":
        simulator.root.add_key(key, "timestamp")
        simulator.sign_root()
    else:
        by = "targets"
        if place == "nightly":
            by = "parts"
            simulator.delegate("parts", "releases/*.json")
        simulator.delegate("nightly", "releases/n*.json", by=by)
        simulator.targets_of(by).add_key(key, "nightly")
    simulator.publish(release_document("b1"))
    return simulator


def reason(simulator: RepositorySimulator, place: str, folder: Path) -> str:
    """Why a repository with a refused key is refused; of a branch, why it signs nothing."""
    if place == "nightly":
        found = refreshing.refresh(simulator.repository(), folder, simulator.download)
        assert "nightly" not in found.trusted.roles
        return found.trusted.refused["parts"]
    with pytest.raises(MetadataError) as caught:
        refreshing.refresh(simulator.repository(), folder, simulator.download)
    assert not [*folder.glob("metadata/*/copies/*")]
    return caught.value.facts[0]


@pytest.mark.parametrize("name", WEAK)
@pytest.mark.parametrize("place", ["root", "targets", "nightly"])
def test_T44_a_weak_key_is_refused(name: str, place: str, tmp_path: Path) -> None:
    keytype, scheme, text = WEAK[name]
    simulator = with_key(place, SSlibKey(KEYID, keytype, scheme, {"public": text()}))
    assert "key" in reason(simulator, place, tmp_path)


def test_T44_a_prime_modulus_or_one_with_a_small_factor_is_weak() -> None:
    assert keys.is_weak_modulus(PRIME)
    assert keys.is_weak_modulus(PRIME**2)
    assert keys.is_weak_modulus(composite(3072) * 3)
    assert not keys.is_weak_modulus(composite(3072))
    assert not keys.is_weak_modulus(modulus(3072))


def test_T46_too_many_keys_are_refused(tmp_path: Path) -> None:
    simulator = RepositorySimulator()
    signers = [signer(f"many {number}") for number in range(65)]
    simulator.delegate("nightly", "releases/n*.json", signers=signers)
    simulator.publish(release_document("b1"))
    with pytest.raises(MetadataError) as caught:
        refreshing.refresh(simulator.repository(), tmp_path, simulator.download)
    assert "65 keys" in caught.value.facts[0]


# --- one key, listed twice -------------------------------------------------------------------


def spelled_otherwise(key: SSlibKey) -> SSlibKey:
    text = key.keyval["public"].replace("-----\n", "-----\n\n", 1).replace("A", "A\n", 1)
    return SSlibKey(KEYID, key.keytype, key.scheme, {"public": text})


def compressed(key: SSlibKey) -> SSlibKey:
    """The same point, written with half of its coordinates (SEC 1, section 2.3.3)."""
    public = key._crypto_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    point = public.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    head = bytes.fromhex("301306072a8648ce3d020106082a8648ce3d030107")
    body = head + bytes([3, len(point) + 1, 0]) + point
    return SSlibKey(KEYID, "ecdsa", P256, {"public": pem(bytes([0x30, len(body)]) + body)})


def of_kind(keytype: str, scheme: str) -> Callable[[SSlibKey], SSlibKey]:
    return lambda key: SSlibKey(KEYID, keytype, scheme, dict(key.keyval))


AGAIN: dict[str, tuple[str, Callable[[SSlibKey], SSlibKey]]] = {
    "ECDSA, white space": ("p256", spelled_otherwise),
    "ECDSA, compressed": ("p256", compressed),
    "ECDSA, the type's old name": ("p384", of_kind(P384, P384)),
    "RSA, white space": ("3072", spelled_otherwise),
    "RSA, another hash": ("3072", of_kind("rsa", PSS512)),
    "RSA, another exponent": (
        "3072",
        lambda key: SSlibKey(
            KEYID, "rsa", PSS256, {"public": rsa_pem(key._crypto_key().public_numbers().n, 65539)}
        ),
    ),
    "Ed25519, another key id": ("ed25519", of_kind("ed25519", "ed25519")),
}


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("place", ["root", "targets", "nightly"])
def test_T45_one_key_in_two_spellings_is_refused(name: str, place: str, tmp_path: Path) -> None:
    kind, again = AGAIN[name]
    one = (signer("one") if kind == "ed25519" else other_signer(kind)).public_key
    assert isinstance(one, SSlibKey)
    simulator = with_key(place, one)
    refreshing.refresh(simulator.repository(), tmp_path / "good", simulator.download)
    if place == "root":
        simulator.root.add_key(again(one), "timestamp")
        simulator.sign_root()
    else:
        delegator = simulator.targets_of("targets" if place == "targets" else "parts")
        delegator.add_key(again(one), "nightly")
        simulator.sign()
    assert reason(simulator, place, tmp_path / "bad").endswith("it lists one public key twice")


# --- any text at all -------------------------------------------------------------------------

KINDS = st.sampled_from([("ed25519", "ed25519"), *((t, s) for _, t, s in ACCEPTED.values())])


@given(KINDS, st.text(max_size=80))
@settings(deadline=None)
def test_any_text_as_a_key_is_refused_or_read(kind: tuple[str, str], text: str) -> None:
    assert [*keys.key_objections({KEYID: SSlibKey(KEYID, *kind, {"public": text})})]


@given(st.binary(max_size=120))
@settings(deadline=None)
def test_any_bytes_as_a_pem_key_are_refused_or_read(data: bytes) -> None:
    key = SSlibKey(KEYID, "ecdsa", P256, {"public": pem(data)})
    assert [*keys.key_objections({KEYID: key})]


@given(st.integers(0, 90), st.integers(1, 255))
@settings(deadline=None)
def test_T44_no_changed_byte_makes_another_kind_of_key(place: int, flip: int) -> None:
    """A key that is still accepted is a point of P-256, with any parameters of its curve."""
    der = bytearray(p256_der())
    der[place] ^= flip
    text = pem(bytes(der))
    key = SSlibKey(KEYID, "ecdsa", P256, {"public": text})
    if not [*keys.key_objections({KEYID: key})]:
        found = key._crypto_key()
        assert isinstance(found, ec.EllipticCurvePublicKey)
        assert found.curve.name == "secp256r1"
