"""What was revoked: the list, how lists are put together, and the release tool that signs it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.folder_shop import FolderShop
from support.own_publisher import OwnPublisher
from support.repository import RepositorySimulator, release_document

from tsuku_llm.catalog import loading, revocations
from tsuku_llm.catalog.revocations import (
    Revocation,
    forget_builds,
    merged,
    parse,
    plain,
    read_all,
    remember,
)
from tsuku_llm.ground.errors import CorruptStore, ManifestError

NAME = "test"
BUILD, OTHER = ("a" * 64,), ("b" * 64, "c" * 64)
DAYS = ("", "2026-11-21", "2026-11-22", "2026-11-23")

entries = st.builds(
    Revocation,
    repository=st.just(NAME),
    release=st.sampled_from(["b1", "b2"]),
    reason=st.sampled_from(["", "it leaks"]),
    date=st.sampled_from(DAYS),
    builds=st.sampled_from([(), (BUILD,), (BUILD, OTHER)]),
    withdrawn=st.sampled_from(DAYS),
    foreign=st.just(False),
).filter(lambda each: not each.withdrawn or each.withdrawn >= each.date)
lists = st.lists(entries, max_size=2, unique_by=lambda each: each.release)


# --- lists of revocations ------------------------------------------------------------------


def test_T29_a_withdrawal_before_the_revocation_does_not_end_it() -> None:
    entry = {"release": "b1", "date": "2026-11-22", "withdrawn": "2026-11-21"}
    (found,) = parse(NAME, [entry])
    assert found.of([NAME], "b1", [])


@given(lists)
def test_a_list_is_read_back_unchanged(found: list[Revocation]) -> None:
    assert parse(NAME, json.loads(json.dumps(plain(found)))) == tuple(found)


@given(lists, lists)
def test_T20_a_missing_or_older_entry_ends_no_revocation(
    seen: list[Revocation], said: list[Revocation]
) -> None:
    after = {each.release: each for each in merged(seen, said)}
    for before in seen:
        now = after[before.release]
        assert now.day >= before.day
        assert {*before.builds} <= {*now.builds}
        if now.withdrawn and not before.withdrawn:
            assert now.withdrawn >= before.date
            assert any(each.withdrawn == now.withdrawn for each in said)


@given(lists)
def test_the_same_list_again_changes_nothing(found: list[Revocation]) -> None:
    once = merged(found)
    assert merged(once, found) == once


def test_T22_a_build_is_revoked_everywhere_and_a_name_only_in_its_repository() -> None:
    why = Revocation(NAME, "b1", builds=(BUILD,))
    assert why.of([NAME], "b1", [OTHER])
    assert why.of(["another"], "b7", [OTHER, BUILD])
    assert not why.of(["another"], "b1", [OTHER])
    assert not why._replace(withdrawn="2026-11-22").of([NAME], "b1", [BUILD])


def test_N05_a_revocation_says_whether_its_own_publisher_made_it() -> None:
    why = Revocation(NAME, "b1", builds=(BUILD,))
    own, foreign = why.of([NAME], "b1", [OTHER]), why.of(["another"], "b1", [BUILD])
    assert own is not None
    assert foreign is not None
    assert (own.summary, own.way_out) == ("revoked by its publisher", "")
    assert NAME in foreign.summary
    assert "its publisher" not in foreign.summary
    assert f"tsuku-llm repository remove {NAME}" in foreign.way_out


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", ["company", "official"])
def test_N05_builds_count_while_their_repository_is_there(
    name: str, there: bool, tmp_path: Path
) -> None:
    remember(tmp_path, name, [Revocation(name, "b1", builds=(BUILD,))])
    added = tmp_path / "metadata" / name / "repository.json"
    if there and name != "official":
        added.write_text("{}")
    held, damaged = read_all(tmp_path)
    counts = there or name == "official"
    assert not damaged
    assert held == {name: (Revocation(name, "b1", builds=(BUILD,) if counts else ()),)}
    # The names of what was installed from there stay for ever.
    forget_builds(tmp_path, name)
    added.write_text("{}")
    assert read_all(tmp_path)[0] == {name: (Revocation(name, "b1"),)}


def test_T22_a_shared_archive_alone_does_not_revoke_a_build() -> None:
    """One CUDA runtime belongs to the builds of many releases."""
    shared = "d" * 64
    why = Revocation(NAME, "b1", builds=(("a" * 64, shared),))
    assert not why.of(["another"], "b2", [("b" * 64, shared)])


BAD = [
    {"release": "b1"},
    [7],
    [{"release": "../b1"}],
    [{"release": 1}],
    [{"release": "b1", "reason": 7}],
    [{"release": "b1", "reason": "x" * 301}],
    [{"release": "b1", "date": "today"}],
    [{"release": "b1", "withdrawn": 20261122}],
    [{"release": "b1", "builds": ["a" * 64]}],
    [{"release": "b1", "builds": [[]]}],
    [{"release": "b1", "builds": [["A" * 64]]}],
    [{"release": "b1"}, {"release": "b1"}],
]


@pytest.mark.parametrize("raw", BAD, ids=str)
def test_T20_an_unreadable_signed_list_is_refused_and_does_not_count_as_empty(
    raw: object, tmp_path: Path
) -> None:
    simulator = RepositorySimulator()
    simulator.targets.unrecognized_fields["revoked"] = raw
    simulator.publish(release_document("b1"))
    repository = simulator.repository(embedded=simulator.freeze())
    with pytest.raises(ManifestError, match="list of revoked releases"):
        loading.load(repository, tmp_path)


def test_a_field_that_a_later_version_adds_is_ignored() -> None:
    assert parse(NAME, [{"release": "b1", "severity": 9.8}]) == (Revocation(NAME, "b1"),)


def test_T23_new_revocations_are_added_to_the_known_ones(tmp_path: Path) -> None:
    """Two processes with different metadata remember the words of both."""
    for tag in ("b1", "b2"):
        revocations.remember(tmp_path, NAME, [Revocation(NAME, tag, date="2026-11-22")])
    assert [each.release for each in revocations.read(tmp_path, NAME)] == ["b1", "b2"]
    file = tmp_path / "metadata" / NAME / "revoked.json"
    before = file.stat().st_ino
    revocations.remember(tmp_path, NAME, [Revocation(NAME, "b1", date="2026-11-22")])
    assert file.stat().st_ino == before, "nothing new, nothing written"
    file.write_bytes(b"[" * 100_000)
    with pytest.raises(CorruptStore):
        revocations.read(tmp_path, NAME)
    held, damaged = revocations.read_all(tmp_path)
    assert (held, len(damaged)) == ({}, 1)


# --- the release tool ----------------------------------------------------------------------


@pytest.fixture
def publisher(tmp_path: Path) -> OwnPublisher:
    """A publisher of b2 and b1, both signed."""
    made = OwnPublisher(tmp_path / "company", FolderShop(tmp_path / "shop"), "company")
    for tag in ("b1", "b2"):
        made.release(tag, f"{tag}-cpu")
    made.channels(stable=["b2", "b1"])
    made.publish()
    return made


def targets(publisher: OwnPublisher) -> dict[str, object]:
    (newest,) = publisher.signed.glob("metadata/*.targets.json")
    signed: dict[str, object] = json.loads(newest.read_text())["signed"]
    return signed


def files(publisher: OwnPublisher) -> dict[str, bytes]:
    found = (path for path in publisher.signed.rglob("*") if path.is_file())
    return {path.name: path.read_bytes() for path in found}


def test_T24_a_revocation_is_in_the_entry_and_in_the_list_and_a_rebuild_keeps_it(
    publisher: OwnPublisher,
) -> None:
    assert "revoked" not in targets(publisher), "nothing changes for who revokes nothing"
    publisher.revoke("b1")
    publisher.publish()
    (entry,) = targets(publisher)["revoked"]  # type: ignore[misc]
    archive = publisher.shop.packed("b1-cpu").sha256
    assert entry == {
        "release": "b1",
        "reason": "it leaks memory",
        "date": "2026-11-22",
        "builds": [[archive]],
    }
    (release,) = publisher.signed.glob("targets/releases/*.b1.json")
    assert json.loads(release.read_text())["revoked"] is True, "for clients that know no list"
    before = files(publisher)
    done = publisher.tool("sign")
    assert done.returncode == 0, done.stderr
    assert files(publisher) == before


@pytest.mark.parametrize("way", ["list", "channel", "both"])
def test_T24_signing_refuses_to_forget_a_revocation_that_is_not_named(
    publisher: OwnPublisher, way: str
) -> None:
    publisher.revoke("b1")
    publisher.publish()
    before = files(publisher)
    if way in ("list", "both"):
        publisher.unrevoked()
    if way in ("channel", "both"):
        publisher.channels(stable=["b2"])
    done = publisher.tool("sign", "--raise")
    assert done.returncode == 1
    assert done.stderr.startswith("error[publish]: b1 is revoked, and "), done.stderr
    assert "--drop b1" in done.stderr
    done = publisher.tool("sign", "--raise", "--drop", "b2")
    assert done.returncode == 1
    assert "--drop b2: this signature forgets no revocation of that name" in done.stderr
    assert files(publisher) == before
    done = publisher.tool("sign", "--raise", "--drop", "b1")
    assert done.returncode == 0, done.stderr
    assert "b1: its revocation is dropped" in done.stdout


def test_T24_a_release_file_that_drops_a_revocation_is_refused(publisher: OwnPublisher) -> None:
    """Who revoked by hand, as before there was a command, is guarded as well."""
    path = publisher.data / "releases" / "b1.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "revoked": True}))
    publisher.publish()
    path.write_text(json.dumps(document))
    done = publisher.tool("sign", "--raise")
    assert "b1 is revoked, and its release file would not say so any more" in done.stderr


def test_T25_every_holder_signs_the_revocation_and_each_must_name_what_is_dropped(
    publisher: OwnPublisher,
) -> None:
    publisher.revoke("b1")
    gather = ("--gather", publisher.home / "gathered")
    first = publisher.tool("sign", "--raise", *gather, signers=("anna",))
    assert first.returncode == 0, first.stderr
    for holder in ("ben", "host"):
        done = publisher.tool("sign", *gather, signers=(holder,))
        assert done.returncode == 0, done.stderr
    assert [each["release"] for each in targets(publisher)["revoked"]] == ["b1"]  # type: ignore[attr-defined]
    publisher.unrevoked()
    publisher.channels(stable=["b2"])
    gather = ("--gather", publisher.home / "again")
    done = publisher.tool("sign", "--raise", *gather, "--drop", "b1", signers=("anna",))
    assert done.returncode == 0, done.stderr
    done = publisher.tool("sign", *gather, signers=("ben",))
    assert (done.returncode, "--drop b1" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("revoke", "b9", "--reason", "x"), "it has no releases/b9.json"),
        (("revoke", "b1", "--reason", "a\nb"), "a reason is one line"),
        (("revoke", "b1", "--reason", " "), "a reason is one line"),
        (("revoke", "../b1", "--reason", "x", "--by-name"), "'../b1' is not the name of a release"),
        (("revoke", "b2", "--reason", "again"), "b2 was revoked on 2026-11-22 already"),
        (("withdraw", "b1"), "b1 is not revoked"),
        (("withdraw", "b2", "--on", "2026-11-21"), "which is later"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_T24_a_wrong_revocation_is_refused(
    publisher: OwnPublisher, words: tuple[str, ...], message: str
) -> None:
    publisher.revoke("b2")
    before = (publisher.data / "revoked.json").read_bytes()
    done = publisher.tool(*words)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert (publisher.data / "revoked.json").read_bytes() == before


@pytest.mark.parametrize("kind", ["dangling link", "folder", "deep"])
def test_T24_an_unreadable_list_does_not_count_as_empty(publisher: OwnPublisher, kind: str) -> None:
    path = publisher.data / "revoked.json"
    if kind == "dangling link":
        path.symlink_to("elsewhere.json")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text("[" * 200_000)
    for words in (("sign", "--raise"), ("revoke", "b1", "--reason", "x")):
        done = publisher.tool(*words)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert done.stderr.startswith(f"error[publish]: {path}"), done.stderr


def test_T29_a_withdrawn_revocation_stays_in_the_list_and_a_new_one_has_a_later_day(
    publisher: OwnPublisher,
) -> None:
    publisher.revoke("b1")
    assert publisher.tool("withdraw", "b1", "--on", "2026-11-23").returncode == 0
    publisher.publish()
    (entry,) = targets(publisher)["revoked"]  # type: ignore[misc]
    assert entry["withdrawn"] == "2026-11-23"
    (release,) = publisher.signed.glob("targets/releases/*.b1.json")
    assert json.loads(release.read_text())["revoked"] is False
    again = ("revoke", "b1", "--reason", "it leaks again", "--on")
    assert "needs a later day" in publisher.tool(*again, "2026-11-23").stderr
    assert publisher.tool(*again, "2026-11-24").returncode == 0
    publisher.publish()
    (entry,) = targets(publisher)["revoked"]  # type: ignore[misc]
    assert (entry["date"], "withdrawn" in entry) == ("2026-11-24", False)
