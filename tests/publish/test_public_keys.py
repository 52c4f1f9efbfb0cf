"""The public keys of a plan: every kind that clients accept, and nothing else."""

from collections.abc import Callable

import pytest
import tomli
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tsuku_publish.errors import PublishError
from tsuku_publish.holders.keys import PublicKeyTable, key_line, read_public_key, read_public_keys

HEX = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()


def table(private: object, scheme: str) -> PublicKeyTable:
    public = private.public_key()  # type: ignore[attr-defined]
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return PublicKeyTable(scheme, pem.decode())


def p256() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


ACCEPTED: dict[str, Callable[[], str | PublicKeyTable]] = {
    "hexadecimal": lambda: HEX,
    "ed25519": lambda: table(ed25519.Ed25519PrivateKey.generate(), "ed25519"),
    "p256": lambda: table(p256(), "ecdsa-sha2-nistp256"),
    "p384": lambda: table(ec.generate_private_key(ec.SECP384R1()), "ecdsa-sha2-nistp384"),
    "rsa": lambda: table(rsa.generate_private_key(65537, 3072), "rsassa-pss-sha512"),
}


@pytest.mark.parametrize("kind", ACCEPTED)
@pytest.mark.parametrize("name", ["anna", "anna@example.com", 'a "b"'])
def test_a_key_is_read_as_its_line_is_written(kind: str, name: str) -> None:
    key = read_public_key(name, ACCEPTED[kind]())
    line = key_line(name, key)
    assert "\n" not in line
    (found,) = tomli.loads(line).items()
    raw = found[1] if isinstance(found[1], str) else PublicKeyTable(**found[1])
    assert (found[0], read_public_key(name, raw)) == (name, key)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", "no public key of anna: write 64"),
        (HEX[:-2], "no public key of anna"),
        (f"{HEX}zz", "no public key of anna"),
        ("00" * 32, "clients refuse the public key of anna: .* small order"),
        (PublicKeyTable("ed25519", "x"), "no public key of anna"),
        (table(p256(), "ecdsa-sha2-nistp384"), "anna: it has a public key of another kind"),
        (table(p256(), "ed25519"), "anna"),
        (table(ec.generate_private_key(ec.SECP521R1()), "ecdsa-sha2-nistp521"), "anna: it has a"),
        (table(rsa.generate_private_key(65537, 2048), "rsassa-pss-sha256"), "2048 bits"),
        (table(rsa.generate_private_key(65537, 3072), "rsa-pkcs1v15-sha256"), "anna: it has a key"),
        (table(rsa.generate_private_key(65537, 3072), "none"), "anna"),
    ],
    ids=range(11),
)
def test_a_key_that_clients_would_refuse_is_named(raw: str | PublicKeyTable, reason: str) -> None:
    with pytest.raises(PublishError, match=reason):
        read_public_key("anna", raw)


def test_one_key_under_two_names_is_refused() -> None:
    pem = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(HEX)).public_bytes(
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    )
    same = PublicKeyTable("ed25519", pem.decode().replace("\n", "\r\n"))
    with pytest.raises(PublishError, match="the same public key twice: anna and ben"):
        read_public_keys({"anna": HEX, "ben": same})
