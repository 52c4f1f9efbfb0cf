"""Mutated metadata: refused in our words, or understood as python-tuf understands it.

A case changes one file of a good repository: its structure or its bytes, without a signature
(then nothing that is trusted may change) or signed again by the right keys (a malicious or
careless publisher). Files that refer to it are signed again, so that the change is reached.
The repository has keys of all kinds and delegated roles: ``nightly`` by a path, and below it
``parts`` by hashes. Every case is also given to python-tuf's client; what it refuses must be
refused, and what both accept must mean the same.
"""

import atexit
import contextlib
import copy
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from hypothesis import currently_in_test_context, event, example, given, settings
from hypothesis import strategies as st
from securesystemslib.formats import encode_canonical
from securesystemslib.signer import CryptoSigner
from support.mutations import (
    CHANGES,
    EDITS,
    EXAMPLES,
    Change,
    Edit,
    changed,
    edited,
    fuzz,
    text_of,
)
from support.repository import (
    FrozenCopy,
    RepositorySimulator,
    other_signer,
    release_document,
    signer,
)
from tuf.api.exceptions import DownloadHTTPError
from tuf.api.metadata import Metadata, TargetFile, Targets
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
from tuf.ngclient.config import EnvelopeType, UpdaterConfig
from tuf.ngclient.fetcher import FetcherInterface
from tuf.ngclient.updater import Updater

from tsuku_llm import trust
from tsuku_llm.catalog import loading, refreshing
from tsuku_llm.catalog.repositories import Repository
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import HttpStatusError, TrustError, TsukuError
from tsuku_llm.trust.delegations import matches

BEFORE_ALL = datetime(1, 1, 1, tzinfo=timezone.utc)
NOWHERE = Path(os.devnull) / "nowhere"
MEMORY = Path("/dev/shm")  # noqa: S108 - folders with random names in it
FOLDERS = MEMORY if MEMORY.is_dir() else None
"""Where flushing costs nothing."""

TARGETS = ("targets", "nightly", "parts")
ROLES = st.sampled_from(["root", "next root", "timestamp", "snapshot", *TARGETS])
NAMES = {
    "root": "metadata/1.root.json",
    "next root": "metadata/2.root.json",
    "timestamp": "metadata/timestamp.json",
    "snapshot": "metadata/3.snapshot.json",
    **{role: f"metadata/3.{role}.json" for role in TARGETS},
}


PART = next(
    tag
    for tag in (f"n{number}" for number in range(2, 99))
    if hashlib.sha256(f"releases/{tag}.json".encode()).digest()[0] >> 4 in range(0, 16, 2)
)
"""A release that the role ``parts`` may sign."""


@cache
def before() -> RepositorySimulator:
    """Two releases of the people, two of a machine."""
    simulator = RepositorySimulator()
    for role in ("snapshot", "timestamp"):
        simulator.signers[role] = [other_signer("p256")]
    simulator.adopt_signers()
    simulator.sign_root()
    machine = [other_signer("p384"), other_signer("3072")]
    simulator.delegate("nightly", "releases/n*.json", threshold=2, signers=machine)
    simulator.delegate("parts", by="nightly", terminating=True)
    delegations = simulator.delegated["nightly"].delegations
    assert delegations is not None
    assert delegations.roles is not None
    delegations.roles["parts"].paths = None
    delegations.roles["parts"].path_hash_prefixes = [*"02468ace"]
    for role, tag in (("nightly", "n1"), ("parts", PART), ("parts", "n1"), ("nightly", "b9")):
        simulator.add(release_document(tag), channels=["nightly"], role=role)
    simulator.publish(release_document("b1"), release_document("b2", version="0.2.0"))
    return simulator


@cache
def good() -> RepositorySimulator:
    """Later: the targets' signers rotated, three releases in two channels."""
    simulator = before().fork()
    simulator.add(release_document("b3"), channels=["nightly", "stable"])
    simulator.rotate("targets")
    return simulator


@cache
def later() -> RepositorySimulator:
    """The same content once more, with higher versions."""
    simulator = good().fork()
    simulator.bump()
    return simulator


def signers_of(role: str) -> list[CryptoSigner]:
    every = good().signers | good().delegates
    return every["root" if role == "next root" else role]


# --- building a case ------------------------------------------------------------------------


@dataclass(frozen=True)
class Mix:
    """What is done to the list of signatures: one entry, another role's signer, a text."""

    what: str
    place: int
    text: str


MIXES = st.lists(
    st.builds(
        Mix,
        st.sampled_from(["drop", "twice", "keyid", "sig", "stranger", "other role", "upper"]),
        st.integers(0, 5),
        st.sampled_from(["", " ", "0" * 128, "zz", "a" * 64, "\ud800", "00"]),
    ),
    max_size=3,
)


def payload_of(signed: Any) -> bytes:
    """What a verifier will take as signed, as far as it can be said."""
    try:
        return Metadata.from_dict({"signed": copy.deepcopy(signed), "signatures": []}).signed_bytes
    except Exception:  # noqa: BLE001 - what cannot be read may still be signed
        try:
            return encode_canonical(signed).encode()
        except Exception:  # noqa: BLE001
            return b""


def read_leniently(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {}


def signatures(payload: bytes, signers: list[CryptoSigner], mixes: list[Mix]) -> list[Any]:
    found: list[Any] = [each.sign(payload).to_dict() for each in signers]
    for mix in mixes:
        if mix.what in ("stranger", "other role"):
            other = (
                signer(f"stranger {mix.place}")
                if mix.what == "stranger"
                else good().signers["root"][0]
            )
            found.append(other.sign(payload).to_dict())
        elif found:
            mix_one(found, mix)
    return found


def mix_one(found: list[Any], mix: Mix) -> None:
    entry = dict(found[mix.place % len(found)])
    if mix.what == "drop":
        del found[mix.place % len(found)]
    elif mix.what == "twice":
        found.append(entry)
    elif mix.what == "upper":
        found[mix.place % len(found)] = {**entry, "sig": entry["sig"].upper()}
    else:
        found[mix.place % len(found)] = {**entry, mix.what: mix.text}


def with_referrers(files: dict[str, bytes], role: str, data: bytes) -> dict[str, bytes]:
    """The repository with other bytes for a role, and referrers that name just these."""
    files = {**files, NAMES[role]: data}
    below = role if role in TARGETS else None
    for refers, place in (("snapshot", below), ("timestamp", "snapshot")):
        if place and (below or role == place):
            signed = json.loads(files[NAMES[refers]])["signed"]
            about = files[NAMES[place]]
            entry = signed["meta"][f"{place}.json"]
            entry["length"] = len(about)
            entry["hashes"]["sha256"] = digest(about)
            files[NAMES[refers]] = signed_file(signed, signers_of(refers))
    return files


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def signed_file(signed: Any, signers: list[CryptoSigner]) -> bytes:
    return text_of({"signatures": signatures(payload_of(signed), signers, []), "signed": signed})


def structural(role: str, changes: list[Change], mixes: list[Mix]) -> bytes:
    """The role's file with another content, signed by the right keys, and then mixed up."""
    signed = json.loads(good().files[NAMES[role]])["signed"]
    changed(signed, changes)
    text = text_of(signed)
    signed_by = signatures(payload_of(read_leniently(text)), signers_of(role), mixes)
    return b'{"signatures": ' + text_of(signed_by) + b', "signed": ' + text + b"}"


# --- the two readers ------------------------------------------------------------------------


class Walk(Updater):
    """python-tuf's search for a target, over the files in memory."""

    def __init__(self, found: TrustedMetadataSet, files: Mapping[str, bytes]) -> None:
        self._trusted_set = found
        self.config = UpdaterConfig()
        self.files = files

    def _load_targets(self, role: str, parent_role: str) -> Targets:
        if not self._trusted_set.contains(role, parent_role):
            version = self._trusted_set.snapshot.meta[f"{role}.json"].version
            data = self.files[f"metadata/{version}.{quote(role, safe='')}.json"]
            self._trusted_set.update_delegated_targets(data, role, parent_role)
        return cast("Targets", self._trusted_set[role])


def reference(files: Mapping[str, bytes]) -> TrustedMetadataSet | None:
    """Return what python-tuf's client trusts of these files on any date; None if it refuses."""
    try:
        found = TrustedMetadataSet(files[NAMES["root"]], EnvelopeType.METADATA)
        found.reference_time = BEFORE_ALL
        while (data := files.get(f"metadata/{found.root.version + 1}.root.json")) is not None:
            found.update_root(data)
        found.update_timestamp(files[NAMES["timestamp"]])
        version = found.timestamp.snapshot_meta.version
        found.update_snapshot(files[f"metadata/{version}.snapshot.json"])
        version = found.snapshot.meta["targets.json"].version
        found.update_targets(files[f"metadata/{version}.targets.json"])
    except Exception:  # noqa: BLE001 - a crash of theirs is a refusal
        return None
    return found


def verdict(files: Mapping[str, bytes]) -> trust.TrustedRepository | None:
    """What the program trusts, the same as python-tuf; None for a refusal in our words."""
    theirs = reference(files)
    one_path(files, theirs)
    try:
        ours = trust.load(FrozenCopy(files), files[NAMES["root"]])
    except TrustError:
        note("refused by both" if theirs is None else "refused by us alone")
        return None
    assert theirs is not None
    note("accepted")
    paths = {f"releases/{tag}.json" for tag in ("b1", "n1", "n8", "x", PART)} | {*ours.targets}
    for role in {*TARGETS} - {*ours.refused}:
        paths |= {*json.loads(files[NAMES[role]])["signed"]["targets"]}
    walk = Walk(theirs, files)
    for path in (each for each in paths if matches(each, trust.RELEASES)):
        # A role that we refuse, and python-tuf does not, signs nothing.
        if path in ours.targets or not ours.refused:
            require_same(ours.targets.get(path), walk.get_targetinfo(path), theirs)
    for role, state in ours.roles.items():
        if role in theirs._trusted_set and role not in ours.refused:
            assert (state.version, state.expires) == (theirs[role].version, theirs[role].expires)
    use(files)
    return ours


def require_same(
    ours: trust.Target | None, theirs: TargetFile | None, everything: TrustedMetadataSet
) -> None:
    """Demand the same target, listed by the same role."""
    assert (ours is None) == (theirs is None)
    if ours and theirs:
        assert (ours.length, ours.sha256) == (theirs.length, theirs.hashes["sha256"])
        assert theirs is cast("Targets", everything[ours.role]).targets[ours.path]


def one_path(files: Mapping[str, bytes], theirs: TrustedMetadataSet | None) -> None:
    """Look for one target alone, which reads no more roles than python-tuf does."""
    path = f"releases/{PART}.json"
    try:
        ours = trust.load(FrozenCopy(files), files[NAMES["root"]], path)
    except TrustError:
        return
    assert theirs is not None
    if path in ours.targets or not ours.refused:
        require_same(ours.targets.get(path), Walk(theirs, files).get_targetinfo(path), theirs)


def note(outcome: str) -> None:
    """For ``--hypothesis-show-statistics``: cases that all end alike show nothing."""
    if currently_in_test_context():
        event(outcome)


def use(files: Mapping[str, bytes]) -> None:
    """Do all that the program does with accepted metadata: an answer or one of our errors."""
    copied = FrozenCopy(files)
    repository = Repository("fuzz", "https://host/", files[NAMES["root"]], copied)
    try:
        found = loading.load(repository, NOWHERE)
        for entry in found.entries:
            assert found.entry(entry.release).release == entry.release
            found.read(entry)
    except TrustError:
        return
    assert set(found.channels) >= {channel for each in found.entries for channel in each.channels}


def is_harmless(found: trust.TrustedRepository | None) -> bool:
    """Tell whether a change without the keys did nothing, or took away what its own role signs."""
    before = trust.load(good(), good().pinned_root)
    if found is None or found == before:
        return True
    return bool(found.refused) and found.targets.items() <= before.targets.items()


# --- the tests ------------------------------------------------------------------------------


def test_the_good_repository_is_accepted_by_both() -> None:
    found = verdict(good().files)
    assert found is not None
    assert {path: each.role for path, each in found.targets.items()} == {
        **{f"releases/b{number}.json": "targets" for number in (1, 2, 3)},
        "releases/n1.json": "nightly",
        f"releases/{PART}.json": "parts",
    }


@example("root", [Change("again", 1, 0, 0), Change("swap", 1, 2, 0)], [], False)
@fuzz
@given(ROLES, CHANGES, MIXES, st.booleans())
def test_M27_unsigned_changes_have_no_effect(
    role: str, changes: list[Change], mixes: list[Mix], referred: bool
) -> None:
    document = json.loads(good().files[NAMES[role]])
    for mix in mixes:
        if document["signatures"]:
            mix_one(document["signatures"], mix)
    changed(document, changes)
    data = text_of(document)
    files = with_referrers(good().files, role, data)
    if not referred:
        files = {**good().files, NAMES[role]: data}
    found = verdict(files)
    assert is_harmless(found)


@fuzz
@given(ROLES, EDITS, st.booleans())
def test_M27_changed_bytes_have_no_effect(role: str, edits: list[Edit], referred: bool) -> None:
    data = edited(good().files[NAMES[role]], edits)
    files = (
        with_referrers(good().files, role, data)
        if referred
        else {**good().files, NAMES[role]: data}
    )
    found = verdict(files)
    assert is_harmless(found)


@fuzz
@given(ROLES, CHANGES, MIXES)
def test_M27_signed_metadata_is_read_as_python_tuf_reads_it(
    role: str, changes: list[Change], mixes: list[Mix]
) -> None:
    verdict(with_referrers(good().files, role, structural(role, changes, mixes)))


# --- a refresh ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """What a host sends; a release file under any name that has its digest."""

    files: Mapping[str, bytes]

    def download(self, name: str, limit: int) -> bytes:
        data = self.files.get(name)
        if data is None and name.startswith("targets/"):
            digest = name.rpartition("/")[2].partition(".")[0]
            data = next((self.files[each] for each in self.files if digest in each), None)
        if data is None:
            raise HttpStatusError("not found", status=404)
        return data[:limit]


class PlainFetcher(FetcherInterface):
    """The same host for python-tuf alone, without our checks on the way."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def _fetch(self, url: str) -> Iterator[bytes]:
        data = self.server.files.get(url.removeprefix(good().url))
        if data is None:
            raise DownloadHTTPError("not found", 404)
        yield data


@cache
def trusted_before() -> Path:
    """The metadata folder of a machine that refreshed once."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=FOLDERS))
    atexit.register(shutil.rmtree, folder)
    refreshing.refresh(before().repository(), folder, before().download)
    (folder / "theirs").mkdir()
    updater_of(folder, Server(before().files)).refresh()
    return folder


def updater_of(folder: Path, server: Server) -> Updater:
    """Make python-tuf's client, with the tests' day and with its state in this folder."""
    updater = Updater(
        str(folder / "theirs"),
        f"{good().url}metadata/",
        fetcher=PlainFetcher(server),
        bootstrap=before().pinned_root,
    )
    updater._trusted_set.reference_time = clock.now()
    return updater


def accepted_by_python_tuf(folder: Path, server: Server) -> dict[str, int] | None:
    try:
        updater = updater_of(folder, server)
        updater.refresh()
    except Exception:  # noqa: BLE001 - a crash of theirs is a refusal
        return None
    for tag in ("n1", "n8", PART):
        # It ends at the first role that it refuses; another path may lead to the others.
        with contextlib.suppress(Exception):
            updater.get_targetinfo(f"releases/{tag}.json")
    return {role: each.version for role, each in updater._trusted_set._trusted_set.items()}


def versions(found: loading.Catalog) -> dict[str, int]:
    return {role: state.version for role, state in found.trusted.roles.items()}


# A role below cannot be verified by either; what its delegator signs itself is taken by both.
@example("nightly", [Change("swap", 346, 418, 0)], [], True)
@example("nightly", [Change("put", 13, 0, 17)], [], True)  # no path leads to "parts" any more
@settings(fuzz, max_examples=EXAMPLES // 3)
@given(
    st.sampled_from(["next root", "timestamp", "snapshot", *TARGETS]),
    CHANGES,
    MIXES,
    st.booleans(),
)
def test_M27_a_refresh_accepts_nothing_that_python_tuf_refuses(
    role: str, changes: list[Change], mixes: list[Mix], signed: bool
) -> None:
    if signed:
        data = structural(role, changes, mixes)
    else:
        document = json.loads(good().files[NAMES[role]])
        changed(document, changes)
        data = text_of(document)
    server = Server(with_referrers(good().files, role, data))
    repository = before().repository()
    with tempfile.TemporaryDirectory(dir=FOLDERS) as name:
        ours, theirs = Path(name) / "ours", Path(name) / "theirs"
        for folder in (ours, theirs):
            shutil.copytree(trusted_before(), folder, symlinks=True)
        try:
            found = refreshing.refresh(repository, ours, server.download)
        except TsukuError:
            note("refused")
            found = loading.load(repository, ours)
            assert versions(found) == versions(loading.load(repository, trusted_before()))
        else:
            note("accepted")
            if versions(found) != versions(loading.load(repository, trusted_before())):
                accepted = accepted_by_python_tuf(theirs, server)
                # What we refuse of a role takes away, at the most, what it signs and delegates.
                ours_now = versions(found)
                # We may read a role of which we take nothing, as no path leads to it.
                taken = {target.role for target in found.trusted.targets.values()}
                read = ours_now.keys() & {*trust.ROLES, *taken} - found.trusted.refused.keys()
                if accepted is None or not read <= accepted.keys() <= ours_now.keys():
                    assert is_harmless(found.trusted)
                for each in (accepted or {}).keys() & ours_now.keys():
                    assert accepted is not None
                    assert accepted[each] == ours_now[each]
        if not signed:
            healed = refreshing.refresh(repository, ours, later().download)
            others = dict.fromkeys(("timestamp", "snapshot", *TARGETS), 4)
            assert versions(healed) == {"root": 2, **others}
