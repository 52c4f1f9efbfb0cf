"""Attacks on a local copy of a signed repository: nothing but what was signed is trusted."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib.signer import CryptoSigner, SSlibKey
from support.repository import EXPIRES, ISSUED, RepositorySimulator, release_document, signer
from tuf.api.metadata import MetaFile

from tsuku_llm import trust
from tsuku_llm.ground.errors import DigestMismatch, MetadataError


@pytest.fixture
def simulator() -> RepositorySimulator:
    simulator = RepositorySimulator()
    simulator.publish(release_document("b2", version="0.2.0"))
    return simulator


def load(simulator: RepositorySimulator) -> trust.TrustedRepository:
    return trust.load(simulator, simulator.pinned_root)


def refusal(simulator: RepositorySimulator) -> str:
    """The role and the fact of a refusal, as one text."""
    with pytest.raises(MetadataError) as caught:
        load(simulator)
    assert caught.value.exit_code == 5
    return ": ".join((caught.value.message, *caught.value.facts))


def names(simulator: RepositorySimulator) -> dict[str, str]:
    return {
        "root": f"metadata/{simulator.root.version}.root.json",
        "timestamp": "metadata/timestamp.json",
        "snapshot": f"metadata/{simulator.snapshot.version}.snapshot.json",
        "targets": f"metadata/{simulator.targets.version}.targets.json",
    }


def resign(simulator: RepositorySimulator, role: str, signers: list[CryptoSigner]) -> None:
    """Sign one role by other signers, and everything that refers to it properly."""
    simulator.sign()
    getattr(simulator, f"sign_{role}")(signers)
    if role == "targets":
        simulator.sign_snapshot()
    if role in ("targets", "snapshot"):
        simulator.sign_timestamp()


# --- what is good ------------------------------------------------------------------------


def test_a_good_copy_gives_versions_expiries_and_targets(simulator: RepositorySimulator) -> None:
    trusted = load(simulator)
    assert {role: state.version for role, state in trusted.roles.items()} == {
        "root": 1,
        "timestamp": 2,
        "snapshot": 2,
        "targets": 2,
    }
    assert {state.expires for state in trusted.roles.values()} == {EXPIRES}
    assert {state.issued for state in trusted.roles.values()} == {ISSUED}
    target = trusted.targets["releases/b2.json"]
    assert target.custom["version"] == "0.2.0"
    data = simulator.files[target.name]
    assert trusted.read("releases/b2.json", data) == data


def test_M18_expiry_is_reported_and_not_refused(simulator: RepositorySimulator) -> None:
    end = datetime(2026, 12, 1, tzinfo=timezone.utc)
    simulator.expire("snapshot", end)
    trusted = load(simulator)
    assert trusted.expired(end - timedelta(seconds=1)) == ()
    assert trusted.expired(end) == ("snapshot",)


def test_a_publisher_may_leave_out_when_it_signed(simulator: RepositorySimulator) -> None:
    simulator.timestamp.unrecognized_fields.clear()
    simulator.sign_timestamp()
    assert load(simulator).roles["timestamp"].issued is None


@pytest.mark.parametrize("issued", ["yesterday", 5, ["2026-11-20T00:00:00Z"], {}])
def test_a_malformed_date_of_issue_is_refused(
    simulator: RepositorySimulator, issued: object
) -> None:
    simulator.timestamp.unrecognized_fields["issued"] = issued
    simulator.sign_timestamp()
    assert "timestamp" in refusal(simulator)


def test_importing_trust_loads_little() -> None:
    code = (
        "import sys, tsuku_llm.trust;"
        "print([m for m in ('tuf', 'securesystemslib', 'cryptography') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- targets ------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["flip", "short", "long", "empty"])
def test_a_target_other_than_the_signed_one_is_refused(
    simulator: RepositorySimulator, change: str
) -> None:
    trusted = load(simulator)
    data = simulator.files[trusted.targets["releases/b2.json"].name]
    changed = {
        "flip": bytes([data[0] ^ 1]) + data[1:],
        "short": data[:-1],
        "long": data + b" ",
        "empty": b"",
    }[change]
    with pytest.raises(DigestMismatch) as caught:
        trusted.read("releases/b2.json", changed)
    assert caught.value.exit_code == 5


def test_an_unsigned_target_is_refused(simulator: RepositorySimulator) -> None:
    with pytest.raises(MetadataError, match="not a signed target"):
        load(simulator).read("releases/b3.json", b"{}")


# --- signatures ---------------------------------------------------------------------------

ROLES = ["root", "timestamp", "snapshot", "targets"]


@pytest.mark.parametrize("role", ROLES)
def test_M01_wrongly_signed_metadata_is_refused(simulator: RepositorySimulator, role: str) -> None:
    strangers = [signer(f"stranger {number}") for number in (1, 2, 3)]
    if role == "root":
        simulator.root.version += 1
        simulator.sign_root(strangers)
    else:
        resign(simulator, role, strangers)
    assert role in refusal(simulator)


@pytest.mark.parametrize("role", ROLES)
def test_M01_unsigned_metadata_is_refused(simulator: RepositorySimulator, role: str) -> None:
    if role == "root":
        simulator.root.version += 1
        simulator.sign_root([])
    else:
        resign(simulator, role, [])
    assert "0 valid signatures" in refusal(simulator)


def test_M01_a_pinned_root_that_did_not_sign_itself_is_refused(
    simulator: RepositorySimulator,
) -> None:
    simulator.sign_root([signer("stranger")])
    assert "root" in refusal(simulator)


def test_M02_too_few_signatures_are_refused(simulator: RepositorySimulator) -> None:
    resign(simulator, "targets", simulator.signers["targets"][:1])
    assert "1 valid signatures, 2 are needed" in refusal(simulator)


def test_M03_a_threshold_above_the_number_of_keys_is_refused(
    simulator: RepositorySimulator,
) -> None:
    simulator.root.roles["targets"].threshold = 4
    simulator.sign_root()
    assert "3 valid signatures, 4 are needed" in refusal(simulator)


def test_M04_a_duplicate_signature_counts_once(simulator: RepositorySimulator) -> None:
    resign(simulator, "targets", simulator.signers["targets"][:1])
    name = names(simulator)["targets"]
    document = json.loads(simulator.files[name])
    document["signatures"] *= 2
    republish(simulator, "targets", json.dumps(document).encode())
    assert "targets" in refusal(simulator)


def test_M05_a_duplicate_key_id_of_a_role_is_refused(simulator: RepositorySimulator) -> None:
    document = json.loads(simulator.pinned_root)
    keyids = document["signed"]["roles"]["targets"]["keyids"]
    keyids[:] = keyids[:1] * 2
    simulator.files["metadata/1.root.json"] = json.dumps(document).encode()
    assert "root" in refusal(simulator)


def test_M06_one_key_under_two_key_ids_is_refused(simulator: RepositorySimulator) -> None:
    """One stolen signer must not be able to fill a threshold of two."""
    stolen = simulator.signers["targets"][0]
    twin = SSlibKey("f" * 64, "ed25519", "ed25519", {"public": public(stolen)})
    simulator.root.add_key(twin, "targets")
    simulator.sign_root()
    assert "one public key twice" in refusal(simulator)


def republish(simulator: RepositorySimulator, role: str, data: bytes) -> None:
    """Put other bytes in a role's place, and let its referrers name them."""
    version = getattr(simulator, role).version
    simulator.files[f"metadata/{version}.{role}.json"] = data
    about = MetaFile.from_data(version, data, ["sha256"])
    if role == "targets":
        simulator.snapshot.meta["targets.json"] = about
        simulator.sign_snapshot()
    else:
        simulator.timestamp.snapshot_meta = about
    simulator.sign_timestamp()


def public(each: CryptoSigner) -> str:
    return str(each.public_key.keyval["public"])


@given(role=st.sampled_from(ROLES), at=st.integers(min_value=0))
@settings(deadline=None, max_examples=300)
def test_one_flipped_bit_never_changes_what_is_trusted(role: str, at: int) -> None:
    """A signature beyond the threshold or its letters' case may change; content never does."""
    simulator = RepositorySimulator()
    simulator.publish(release_document("b2"))
    good = load(simulator)
    name = names(simulator)[role]
    simulator.flip(name, at % (len(simulator.files[name]) * 8))
    try:
        changed = load(simulator)
    except MetadataError:
        return
    assert changed == good


@pytest.mark.parametrize("role", ROLES)
def test_a_flipped_bit_in_a_signature_is_refused(simulator: RepositorySimulator, role: str) -> None:
    threshold = simulator.root.roles[role].threshold
    signers = simulator.signers[role][:threshold]
    if role == "root":
        simulator.sign_root(signers)
    else:
        resign(simulator, role, signers)
    name = names(simulator)[role]
    document = json.loads(simulator.files[name])
    first = document["signatures"][0]
    first["sig"] = ("0" if first["sig"][0] != "0" else "1") + first["sig"][1:]
    data = json.dumps(document).encode()
    if role in ("snapshot", "targets"):
        republish(simulator, role, data)
    simulator.files[name] = data
    assert f"{threshold - 1} valid signatures" in refusal(simulator)


# --- the chain of roots -------------------------------------------------------------------


def test_M10_a_rotated_root_is_followed(simulator: RepositorySimulator) -> None:
    for generation in ("one", "two", "three"):
        simulator.rotate("root", "targets", generation=generation)
    simulator.rotate("snapshot", "timestamp")
    assert load(simulator).roles["root"].version == 5


def test_M07_a_next_root_without_the_old_keys_is_refused(simulator: RepositorySimulator) -> None:
    simulator.rotate("root", old=False)
    assert "old keys: 0 valid" in refusal(simulator)


def test_M07_a_next_root_with_one_old_key_is_refused(simulator: RepositorySimulator) -> None:
    old = simulator.signers["root"][:1]
    simulator.rotate("root", old=False)
    simulator.sign_root([*old, *simulator.signers["root"]])
    assert "old keys: 1 valid" in refusal(simulator)


def test_M08_a_next_root_without_the_new_keys_is_refused(simulator: RepositorySimulator) -> None:
    old = simulator.signers["root"]
    simulator.rotate("root")
    simulator.sign_root(old)
    assert "new keys: 0 valid" in refusal(simulator)


@pytest.mark.parametrize("version", [1, 3, 4])
def test_M09_a_root_that_skips_or_repeats_a_version_is_refused(
    simulator: RepositorySimulator, version: int
) -> None:
    simulator.root.version = version
    data = simulator.signed(simulator.root, simulator.signers["root"])
    simulator.files["metadata/2.root.json"] = data
    assert "expected version 2" in refusal(simulator)


@pytest.mark.parametrize(("rotations", "stopped"), [(255, False), (256, True), (300, True)])
def test_M11_a_flood_of_rotations_is_stopped(
    simulator: RepositorySimulator, rotations: int, stopped: bool
) -> None:
    for _ in range(rotations):
        simulator.root.version += 1
        simulator.sign_root()
    if stopped:
        assert "256 rotations or more" in refusal(simulator)
    else:
        assert load(simulator).roles["root"].version == 256


def test_metadata_signed_by_replaced_keys_is_refused(simulator: RepositorySimulator) -> None:
    old = simulator.signers["timestamp"]
    simulator.rotate("timestamp")
    simulator.sign_timestamp(old)
    assert "timestamp" in refusal(simulator)


# --- referrers ----------------------------------------------------------------------------


def test_M21_a_snapshot_with_another_version_than_signed_is_refused(
    simulator: RepositorySimulator,
) -> None:
    """2.snapshot.json says version 3, with a length and digest that agree."""
    simulator.snapshot.version = 3
    data = simulator.signed(simulator.snapshot, simulator.signers["snapshot"])
    simulator.files["metadata/2.snapshot.json"] = data
    simulator.timestamp.snapshot_meta = MetaFile.from_data(2, data, ["sha256"])
    simulator.sign_timestamp()
    assert "snapshot metadata is not trusted: expected version 2" in refusal(simulator)


def test_M21_targets_with_another_version_than_signed_are_refused(
    simulator: RepositorySimulator,
) -> None:
    simulator.targets.version = 3
    data = simulator.signed(simulator.targets, simulator.signers["targets"])
    simulator.files["metadata/2.targets.json"] = data
    simulator.snapshot.meta["targets.json"] = MetaFile.from_data(2, data, ["sha256"])
    simulator.sign_snapshot()
    simulator.sign_timestamp()
    assert "targets metadata is not trusted: expected version 2" in refusal(simulator)


@pytest.mark.parametrize("role", ["snapshot", "targets"])
def test_M21_the_right_version_with_another_digest_is_refused(
    simulator: RepositorySimulator, role: str
) -> None:
    """Signed by the right signers, and yet not what the referrer names."""
    signed = getattr(simulator, role)
    signed.unrecognized_fields["note"] = "another one"
    name = f"metadata/{signed.version}.{role}.json"
    simulator.files[name] = simulator.signed(signed, simulator.signers[role])
    assert f"the {role} metadata is not trusted: Observed length" in refusal(simulator)


@pytest.mark.parametrize("role", ["snapshot", "targets"])
def test_M21_an_older_file_under_the_current_name_is_refused(
    simulator: RepositorySimulator, role: str
) -> None:
    old = simulator.files[f"metadata/1.{role}.json"]
    simulator.files[f"metadata/2.{role}.json"] = old
    assert role in refusal(simulator)


def test_M15_a_snapshot_without_targets_is_refused(simulator: RepositorySimulator) -> None:
    simulator.snapshot.meta.clear()
    simulator.snapshot.meta["other.json"] = MetaFile(1)
    simulator.sign_snapshot()
    simulator.sign_timestamp()
    assert "does not name the targets" in refusal(simulator)


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_a_missing_file_is_refused(simulator: RepositorySimulator, role: str) -> None:
    del simulator.files[names(simulator)[role]]
    text = refusal(simulator)
    assert role in text
    assert "is missing" in text


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
@pytest.mark.parametrize("other", ROLES)
def test_M24_one_role_in_the_place_of_another_is_refused(
    simulator: RepositorySimulator, role: str, other: str
) -> None:
    if role == other:
        return
    data = simulator.files[names(simulator)[other]]
    if role == "timestamp":
        simulator.files["metadata/timestamp.json"] = data
    else:
        republish(simulator, role, data)
    assert f"the {role} metadata is not trusted: it says that it is {other}" in refusal(simulator)


# --- what the specification allows and this program does not --------------------------------


def test_a_malformed_public_key_is_refused(simulator: RepositorySimulator) -> None:
    key = SSlibKey("a" * 64, "ed25519", "ed25519", {"public": "5" * 62})
    simulator.root.add_key(key, "targets")
    simulator.sign_root()
    assert "malformed public key" in refusal(simulator)


@pytest.mark.parametrize("value", [False, None])
def test_a_repository_without_consistent_snapshots_is_refused(
    simulator: RepositorySimulator, value: bool | None
) -> None:
    simulator.root.consistent_snapshot = value
    simulator.sign_root()
    assert "consistent snapshots" in refusal(simulator)


@pytest.mark.parametrize("path", ["../b3.json", "releases/../../b3.json", "/b3.json", "a\\b"])
def test_a_target_outside_the_repository_is_refused(
    simulator: RepositorySimulator, path: str
) -> None:
    simulator.add_target(path, b"{}", {})
    simulator.bump()
    assert "not a path within" in refusal(simulator)


def test_a_target_without_sha256_is_refused(simulator: RepositorySimulator) -> None:
    target = simulator.targets.targets["releases/b2.json"]
    target.hashes = {"md5": hashlib.md5(b"", usedforsecurity=False).hexdigest()}
    simulator.sign()
    assert "no SHA-256" in refusal(simulator)


# --- JSON ---------------------------------------------------------------------------------

Edit = Callable[[str], str]
NESTED = "[" * 10_000 + "]" * 10_000

BAD_TIMESTAMPS: dict[str, Edit] = {
    "M25_spec_version_2": lambda text: text.replace('"1.0.31"', '"2.0.0"'),
    "M25_spec_version_junk": lambda text: text.replace('"1.0.31"', '"one"'),
    "M26_duplicate_key": lambda text: text.replace('"version":2', '"version":9,"version":2'),
    "M26_float": lambda text: text.replace('"version":2', '"version":2.0'),
    "M26_nan": lambda text: text.replace('"version":2', '"version":NaN'),
    "M26_huge_integer": lambda text: text.replace('"version":2', f'"version":{10**20}'),
    "M26_endless_integer": lambda text: text.replace('"version":2', f'"version":{"9" * 5000}'),
    "M26_negative": lambda text: text.replace('"version":2', '"version":-2'),
    "M26_bool": lambda text: text.replace('"version":2', '"version":true'),
    "M26_text": lambda text: text.replace('"version":2', '"version":"2"'),
    "M26_surrogate": lambda text: text.replace('"spec_', '"x":"\\ud800","spec_'),
    "M26_nesting": lambda text: text.replace('"spec_', f'"x":{NESTED},"spec_'),
    "M26_nesting_that_json_reads": lambda text: text.replace(
        '"spec_', f'"x":{"[" * 1200}{"]" * 1200},"spec_'
    ),
    "M26_junk": lambda _: "\x00",
    "M26_empty": lambda _: "",
    "M26_list": lambda _: "[]",
    "M26_null": lambda _: "null",
    "M26_trailing": lambda text: text + "{}",
}


@pytest.mark.parametrize("name", BAD_TIMESTAMPS)
def test_malformed_metadata_is_refused(simulator: RepositorySimulator, name: str) -> None:
    text = simulator.files["metadata/timestamp.json"].decode()
    changed = BAD_TIMESTAMPS[name](text)
    assert changed != text
    simulator.files["metadata/timestamp.json"] = changed.encode()
    assert "timestamp" in refusal(simulator)


def test_M26_a_signed_bool_is_not_a_version(simulator: RepositorySimulator) -> None:
    """Python holds True for 1, and python-tuf with it."""
    simulator.timestamp.version = True
    simulator.sign_timestamp()
    assert "not an integer" in refusal(simulator)


def test_M26_nesting_is_limited_before_another_reader_gives_up(
    simulator: RepositorySimulator,
) -> None:
    """From 3.12 on json reads deeper than Python code recurses, python-tuf's for one."""
    deep: list[object] = []
    for _ in range(28):
        deep = [deep]
    simulator.timestamp.unrecognized_fields["x"] = deep
    simulator.sign_timestamp()
    load(simulator)
    simulator.timestamp.unrecognized_fields["x"] = [[[deep]]]
    simulator.sign_timestamp()
    assert "nested more than 32 deep" in refusal(simulator)


@pytest.mark.parametrize("where", ["threshold", "target length", "meta version", "meta length"])
def test_M26_a_signed_bool_is_not_a_number(simulator: RepositorySimulator, where: str) -> None:
    if where == "threshold":
        simulator.root.roles["timestamp"].threshold = True
        simulator.sign_root()
    elif where == "target length":
        simulator.targets.targets["releases/b2.json"].length = True
        simulator.sign()
    elif where == "meta version":
        simulator.snapshot.meta["targets.json"].version = True
        simulator.sign_snapshot()
        simulator.sign_timestamp()
    else:
        assert simulator.timestamp.snapshot_meta.length
        simulator.timestamp.snapshot_meta.length = True
        simulator.sign_timestamp()
    assert "not an integer" in refusal(simulator)


def test_metadata_that_is_not_utf8_is_refused(simulator: RepositorySimulator) -> None:
    simulator.files["metadata/timestamp.json"] = b'{"signed": "\xff"}'
    assert "timestamp" in refusal(simulator)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(role=st.sampled_from(ROLES), signed=JSON, signatures=JSON)
@settings(deadline=None, max_examples=200)
def test_M27_any_unsigned_document_is_refused(role: str, signed: Any, signatures: Any) -> None:
    document = {"signed": {"_type": role, **signed} if isinstance(signed, dict) else signed}
    data = json.dumps({**document, "signatures": signatures}).encode()
    with pytest.raises(MetadataError):
        trust.check_metadata(data)


@given(st.binary())
@settings(deadline=None)
def test_M27_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MetadataError):
        trust.check_metadata(data)


# --- weak keys ----------------------------------------------------------------------------

P = 2**255 - 19
D = -121665 * pow(121666, P - 2, P) % P


def add(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
    """Addition on edwards25519 (RFC 8032, section 5.1)."""
    (x1, y1), (x2, y2) = one, two
    product = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + product, P - 2, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, P - 2, P)
    return x % P, y % P


def point(encoded: bytes) -> tuple[int, int] | None:
    number = int.from_bytes(encoded, "little")
    sign, y = number >> 255, number % 2**255 % P
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P:
        return None
    return (P - x if x % 2 != sign else x), y


def times_eight(encoded: bytes) -> tuple[int, int] | None:
    found = point(encoded)
    for _ in range(3):
        found = found and add(found, found)
    return found


SMALL = [
    bytes.fromhex(text)
    for text in (
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    )
]
NOT_CANONICAL = [
    bytes.fromhex("01" + "00" * 30 + "80"),
    bytes.fromhex("ed" + "ff" * 30 + "7f"),
    bytes.fromhex("ee" + "ff" * 30 + "7f"),
    bytes.fromhex("ff" * 32),
]


def test_the_points_of_small_order_times_eight_are_the_identity() -> None:
    assert {times_eight(key) for key in SMALL} == {(0, 1)}
    assert len({point(key) for key in SMALL}) == 8


@pytest.mark.parametrize("key", [*SMALL, *NOT_CANONICAL], ids=bytes.hex)
def test_weak_keys_are_refused(simulator: RepositorySimulator, key: bytes) -> None:
    assert trust.is_weak(key)
    weak = SSlibKey("b" * 64, "ed25519", "ed25519", {"public": key.hex()})
    simulator.root.add_key(weak, "targets")
    simulator.sign_root()
    assert "small order" in refusal(simulator)


@given(st.binary(min_size=32, max_size=32))
@settings(deadline=None)
def test_a_key_is_weak_exactly_when_it_is_not_canonical_or_of_small_order(key: bytes) -> None:
    canonical = int.from_bytes(key, "little") % 2**255 < P
    assert trust.is_weak(key) == (not canonical or times_eight(key) == (0, 1))
