"""Attacks on the metadata of a signed repository, by an attacker who controls its host.

Each changes a ``RepositorySimulator`` that has just published something new. A client that
trusts the state before must refuse it. Most attacks are signed by the right signers, as the
interesting ones need that. Each name begins with the id of the row that it shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from securesystemslib.signer import CryptoSigner, SSlibKey  # type: ignore[attr-defined]
from support.repository import RepositorySimulator, signer
from tuf.api.metadata import MetaFile  # type: ignore[attr-defined]

Attack = Callable[[RepositorySimulator], None]
Edit = Callable[[str], str]

ROLES = ("root", "timestamp", "snapshot", "targets")
REFERRED = ("snapshot", "targets")
STRANGERS = tuple(signer(f"stranger {number}") for number in (1, 2, 3))


def name_of(simulator: RepositorySimulator, role: str) -> str:
    """The published file of a role."""
    if role == "timestamp":
        return "metadata/timestamp.json"
    return f"metadata/{getattr(simulator, role).version}.{role}.json"


def resign(simulator: RepositorySimulator, role: str, signers: Iterable[CryptoSigner]) -> None:
    """Sign one role by these signers, and everything that refers to it properly."""
    if role == "root":
        simulator.root.version += 1
        simulator.sign_root(signers)
        return
    getattr(simulator, f"sign_{role}")(signers)
    if role == "targets":
        simulator.sign_snapshot()
    if role in REFERRED:
        simulator.sign_timestamp()


def republish(simulator: RepositorySimulator, role: str, data: bytes) -> None:
    """Put other bytes in a role's place; those that refer to it name them."""
    if role == "root":
        simulator.root.version += 1
    simulator.files[name_of(simulator, role)] = data
    version = getattr(simulator, role).version
    if role == "targets":
        simulator.snapshot.meta["targets.json"] = MetaFile.from_data(version, data, ["sha256"])
        simulator.sign_snapshot()
    if role == "snapshot":
        simulator.timestamp.snapshot_meta = MetaFile.from_data(version, data, ["sha256"])
    if role in REFERRED:
        simulator.sign_timestamp()


def _signed_by(role: str, signers: Iterable[CryptoSigner]) -> Attack:
    return lambda simulator: resign(simulator, role, signers)


def _one_signature_twice(role: str) -> Attack:
    def attack(simulator: RepositorySimulator) -> None:
        resign(simulator, role, simulator.signers[role][:1])
        name = name_of(simulator, role)
        document = json.loads(simulator.files[name])
        document["signatures"] *= 2
        if role == "root":
            simulator.files[name] = json.dumps(document).encode()
        else:
            republish(simulator, role, json.dumps(document).encode())

    return attack


def _few(role: str) -> Attack:
    return lambda simulator: resign(
        simulator, role, simulator.signers[role][: len(simulator.signers[role]) - 2 or None][:1]
    )


def _next_root(change: Attack) -> Attack:
    """A next root, signed as it should be, and everything after it."""

    def attack(simulator: RepositorySimulator) -> None:
        change(simulator)
        simulator.root.version += 1
        simulator.sign_root()
        simulator.bump()

    return attack


def _threshold_above_keys(simulator: RepositorySimulator) -> None:
    simulator.root.roles["timestamp"].threshold = 2


def _twin_key(simulator: RepositorySimulator) -> None:
    value = simulator.signers["targets"][0].public_key.keyval
    simulator.root.add_key(SSlibKey("f" * 64, "ed25519", "ed25519", value), "targets")


def _keyid_twice(simulator: RepositorySimulator) -> None:
    simulator.root.version += 1
    simulator.sign_root()
    name = name_of(simulator, "root")
    document = json.loads(simulator.files[name])
    keyids = document["signed"]["roles"]["targets"]["keyids"]
    keyids[:] = keyids[:1] * 2
    simulator.files[name] = json.dumps(document).encode()


def _without_new_keys(simulator: RepositorySimulator) -> None:
    old = simulator.signers["root"]
    simulator.rotate("root")
    simulator.sign_root(old)


def _root_says(step: int) -> Attack:
    def attack(simulator: RepositorySimulator) -> None:
        name = f"metadata/{simulator.root.version + 1}.root.json"
        simulator.root.version += step
        simulator.files[name] = simulator.signed(simulator.root, simulator.signers["root"])

    return attack


def _flood(simulator: RepositorySimulator) -> None:
    for _ in range(257):
        simulator.root.version += 1
        simulator.sign_root()


def _rolled_back(role: str, *, hashes: bool = True) -> Attack:
    def attack(simulator: RepositorySimulator) -> None:
        getattr(simulator, role).version = 1
        data = simulator.signed(getattr(simulator, role), simulator.signers[role])
        simulator.files[name_of(simulator, role)] = data
        about = MetaFile.from_data(1, data, ["sha256"]) if hashes else MetaFile(1)
        if role == "targets":
            simulator.snapshot.meta["targets.json"] = about
            simulator.sign_snapshot()
        elif role == "snapshot":
            simulator.timestamp.snapshot_meta = about
        if role != "timestamp":
            simulator.sign_timestamp()

    return attack


def _no_targets_named(simulator: RepositorySimulator) -> None:
    del simulator.snapshot.meta["targets.json"]
    simulator.snapshot.meta["other.json"] = MetaFile(1)
    simulator.sign_snapshot()
    simulator.sign_timestamp()


def _says_another_version(role: str) -> Attack:
    """``5.snapshot.json says version 6``, with a length and digest that agree."""

    def attack(simulator: RepositorySimulator) -> None:
        signed = getattr(simulator, role)
        version = signed.version
        signed.version += 1
        data = simulator.signed(signed, simulator.signers[role])
        signed.version = version
        republish(simulator, role, data)

    return attack


def _another_digest(role: str) -> Attack:
    def attack(simulator: RepositorySimulator) -> None:
        signed = getattr(simulator, role)
        signed.unrecognized_fields["note"] = "another one"
        data = simulator.signed(signed, simulator.signers[role])
        simulator.files[name_of(simulator, role)] = data

    return attack


def _in_the_place_of(role: str, other: str) -> Attack:
    """Rightly signed, if the same signers may sign both."""

    def attack(simulator: RepositorySimulator) -> None:
        signed = getattr(simulator, other)
        data = simulator.signed(signed, simulator.signers[role])
        republish(simulator, role, data)

    return attack


def _edited(role: str, edit: Edit) -> Attack:
    """Other text under the old signatures: it must not even be understood."""

    def attack(simulator: RepositorySimulator) -> None:
        if role == "root":
            simulator.root.version += 1
            simulator.sign_root()
        name = name_of(simulator, role)
        text = simulator.files[name].decode()
        changed = edit(text)
        assert changed != text
        if role in REFERRED:
            republish(simulator, role, changed.encode())
        else:
            simulator.files[name] = changed.encode()

    return attack


def _signed_number(role: str) -> Attack:
    """Sign True in the place of a number by the right signers: Python takes True for 1."""

    def attack(simulator: RepositorySimulator) -> None:
        if role == "root":
            simulator.root.roles["timestamp"].threshold = True
            simulator.root.version += 1
            simulator.sign_root()
        elif role == "targets":
            next(iter(simulator.targets.targets.values())).length = True
            simulator.sign()
        elif role == "snapshot":
            simulator.snapshot.meta["targets.json"].length = True
            simulator.sign_snapshot()
            simulator.sign_timestamp()
        else:
            assert simulator.timestamp.snapshot_meta.length
            simulator.timestamp.snapshot_meta.length = True
            simulator.sign_timestamp()

    return attack


_NESTED = "[" * 10_000 + "]" * 10_000
EDITS: dict[str, Edit] = {
    "M25_spec_version_2": lambda text: text.replace('"1.0.31"', '"2.0.0"'),
    "M25_spec_version_junk": lambda text: text.replace('"1.0.31"', '"one"'),
    "M25_no_spec_version": lambda text: text.replace('"spec_version"', '"spec"'),
    "M26_duplicate_key": lambda text: text.replace('"_type":', '"_type":"x","_type":'),
    "M26_float": lambda text: text.replace('"spec_', '"x":1.0,"spec_'),
    "M26_nan": lambda text: text.replace('"spec_', '"x":NaN,"spec_'),
    "M26_huge_integer": lambda text: text.replace('"spec_', f'"x":{10**20},"spec_'),
    "M26_surrogate": lambda text: text.replace('"spec_', '"x":"\\ud800","spec_'),
    "M26_nesting": lambda text: text.replace('"spec_', f'"x":{_NESTED},"spec_'),
    "M26_empty": lambda _: "",
    "M26_list": lambda _: "[]",
    "M26_trailing": lambda text: text + "{}",
}

ATTACKS: dict[str, Attack] = {
    **{f"M01_wrongly_signed_{role}": _signed_by(role, STRANGERS) for role in ROLES},
    **{f"M01_unsigned_{role}": _signed_by(role, ()) for role in ROLES},
    **{f"M02_threshold_of_{role}": _few(role) for role in ("root", "targets")},
    "M03_threshold_above_the_keys": _next_root(_threshold_above_keys),
    **{
        f"M04_one_signature_twice_{role}": _one_signature_twice(role)
        for role in ("root", "targets")
    },
    "M05_keyid_twice_in_a_role": _keyid_twice,
    "M06_one_key_under_two_keyids": _next_root(_twin_key),
    "M07_without_the_old_keys": lambda simulator: simulator.rotate("root", old=False),
    "M08_without_the_new_keys": _without_new_keys,
    "M09_root_skips_a_version": _root_says(2),
    "M09_root_repeats_its_version": _root_says(0),
    "M11_flood_of_rotations": _flood,
    "M12_timestamp_rolled_back": _rolled_back("timestamp"),
    "M13_snapshot_rolled_back": _rolled_back("snapshot"),
    "M13_snapshot_rolled_back_without_hashes": _rolled_back("snapshot", hashes=False),
    "M14_targets_rolled_back": _rolled_back("targets"),
    "M14_targets_rolled_back_without_hashes": _rolled_back("targets", hashes=False),
    "M15_targets_removed_from_the_snapshot": _no_targets_named,
    **{f"M21_{role}_says_another_version": _says_another_version(role) for role in REFERRED},
    **{f"M21_{role}_of_another_digest": _another_digest(role) for role in REFERRED},
    **{
        f"M24_{other}_in_the_place_of_{role}": _in_the_place_of(role, other)
        for role in ROLES
        for other in ROLES
        if role != other
    },
    **{f"{name}_{role}": _edited(role, edit) for name, edit in EDITS.items() for role in ROLES},
    **{f"M26_signed_bool_{role}": _signed_number(role) for role in ROLES},
}

NEEDS_MEMORY = ("M12_", "M13_", "M14_")
"""Attacks that only a client sees which knows what was before."""
