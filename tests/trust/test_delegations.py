"""Delegations: a machine signs one channel, people sign the others, and nothing crosses over."""

import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.repository import RepositorySimulator, release_document, signer
from tuf.api.metadata import Delegations, MetaFile, SuccinctRoles, Targets

from tsuku_llm import trust
from tsuku_llm.catalog import loading, metadata_status, refreshing
from tsuku_llm.fetch import Network
from tsuku_llm.ground import clock
from tsuku_llm.ground.errors import HttpStatusError, MetadataError, StaleMetadata, TsukuError
from tsuku_llm.steps.metadata.places import download_from
from tsuku_llm.store.store import Store

PAST = datetime(2020, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def simulator() -> RepositorySimulator:
    """People sign ``stable``; a machine signs ``nightly``, below its own paths."""
    made = RepositorySimulator()
    made.delegate("nightly", "releases/n*.json")
    made.add(release_document("n1"), channels=["nightly"], role="nightly")
    made.publish(release_document("b1", version="0.1.0"))
    return made


def refresh(simulator: RepositorySimulator, data: Path) -> loading.Catalog:
    return refreshing.refresh(simulator.repository(), data, simulator.download)


def offered(simulator: RepositorySimulator, data: Path) -> dict[str, tuple[str, ...]]:
    """The releases by their tags, each with its channels."""
    return {each.release: each.channels for each in refresh(simulator, data).entries}


def refusal(simulator: RepositorySimulator, data: Path) -> str:
    with pytest.raises(MetadataError) as caught:
        refresh(simulator, data)
    return ": ".join((caught.value.message, *caught.value.facts))


# --- what delegation is for ------------------------------------------------------------------


def test_a_machine_signs_nightly_and_people_sign_stable(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    found = refresh(simulator, tmp_path)
    assert [(each.release, each.channels) for each in found.entries] == [
        ("n1", ("nightly",)),
        ("b1", ("stable",)),
    ]
    assert {path: each.role for path, each in found.trusted.targets.items()} == {
        "releases/b1.json": "targets",
        "releases/n1.json": "nightly",
    }
    assert found.read(found.entry("n1")).release == "n1"


def test_the_online_key_publishes_alone(simulator: RepositorySimulator, tmp_path: Path) -> None:
    refresh(simulator, tmp_path)
    simulator.add(release_document("n2"), channels=["nightly"], role="nightly")
    for signed in (simulator.delegated["nightly"], simulator.snapshot, simulator.timestamp):
        signed.version += 1
    simulator.sign_delegated("nightly")
    simulator.sign_snapshot()
    simulator.sign_timestamp()
    assert [*offered(simulator, tmp_path)] == ["n2", "n1", "b1"]


def test_the_kept_copy_is_complete(simulator: RepositorySimulator, tmp_path: Path) -> None:
    refresh(simulator, tmp_path)
    (kept,) = tmp_path.glob("metadata/simulator/copies/*/metadata/2.nightly.json")
    assert kept.read_bytes() == simulator.files["metadata/2.nightly.json"]
    found = loading.load(simulator.repository(), tmp_path)
    assert found.trusted.roles["nightly"].version == 2
    assert len(found.entries) == 2


def test_an_embedded_copy_may_have_delegations(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    found = loading.load(simulator.repository(embedded=simulator.freeze()), tmp_path)
    assert (found.source, len(found.entries)) == ("embedded", 2)


def test_delegations_to_no_role_are_accepted(tmp_path: Path) -> None:
    simulator = RepositorySimulator()
    simulator.targets.delegations = Delegations({}, {})
    simulator.publish(release_document("b1"))
    assert [*offered(simulator, tmp_path)] == ["b1"]


def test_a_role_that_can_sign_no_release_is_not_asked_for(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.delegate("docs", "manual/*", "docs/*/*", "releases", "releases/*/*")
    simulator.bump()
    assert len(refresh(simulator, tmp_path).entries) == 2
    assert not [name for name in simulator.requests if "docs" in name]


def test_freshness_counts_a_delegated_role_in_its_own_channel(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    soon = datetime(2100, 1, 1, tzinfo=timezone.utc)
    simulator.delegated["nightly"].expires = soon
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert found.freshness_in("nightly").expires == soon
    assert found.freshness.expires > soon
    assert found.trusted.expired(soon) == ()
    assert found.trusted.expired(soon, "nightly") == ("nightly",)
    assert [*found.trusted.late(soon)] == ["nightly"]


def test_a_delegated_role_does_not_set_the_clock(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """Its date of issue does not limit the clocks of users of other channels."""
    before = refresh(simulator, tmp_path).freshness.signed
    simulator.delegated["nightly"].unrecognized_fields["issued"] = "2150-01-01T00:00:00Z"
    simulator.bump()
    assert refresh(simulator, tmp_path).freshness.signed == before


def test_a_damaged_copy_is_completed_by_a_refresh(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """What the error message tells the user to run has to help."""
    refresh(simulator, tmp_path)
    (kept,) = tmp_path.glob("metadata/simulator/copies/*/targets/releases/*.n1.json")
    kept.write_bytes(b"damaged")
    found = refresh(simulator, tmp_path)
    assert found.read(found.entry("n1")).release == "n1"


# --- outside its path, another channel -------------------------------------------------------


@pytest.mark.parametrize("tag", ["b2", "stable", "b1"])
def test_T40_a_release_outside_the_delegated_path_is_not_offered(
    simulator: RepositorySimulator, tmp_path: Path, tag: str
) -> None:
    forged = release_document(tag, publisher="machine")
    simulator.add(forged, channels=["nightly"], sequence=99, role="nightly")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert {each.release: each.publisher for each in found.entries} == {
        "n1": "simulator",
        "b1": "simulator",
    }
    assert (f"releases/{tag}.json" in found.trusted.targets) == (tag == "b1")


@pytest.mark.parametrize("channels", [["stable"], ["nightly", "stable"], ["stable", "nightly"], []])
def test_T41_the_machine_cannot_fill_another_channel(
    simulator: RepositorySimulator, tmp_path: Path, channels: list[str]
) -> None:
    simulator.add(release_document("n9"), channels=channels, role="nightly")
    simulator.bump()
    assert offered(simulator, tmp_path) == {"n1": ("nightly",), "b1": ("stable",)}


@pytest.mark.parametrize("below", ["stable", "more"])
def test_T41_the_machine_cannot_fill_another_channel_by_delegating_further(
    simulator: RepositorySimulator, tmp_path: Path, below: str
) -> None:
    simulator.delegate(below, "releases/n*.json", by="nightly")
    simulator.add(release_document("n8"), channels=["stable"], role=below)
    simulator.add(release_document("n9"), channels=["nightly"], role=below)
    simulator.bump()
    assert offered(simulator, tmp_path) == {
        "n9": ("nightly",),
        "n1": ("nightly",),
        "b1": ("stable",),
    }


def test_T41_the_machine_cannot_reuse_the_version_of_a_release(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.add(release_document("n9", version="0.1.0"), channels=["nightly"], role="nightly")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert found.entry("v0.1.0").release == "b1"
    with pytest.raises(TsukuError, match="no release 'n9'"):
        found.entry("n9")


@pytest.mark.parametrize("tag", ["0.1.0", "v0.1.0"])
def test_T41_the_machine_cannot_reuse_the_version_of_a_release_as_a_tag(
    simulator: RepositorySimulator, tmp_path: Path, tag: str
) -> None:
    simulator.delegate("nightly", "releases/*.json")
    simulator.add(release_document(tag), channels=["nightly"], sequence=999, role="nightly")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert [found.entry(name).release for name in ("0.1.0", "v0.1.0")] == ["b1", "b1"]
    assert [each.release for each in found.entries] == ["n1", "b1"]


def test_T41_the_machine_cannot_revoke_the_builds_of_another_channel(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """A release file has the digests that its signer likes, and a revocation stays for good."""
    simulator.add({**release_document("n9"), "revoked": True}, channels=["nightly"], role="nightly")
    simulator.bump()
    status = refresh(simulator, tmp_path).metadata_status()
    # Here too: a load drops the builds of a repository that this machine does not have.
    assert [(each.release, each.builds) for each in status.revoked] == [("n9", ())]
    metadata_status.write(tmp_path, status)
    found = loading.load(simulator.repository(), tmp_path)
    assert found.read(found.entry("b1")).builds == found.read(found.entry("n9")).builds
    revoked = [each.release for each in found.entries if found.revocation(each)]
    assert revoked == ["n9"]


def test_two_releases_of_targets_may_have_the_same_version(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.publish(release_document("b2", version="0.1.0"))
    assert [*offered(simulator, tmp_path)] == ["b2", "n1", "b1"]


# --- the order of the roles ------------------------------------------------------------------


def entry_of(simulator: RepositorySimulator, data: Path, tag: str) -> str | None:
    found = refresh(simulator, data).trusted.targets.get(f"releases/{tag}.json")
    return found and found.role


def test_targets_comes_before_every_role(simulator: RepositorySimulator, tmp_path: Path) -> None:
    simulator.add(release_document("n1"), channels=["nightly"])
    simulator.bump()
    assert entry_of(simulator, tmp_path, "n1") == "targets"


def test_the_first_role_that_lists_a_path_counts(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.delegate("second", "releases/*.json")
    simulator.add(release_document("n1"), channels=["second"], role="second")
    simulator.add(release_document("n2"), channels=["second"], role="second")
    simulator.bump()
    assert entry_of(simulator, tmp_path / "1", "n1") == "nightly"
    assert entry_of(simulator, tmp_path / "2", "n2") == "second"


def test_delegations_are_searched_depth_first(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.delegate("below", "releases/*.json", by="nightly")
    simulator.delegate("second", "releases/*.json")
    for role in ("below", "second"):
        simulator.add(release_document("n5"), channels=[role], role=role)
    simulator.bump()
    assert entry_of(simulator, tmp_path, "n5") == "below"


def test_T42_a_terminating_delegation_ends_the_search(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.delegate("nightly", "releases/n*.json", terminating=True)
    simulator.delegate("second", "releases/*.json")
    for tag in ("n7", "x7"):
        simulator.add(release_document(tag), channels=["second"], role="second")
    simulator.bump()
    assert offered(simulator, tmp_path) == {
        "x7": ("second",),
        "n1": ("nightly",),
        "b1": ("stable",),
    }


def test_T42_a_role_below_a_terminating_one_still_counts(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.delegate("nightly", "releases/n*.json", terminating=True)
    simulator.delegate("below", "releases/n7.json", by="nightly", terminating=True)
    simulator.add(release_document("n7"), channels=["nightly"], role="below")
    simulator.bump()
    assert entry_of(simulator, tmp_path, "n7") == "below"


def test_a_star_does_not_cross_a_slash() -> None:
    simulator = RepositorySimulator()
    simulator.delegate("flat", "*", "rel*", "releases*.json")
    simulator.add(release_document("b1"), channels=["flat"], role="flat")
    simulator.bump()
    assert trust.load(simulator, simulator.pinned_root).targets == {}


# --- hash prefixes and bins ------------------------------------------------------------------


def prefix_of(tag: str, length: int = 1) -> str:
    return hashlib.sha256(f"releases/{tag}.json".encode()).hexdigest()[:length]


def delegate_by_hash(
    simulator: RepositorySimulator, name: str, prefixes: str, by: str = "targets"
) -> None:
    simulator.delegate(name, by=by, terminating=True)
    delegations = simulator.targets_of(by).delegations
    assert delegations is not None
    assert delegations.roles is not None
    delegations.roles[name].paths = None
    delegations.roles[name].path_hash_prefixes = [*prefixes]


def test_targets_can_be_split_by_hash_prefixes(tmp_path: Path) -> None:
    simulator = RepositorySimulator()
    tags = [f"b{number}" for number in range(1, 9)]
    for digit in "0123456789abcdef":
        delegate_by_hash(simulator, f"bin-{digit}", digit)
    for tag in tags:
        simulator.add(release_document(tag), role=f"bin-{prefix_of(tag)}")
    wrong = "0" if prefix_of("b9") != "0" else "1"
    simulator.add(release_document("b9"), role=f"bin-{wrong}")
    simulator.bump()
    assert sorted(offered(simulator, tmp_path)) == tags


def succinct(simulator: RepositorySimulator, bits: int) -> SuccinctRoles:
    by = signer("bins")
    roles = SuccinctRoles([], 1, bits, "bin")
    simulator.targets.delegations = Delegations({}, succinct_roles=roles)
    simulator.targets.add_key(by.public_key)
    for name in [*roles.get_roles()][:64]:
        simulator.delegates[name] = [by]
        simulator.delegated[name] = Targets(expires=simulator.targets.expires)
    return roles


def test_succinct_hash_bins(tmp_path: Path) -> None:
    simulator = RepositorySimulator()
    roles = succinct(simulator, 5)
    tags = [f"b{number}" for number in range(1, 9)]
    for tag in tags:
        role = roles.get_role_for_target(f"releases/{tag}.json")
        simulator.add(release_document(tag), role=role)
    right = roles.get_role_for_target("releases/b9.json")
    wrong = next(name for name in roles.get_roles() if name != right)
    simulator.add(release_document("b9"), role=wrong)
    simulator.bump()
    assert sorted(offered(simulator, tmp_path)) == tags


def test_T41_a_bin_of_another_branch_keeps_its_channel(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    delegate_by_hash(simulator, "half", "01234567", "nightly")
    delegate_by_hash(simulator, "rest", "89abcdef", "nightly")
    for tag in ("n2", "n3", "n4", "n5"):
        for role in ("half", "rest"):
            simulator.add(release_document(tag), channels=["stable"], role=role)
    simulator.bump()
    assert offered(simulator, tmp_path) == {"n1": ("nightly",), "b1": ("stable",)}


# --- rollback, freeze, wrong keys ------------------------------------------------------------


def test_T43_a_delegated_role_is_not_rolled_back(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.add(release_document("n2"), channels=["nightly"], role="nightly")
    old = simulator.fork()
    simulator.bump()
    refresh(simulator, tmp_path)
    for signed in (old.targets, old.snapshot, old.timestamp):
        signed.version += 5
    old.sign()
    told = refusal(old, tmp_path)
    assert "older than what this machine has" in told
    assert "nightly 3" in told
    assert "nightly 2" in told
    assert loading.load(simulator.repository(), tmp_path).trusted.roles["nightly"].version == 3


def test_T43_a_delegated_role_cannot_disappear(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    refresh(simulator, tmp_path)
    del simulator.snapshot.meta["nightly.json"]
    for signed in (simulator.snapshot, simulator.timestamp):
        signed.version += 1
    simulator.sign_snapshot()
    simulator.sign_timestamp()
    said = refusal(simulator, tmp_path)
    assert "older than what this machine has" in said
    assert "nightly 2" in said
    assert "the snapshot does not name it" in refusal(simulator, tmp_path / "new")


def test_T43_an_expired_delegated_role_ends_its_own_channel_only(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    refresh(simulator, tmp_path)
    simulator.delegated["nightly"].expires = PAST
    simulator.add(release_document("b2"))
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert [each.release for each in found.releases("stable")] == ["b2", "b1"]
    now = clock.now()
    (told,) = refreshing.require_channel(found, "stable", now)
    assert "'nightly' expired on 2020-01-01" in told
    with pytest.raises(StaleMetadata) as caught:
        refreshing.require_channel(found, "nightly", now)
    assert any("nightly" in fact for fact in caught.value.facts)
    assert not found.freshness.expired(now)
    assert found.freshness_in("nightly").expired(now)


def test_T43_an_older_file_of_a_delegated_role_is_refused(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    old = simulator.files["metadata/2.nightly.json"]
    simulator.bump()
    simulator.files["metadata/3.nightly.json"] = old
    assert "the nightly metadata is not trusted" in refusal(simulator, tmp_path)
    simulator.snapshot.meta["nightly.json"].hashes = None
    simulator.snapshot.meta["nightly.json"].length = None
    for signed in (simulator.snapshot, simulator.timestamp):
        signed.version += 1
    simulator.sign_snapshot()
    simulator.sign_timestamp()
    assert "expected version 3, it says 2" in refusal(simulator, tmp_path)


@pytest.mark.parametrize("by", ["stranger", "targets", "timestamp", "none"])
@pytest.mark.parametrize("digests", [True, False])
def test_T48_a_delegated_role_signed_by_other_keys_is_refused(
    simulator: RepositorySimulator, tmp_path: Path, by: str, digests: bool
) -> None:
    """With the snapshot's digest no host can have done it: then only the role is refused."""
    signers = {"stranger": [signer("stranger")], "none": []}
    found = signers[by] if by in signers else simulator.signers[by]
    simulator.sign_delegated("nightly", found)
    if not digests:
        simulator.snapshot.meta["nightly.json"] = MetaFile(2)
    simulator.sign_snapshot()
    simulator.sign_timestamp()
    if digests:
        told = refresh(simulator, tmp_path)
        assert [each.release for each in told.entries] == ["b1"]
        assert "0 valid signatures, 1 are needed" in told.notes[0]
    else:
        assert "0 valid signatures, 1 are needed" in refusal(simulator, tmp_path)


def test_T48_a_threshold_of_a_delegation_counts(tmp_path: Path) -> None:
    simulator = RepositorySimulator()
    signers = [signer(f"builder {number}") for number in range(3)]
    simulator.delegate("nightly", "releases/n*.json", threshold=2, signers=signers)
    simulator.add(release_document("n1"), channels=["nightly"], role="nightly")
    simulator.bump()
    assert [*offered(simulator, tmp_path / "good")] == ["n1"]
    simulator.sign_delegated("nightly", signers[:1])
    simulator.sign_snapshot()
    simulator.sign_timestamp()
    found = refresh(simulator, tmp_path / "bad")
    assert "1 valid signatures, 2 are needed" in found.notes[0]
    assert not found.entries


def test_T48_each_delegator_has_its_own_keys_for_a_role(tmp_path: Path) -> None:
    """Signed for one way to a role, its file is not trusted on another way."""
    simulator = RepositorySimulator()
    simulator.delegate("a", "releases/a*.json")
    simulator.delegate("b", "releases/b*.json")
    simulator.delegate("shared", "releases/a*.json", by="a")
    simulator.add(release_document("a1"), channels=["a"], role="shared")
    simulator.bump()
    assert [*offered(simulator, tmp_path / "good")] == ["a1"]
    kept = simulator.delegates["shared"]
    simulator.delegates["shared"] = [signer("another")]
    simulator.delegate("shared", "releases/b*.json", by="b")
    simulator.delegates["shared"] = kept
    simulator.add(release_document("b1"), channels=["b"], role="shared")
    simulator.bump()
    found = refresh(simulator, tmp_path / "bad")
    assert [each.release for each in found.entries] == ["a1"]
    assert "0 valid signatures, 1 are needed" in found.notes[0]


@pytest.mark.parametrize("other", ["timestamp", "snapshot", "targets"])
def test_T48_another_role_in_the_place_of_a_delegated_one_is_refused(
    simulator: RepositorySimulator, tmp_path: Path, other: str
) -> None:
    """Signed by the right key, and yet of another type or for another role."""
    source = {"snapshot": simulator.snapshot, "timestamp": simulator.timestamp}
    signed = source.get(other, simulator.targets)
    data = simulator.signed(signed, simulator.delegates["nightly"])
    simulator.files["metadata/2.nightly.json"] = data
    assert "the nightly metadata is not trusted" in refusal(simulator, tmp_path)


@pytest.mark.parametrize("wrong", ["missing", "empty", "huge"])
def test_T49_a_delegated_file_that_the_host_withholds_ends_the_refresh(
    simulator: RepositorySimulator, tmp_path: Path, wrong: str
) -> None:
    refresh(simulator, tmp_path)
    simulator.add(release_document("b2"))
    simulator.bump()
    name = "metadata/3.nightly.json"
    if wrong == "missing":
        del simulator.files[name]
    else:
        simulator.files[name] = b"" if wrong == "empty" else bytes(5_000_001)
    with pytest.raises(TsukuError) as caught:
        refresh(simulator, tmp_path)
    assert isinstance(caught.value, HttpStatusError) == (wrong == "missing")
    assert len(loading.load(simulator.repository(), tmp_path).entries) == 2


def test_T49_a_kept_copy_without_a_delegated_role_offers_the_other_channels(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    refresh(simulator, tmp_path)
    (kept,) = tmp_path.glob("metadata/simulator/copies/*/metadata/2.nightly.json")
    kept.unlink()
    found = loading.load(simulator.repository(), tmp_path)
    assert [each.release for each in found.entries] == ["b1"]
    assert "2.nightly.json is missing" in found.notes[0]
    assert len(refresh(simulator, tmp_path).entries) == 2


def missing(simulator: RepositorySimulator) -> None:
    del simulator.files["metadata/3.nightly.json"]


def empty_file(simulator: RepositorySimulator) -> None:
    simulator.files["metadata/3.nightly.json"] = b""


def too_large(simulator: RepositorySimulator) -> None:
    simulator.files["metadata/3.nightly.json"] = bytes(5_000_001)


def the_older_one(simulator: RepositorySimulator) -> None:
    simulator.files["metadata/3.nightly.json"] = simulator.files["metadata/2.nightly.json"]


def a_strangers(simulator: RepositorySimulator) -> None:
    """Of a snapshot that has no digest, as those of tuf-on-ci."""
    simulator.snapshot.meta["nightly.json"] = MetaFile(3)
    simulator.sign_snapshot()
    simulator.sign_timestamp()
    simulator.sign_delegated("nightly", [signer("stranger")])


@pytest.mark.parametrize("breaks", [missing, empty_file, too_large, the_older_one, a_strangers])
def test_P1_a_role_that_a_host_breaks_ends_its_own_channel_only(
    simulator: RepositorySimulator,
    tmp_path: Path,
    breaks: Callable[[RepositorySimulator], object],
) -> None:
    """What of it counts is what python-tuf finds, too: no target of targets needs that role."""
    refresh(simulator, tmp_path)
    simulator.publish(release_document("b2", version="0.2.0"))
    whole = dict(simulator.files)
    breaks(simulator)
    asked = (simulator.repository(), tmp_path, simulator.download)
    # Its own users keep what they have.
    with pytest.raises(TsukuError):
        refreshing.refresh(*asked, "nightly")
    assert [each.release for each in loading.load(asked[0], tmp_path).entries] == ["n1", "b1"]
    found = refreshing.refresh(*asked, "stable")
    assert [each.release for each in found.entries] == ["b2", "b1"]
    (told,) = refreshing.require_channel(found, "stable", clock.now())
    assert "the channel 'nightly' lacks builds" in told
    again = loading.load(asked[0], tmp_path)
    assert [each.release for each in again.entries] == ["b2", "b1"]
    assert again.trusted.versions == found.trusted.versions
    if breaks is not a_strangers:  # else the version is the same, and not the content
        simulator.files.update(whole)
        assert offered(simulator, tmp_path).keys() == {"n1", "b2", "b1"}


def test_P1_a_host_that_is_busy_breaks_no_role(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    def download(name: str, limit: int) -> bytes:
        if "nightly" in name:
            raise HttpStatusError("503", status=503)
        return simulator.download(name, limit)

    with pytest.raises(HttpStatusError):
        refreshing.refresh(simulator.repository(), tmp_path, download, "stable")


def test_P1_a_broken_role_gives_its_names_to_no_later_role(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """python-tuf's client ends its search at such a role, and so does this one."""
    simulator.delegate("weekly", "releases/*.json")
    simulator.add(release_document("n1"), channels=["weekly"], role="weekly")
    simulator.bump()
    del simulator.files["metadata/3.nightly.json"]
    asked = (simulator.repository(), tmp_path, simulator.download)
    found = refreshing.refresh(*asked, "stable")
    assert [each.release for each in found.entries] == ["b1"]


# --- circles and floods ----------------------------------------------------------------------


def test_T46_a_circle_of_delegations_ends(simulator: RepositorySimulator, tmp_path: Path) -> None:
    simulator.delegate("a", "releases/*.json", by="nightly")
    simulator.delegate("b", "releases/*.json", by="a")
    simulator.delegate("nightly", "releases/*.json", by="b")
    simulator.add(release_document("n2"), channels=["nightly"], role="b")
    simulator.bump()
    assert [*offered(simulator, tmp_path)] == ["n2", "n1", "b1"]


def test_T46_no_more_than_32_roles(tmp_path: Path) -> None:
    simulator = RepositorySimulator()
    for number in range(32):
        simulator.delegate(f"role{number}", "releases/*.json")
    simulator.add(release_document("b1"), channels=["role31"], role="role31")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert found.trusted.targets["releases/b1.json"].role == "role31"
    simulator.delegate("more", "releases/*.json")
    simulator.bump()
    assert "more than 32 roles" in refusal(simulator, tmp_path)


def test_T46_no_more_than_32_roles_in_a_branch(tmp_path: Path) -> None:
    simulator = RepositorySimulator()
    for number in range(32):
        by = f"role{number - 1}" if number else "targets"
        simulator.delegate(f"role{number}", "releases/*.json", by=by)
    simulator.add(release_document("b1"), channels=["role0"], role="role31")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert found.trusted.targets["releases/b1.json"].role == "role31"
    simulator.delegate("more", "releases/*.json", by="role31")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert not found.trusted.targets
    assert "more than 32 roles" in found.notes[0]


@pytest.mark.parametrize("bits", [6, 14, 32])
def test_T46_no_more_than_32_hash_bins(tmp_path: Path, bits: int) -> None:
    simulator = RepositorySimulator()
    succinct_roles = SuccinctRoles([], 1, bits, "bin")
    simulator.targets.delegations = Delegations({}, succinct_roles=succinct_roles)
    simulator.bump()
    assert "hash bins" in refusal(simulator, tmp_path)


def test_T46_no_more_than_256_patterns(simulator: RepositorySimulator, tmp_path: Path) -> None:
    patterns = [f"releases/{'*a' * 20}{number}" for number in range(256)]
    simulator.delegate("other", *patterns, by="nightly")
    simulator.bump()
    refresh(simulator, tmp_path)
    simulator.delegate("another", "releases/n1.json", by="other")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert [each.release for each in found.entries] == ["b1"]
    assert "path patterns" in found.notes[0]
    simulator.delegate("many", *patterns, *patterns)
    simulator.bump()
    assert "path patterns" in refusal(simulator, tmp_path)


def test_T46_delegated_metadata_has_5_megabytes_in_all(tmp_path: Path) -> None:
    simulator = RepositorySimulator()
    for number in range(3):
        simulator.delegate(f"role{number}", "releases/*.json")
        simulator.delegated[f"role{number}"].unrecognized_fields["x"] = "y" * 2_000_000
    simulator.bump()
    with pytest.raises(TsukuError, match="more than"):
        refresh(simulator, tmp_path)


# --- a thief of one channel's keys -----------------------------------------------------------


def expired(simulator: RepositorySimulator) -> None:
    simulator.delegated["nightly"].expires = PAST


def many_files(simulator: RepositorySimulator) -> None:
    for number in range(3000):
        simulator.add_target(f"releases/n{number}.json", b"{}", {}, "nightly")


def many_files_below(simulator: RepositorySimulator) -> None:
    for number in range(8):
        simulator.delegate(f"x{number}", "releases/n*.json", by="nightly")
        for file in range(100):
            path = f"releases/n{number}-{file}.json"
            simulator.add_target(path, b"{}", {}, f"x{number}")


def many_delegations(simulator: RepositorySimulator) -> None:
    for number in range(300):
        simulator.delegate(f"x{number}", "releases/*.json", by="nightly")


def many_patterns(simulator: RepositorySimulator) -> None:
    patterns = [f"releases/{'*a' * 20}{number}" for number in range(400)]
    simulator.delegate("x", *patterns, by="nightly")


def many_bins(simulator: RepositorySimulator) -> None:
    bins = SuccinctRoles([], 1, 14, "bin")
    simulator.delegated["nightly"].delegations = Delegations({}, succinct_roles=bins)


def to_nobody(simulator: RepositorySimulator) -> None:
    simulator.delegate("ghost", "releases/*.json", by="nightly")
    del simulator.delegated["ghost"]


def to_another_with_own_keys(simulator: RepositorySimulator) -> None:
    kept = simulator.delegates["weekly"]
    simulator.delegates["weekly"] = [signer("thief")]
    simulator.delegate("weekly", "releases/*.json", by="nightly")
    simulator.delegates["weekly"] = kept


def to_another_with_its_keys(simulator: RepositorySimulator) -> None:
    simulator.delegate("weekly", "releases/*.json", by="nightly")
    expired(simulator)


def to_targets(simulator: RepositorySimulator) -> None:
    kept = simulator.targets
    simulator.delegate("targets", "releases/*.json", by="nightly")
    simulator.delegated.pop("targets", None)
    simulator.delegates.pop("targets", None)
    simulator.targets = kept


def to_itself_with_other_keys(simulator: RepositorySimulator) -> None:
    kept = simulator.delegates["nightly"]
    simulator.delegates["nightly"] = [signer("thief")]
    simulator.delegate("nightly", "releases/*.json", by="nightly")
    simulator.delegates["nightly"] = kept


def huge(simulator: RepositorySimulator) -> None:
    simulator.delegated["nightly"].unrecognized_fields["x"] = "y" * 4_000_000


def huge_below(simulator: RepositorySimulator) -> None:
    for number in range(4):
        simulator.delegate(f"x{number}", "releases/*.json", by="nightly")
        simulator.delegated[f"x{number}"].unrecognized_fields["x"] = "y" * 2_000_000


THEFTS = [
    *(expired, many_files, many_files_below, many_delegations, many_patterns, many_bins, to_nobody),
    *(to_another_with_own_keys, to_another_with_its_keys, to_targets, huge, huge_below),
    to_itself_with_other_keys,
]


@pytest.mark.parametrize("theft", THEFTS, ids=lambda theft: theft.__name__)
def test_N05_a_thief_of_a_role_takes_only_what_the_role_offers(
    simulator: RepositorySimulator, tmp_path: Path, theft: Callable[[RepositorySimulator], None]
) -> None:
    """Its keys sign it, and the signer of the snapshot lets it pass."""
    simulator.delegate("weekly", "releases/w*.json")
    simulator.add(release_document("w1"), channels=["weekly"], role="weekly")
    simulator.bump()
    refresh(simulator, tmp_path)
    theft(simulator)
    simulator.publish(release_document("b2", version="0.2.0"))
    simulator.targets.unrecognized_fields["revoked"] = [{"release": "b1"}]
    simulator.bump()
    simulator.requests.clear()
    found = refresh(simulator, tmp_path)
    assert [each.release for each in found.releases("stable")] == ["b2", "b1"]
    assert [each.release for each in found.releases("weekly")] == ["w1"]
    assert [each.release for each in found.revoked] == ["b1"]
    assert len(simulator.requests) < 50
    # The user is told, by a note or by what is late.
    late = refreshing.require_channel(found, "stable", clock.now())
    assert any("nightly" in line or "skipped" in line for line in (*found.notes, *late))
    again = loading.load(simulator.repository(), tmp_path)
    assert [each.release for each in again.entries] == [each.release for each in found.entries]
    assert refresh(simulator, tmp_path).trusted.versions == found.trusted.versions


# --- names of roles --------------------------------------------------------------------------

NAMES = [
    *(
        "?",
        "#",
        "/delegated",
        "../delegated",
        "../../../../escaped",
        "..",
        ".",
        "a/../b",
        "\\..\\x",
    ),
    *(
        "%2e%2e%2fx",
        "%2F",
        "a b",
        "\n",
        "\x1b[31m",
        "\x00",
        "nul",
        "CON",
        "~",
        "role.json",
        "1.root",
    ),
    *("é", "\u202e", "C:x", "root_history/1.root", "repository", "current", "a" * 140),
]


@pytest.mark.parametrize("name", NAMES)
def test_T47_no_role_name_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    simulator = RepositorySimulator()
    simulator.delegate(name, "releases/n*.json")
    simulator.publish(release_document("b1"))
    data = tmp_path / "data"
    found = refresh(simulator, data)
    assert [each.release for each in found.entries] == ["b1"]
    assert found.trusted.roles[name].version == 2
    (kept,) = data.glob(f"metadata/simulator/copies/*/metadata/2.{quote(name, safe='')}.json")
    assert kept.resolve().is_relative_to(data.resolve())
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert {path.name for path in data.glob("metadata/simulator/*")} == {
        *("seen.json", "copies", "current", "roots"),
    }


@pytest.mark.parametrize("name", ["../../escaped", "a/b", "%2F", "?x#y"])
def test_T47_an_unusual_role_name_is_read_inside_the_folder(name: str, tmp_path: Path) -> None:
    simulator = RepositorySimulator(f"{(tmp_path / 'served').as_uri()}/")
    simulator.delegate(name, "releases/n*.json")
    simulator.publish(release_document("b1"))
    simulator.write(tmp_path / "served")
    outside = tmp_path / unquote(f"served/metadata/2.{name}.json")
    outside.parent.mkdir(parents=True, exist_ok=True)
    outside.write_bytes(b"not this one")

    repository, data = simulator.repository(), tmp_path / "data"
    with Network({}) as network:
        download = download_from(Store(data), repository, network, network.clock() + 30)
        found = refreshing.refresh(repository, data, download)
    assert found.trusted.roles[name].version == 2


@pytest.mark.parametrize("name", ["a" * 151, "é" * 26, "", "targets", "root"])
def test_T47_unsafe_role_names_are_refused(
    simulator: RepositorySimulator, tmp_path: Path, name: str
) -> None:
    text = json.dumps(name)
    replace_signed(simulator, b'"nightly"', text.encode())
    assert "metadata is not trusted" in refusal(simulator, tmp_path)


@pytest.mark.parametrize("name", ["Nightly", "TARGETS"])
def test_T47_role_names_of_one_file_on_some_systems_are_refused(
    simulator: RepositorySimulator, tmp_path: Path, name: str
) -> None:
    simulator.delegate(name, "releases/x*.json")
    simulator.sign()
    assert "differ in upper and lower case only" in refusal(simulator, tmp_path)


def replace_signed(simulator: RepositorySimulator, old: bytes, new: bytes) -> None:
    """Change the text of the targets metadata, whose signatures then are void."""
    name = f"metadata/{simulator.targets.version}.targets.json"
    data = simulator.files[name]
    assert old in data
    simulator.files[name] = data.replace(old, new)
    simulator.snapshot.meta["targets.json"].hashes = None
    simulator.snapshot.meta["targets.json"].length = None
    simulator.sign_snapshot()
    simulator.sign_timestamp()


@pytest.mark.parametrize("value", ["false", "", 0, 1, None])
def test_M26_terminating_must_be_a_boolean(
    simulator: RepositorySimulator, tmp_path: Path, value: Any
) -> None:
    assert simulator.targets.delegations is not None
    assert simulator.targets.delegations.roles is not None
    simulator.targets.delegations.roles["nightly"].terminating = value
    simulator.sign()
    assert "does not say whether it is terminating" in refusal(simulator, tmp_path)


@pytest.mark.parametrize("where", ["threshold", "bins", "bits"])
def test_M26_numbers_of_delegations_must_be_integers(tmp_path: Path, where: str) -> None:
    simulator = RepositorySimulator()
    if where == "threshold":
        simulator.delegate("nightly", "releases/n*.json", threshold=True)
    else:
        roles = succinct(simulator, True if where == "bits" else 1)
        roles.threshold = True if where == "bins" else 1
    simulator.bump()
    assert "not an integer" in refusal(simulator, tmp_path)


# --- any graph, against the specification's walk ---------------------------------------------

ROLES = ("a", "b", "c", "d")
TAGS = ("x1", "x2", "y1", "y2")
EDGES = st.lists(
    st.tuples(
        st.sampled_from(("targets", *ROLES)),
        st.sampled_from(ROLES),
        st.sampled_from(["*", "x*", "y*", "x1.json", "?2.json", "[xy]1.json"]),
        st.booleans(),
    ),
    max_size=10,
)
LISTED = st.lists(st.tuples(st.sampled_from(("targets", *ROLES)), st.sampled_from(TAGS)))
Edge = tuple[str, str, str, bool]


def expected(edges: dict[tuple[str, str], Edge], listed: set[tuple[str, str]], tag: str) -> Any:
    """Who signs a release, by the words of the specification, recursively."""
    seen = set()

    def search(role: str) -> tuple[str | None, bool]:
        """The role that signs it, and whether the search is over."""
        if role in seen:
            return None, False
        seen.add(role)
        if (role, tag) in listed:
            return role, True
        for by, child, pattern, terminating in edges.values():
            if by == role and matches(pattern, f"{tag}.json"):
                found, over = search(child)
                if over or terminating:
                    return found, True
        return None, False

    return search("targets")[0]


def matches(pattern: str, name: str) -> bool:
    return {
        "*": True,
        "x*": name[0] == "x",
        "y*": name[0] == "y",
        "x1.json": name == "x1.json",
        "?2.json": name[1:] == "2.json",
        "[xy]1.json": name[1:] == "1.json",
    }[pattern]


@given(EDGES, LISTED)
@settings(deadline=None, max_examples=60)
def test_delegations_are_searched_as_the_specification_says(
    edges: list[Edge], listed: list[tuple[str, str]]
) -> None:
    simulator = RepositorySimulator()
    graph = {(by, role): (by, role, pattern, ends) for by, role, pattern, ends in edges}
    reached = {"targets"}
    for _ in ROLES:
        reached |= {role for by, role in graph if by in reached}
    graph = {edge: each for edge, each in graph.items() if edge[0] in reached}
    for role in ROLES:
        simulator.delegates[role] = [signer(role)]
        simulator.delegated[role] = Targets(expires=simulator.targets.expires)
    for by, role, pattern, ends in graph.values():
        simulator.delegate(role, f"releases/{pattern}", by=by, terminating=ends)
    for role, tag in listed:
        simulator.add(release_document(tag), channels=[role], role=role)
    simulator.bump()
    found = trust.load(simulator, simulator.pinned_root).targets
    answers = {tag: expected(graph, {*listed}, tag) for tag in TAGS}
    assert {tag: found[f"releases/{tag}.json"].role for tag in TAGS if answers[tag]} == {
        tag: role for tag, role in answers.items() if role
    }
    assert len(found) == sum(1 for role in answers.values() if role)
    for tag in TAGS:  # one path alone leads to the same answer
        alone = trust.load(simulator, simulator.pinned_root, f"releases/{tag}.json").targets
        assert [each.role for each in alone.values()] == [answers[tag]] * bool(answers[tag])
