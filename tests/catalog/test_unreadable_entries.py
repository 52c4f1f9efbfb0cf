"""One signed entry that cannot be read hides no other release and no revocation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.folder_shop import FolderShop
from support.mutations import fuzz
from support.release_server import NAME
from support.repository import RepositorySimulator, release_document, signer
from tuf.api.metadata import MetaFile  # type: ignore[attr-defined]  # its own re-export

from tsuku_llm.catalog import loading, refreshing
from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.revocations import parse
from tsuku_llm.ground.errors import HttpStatusError, ManifestError, MetadataError, UnknownRequest
from tsuku_publish.errors import PublishError
from tsuku_publish.repository import checking

GOOD: dict[str, Any] = {
    "release": "b9",
    "sequence": 9,
    "publisher": "machine",
    "published": "2026-11-20",
    "channels": ["nightly"],
}
REVOKED = [{"release": "b0", "reason": "it crashes", "date": "2026-11-21"}]


def nested(depth: int) -> Any:
    value: Any = "b9"
    for _ in range(depth):
        value = [value]
    return value


UNREADABLE: dict[str, Any] = {
    "null": None,
    "text": "b9",
    "number": 9,
    "list": [GOOD],
    "empty": {},
    "newer_format": {"format": 9, "name": "b9"},
    "of_another_release": {**GOOD, "release": "b1"},
    "of_another_version": {**GOOD, "release": "b2", "version": "0.2.0"},
    "number_as_text": {**GOOD, "sequence": "9"},
    "number_below_zero": {**GOOD, "sequence": -1},
    "truth_as_number": {**GOOD, "sequence": True},
    "channels_as_text": {**GOOD, "channels": "stable"},
    "channel_as_number": {**GOOD, "channels": [1]},
    "release_with_path": {**GOOD, "release": "../b1"},
    "release_as_list": {**GOOD, "release": ["b1"]},
    "version_of_stable": {**GOOD, "version": "0.2.0", "sequence": None},
    "version_as_object": {**GOOD, "version": {"0": 2}},
    "no_date": {**GOOD, "published": "today"},
    "huge_text": {**GOOD, "publisher": "x" * 1_000_000},
    "huge_tag": {**GOOD, "release": "b" * 1_000_000},
    "huge_list": {**GOOD, "channels": ["", *["nightly"] * 50_000]},
    "nested": {**GOOD, "release": nested(20)},
    "control_characters": {**GOOD, "release": "b9\x1b[2J\n"},
    **{f"no_{key}": {name: GOOD[name] for name in GOOD if name != key} for key in GOOD},
}


@pytest.fixture
def simulator() -> RepositorySimulator:
    return made()


def made() -> RepositorySimulator:
    """People sign ``stable``; a machine signs ``nightly``, and may list any name."""
    simulator = RepositorySimulator()
    simulator.delegate("nightly", "releases/*", "nightly/*")
    simulator.add(release_document("n1"), channels=["nightly"], role="nightly")
    simulator.publish(release_document("b1", version="0.1.0"))
    return simulator


def refresh(simulator: RepositorySimulator, data: Path) -> Catalog:
    return refreshing.refresh(simulator.repository(), data, simulator.download)


def then_people_publish(simulator: RepositorySimulator) -> None:
    """A newer stable release, and a revocation: what an attacker would like to hide."""
    simulator.targets.unrecognized_fields["revoked"] = REVOKED
    simulator.publish(release_document("b2", version="0.2.0"))


def stable(catalog: Catalog) -> dict[str, Any]:
    """What users of stable can get, under every name."""
    entries = catalog.releases("stable")
    names = ("b1", "b2", "0.1.0", "v0.1.0", "v0.2.0")
    return {
        "entries": entries,
        "names": {name: catalog.entry(name) for name in names},
        "files": {entry.release: catalog.read(entry) for entry in entries},
        "revoked": catalog.revoked,
        "revocations": [catalog.revocation(entry) for entry in entries],
    }


PUBLISHED = made()
then_people_publish(PUBLISHED)


def embedded(simulator: RepositorySimulator, data: Path) -> Catalog:
    """The catalog of a repository in the package: nothing is written."""
    return loading.load(simulator.repository(embedded=simulator.freeze()), data)


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "nowhere"


@pytest.fixture(scope="module")
def want(nowhere: Path) -> dict[str, Any]:
    """What users of stable have to get."""
    want = stable(embedded(PUBLISHED, nowhere))
    assert want["revoked"] == parse(PUBLISHED.name, REVOKED)
    return want


@pytest.mark.parametrize("role", ["targets", "nightly"])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_S13_an_unreadable_entry_hides_nothing(
    nowhere: Path, want: dict[str, Any], kind: str, role: str
) -> None:
    simulator = PUBLISHED.fork()
    data = json.dumps(release_document("b9")).encode()
    simulator.add_target("releases/b9.json", data, UNREADABLE[kind], role)
    simulator.bump()
    found = embedded(simulator, nowhere)
    assert stable(found) == want
    assert [each.release for each in found.entries] == ["b2", "n1", "b1"]
    (note,) = found.notes
    assert note.startswith("b9 is skipped: the entry of ")
    assert len(note) < 600
    assert note.isprintable()
    assert [*found.skipped] == ["b9"]
    with pytest.raises(ManifestError, match="b9 cannot be read") as caught:
        found.entry("b9")
    assert caught.value.facts[0] in note


@pytest.mark.parametrize("role", ["targets", "nightly"])
def test_S13_a_refresh_goes_on_behind_an_unreadable_entry(
    simulator: RepositorySimulator, tmp_path: Path, want: dict[str, Any], role: str
) -> None:
    simulator.add_target("releases/b9.json", b"{}", [{"format": 2}], role)
    simulator.bump()
    refresh(simulator, tmp_path)
    then_people_publish(simulator)
    assert stable(refresh(simulator, tmp_path)) == want
    # The same from the disk alone.
    assert stable(loading.load(simulator.repository(), tmp_path)) == want


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=20))
WORDS = st.sampled_from([*GOOD, "version", "b1", "b2", "0.2.0", "stable", "nightly", "revoked"])
JSON = st.recursive(
    LEAVES | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=12,
)
CUSTOM = JSON | st.fixed_dictionaries({key: JSON | st.just(GOOD[key]) for key in GOOD})
PATHS = st.sampled_from(
    [
        *("releases/b9.json", "releases/b1.json", "releases/0.2.0.json", "releases/v0.2.0.json"),
        *("releases/stable.json", "releases/b0.json", "nightly/b2.json", "nightly/b0.json"),
    ]
)


@fuzz
@given(path=PATHS, custom=CUSTOM, revoked=st.booleans())
@example(path="releases/b9.json", custom={**GOOD, "version": "0.2.0"}, revoked=True)
@example(path="releases/b9.json", custom={**GOOD, "channels": ["stable"]}, revoked=False)
@example(path="releases/b1.json", custom={**GOOD, "release": "b1"}, revoked=True)
@example(path="releases/b7.json", custom={**GOOD, "release": "b1"}, revoked=True)
def test_no_entry_of_a_machine_changes_stable_or_what_is_revoked(
    nowhere: Path, want: dict[str, Any], path: str, custom: Any, *, revoked: bool
) -> None:
    simulator = PUBLISHED.fork()
    data = json.dumps({**release_document("b9"), "revoked": revoked}).encode()
    simulator.add_target(path, data, custom, "nightly")
    simulator.bump()
    found = embedded(simulator, nowhere)
    assert stable(found) == want
    revocations = {each.release for each in found.metadata_status().revoked}
    # Beside the signed list, only the release file of a name that is the machine's own.
    assert revocations <= {"b0", "b7", "b9", "stable"}
    assert "b0" in revocations


def test_an_unreadable_release_of_stable_keeps_its_names(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """A machine cannot pass off a release of its own as one that only newer clients can read."""
    data = json.dumps(release_document("b9")).encode()
    simulator.add_target("releases/b9.json", data, {"format": 2, "version": "0.9.0"})
    simulator.add(release_document("b7", version="0.9.0"), channels=["nightly"], role="nightly")
    for tag in ("b9", "b8"):
        forged = json.dumps(release_document(tag)).encode()
        simulator.add_target(f"nightly/{tag}.json", forged, None, "nightly")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert [each.release for each in found.entries] == ["b8", "n1", "b1"]
    with pytest.raises(ManifestError, match="b9 cannot be read"):
        found.entry("b9")
    with pytest.raises(UnknownRequest, match=r"no release 'v0\.9\.0'"):
        found.entry("v0.9.0")


def test_an_unreadable_entry_does_not_hide_the_revocation_in_its_file(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    data = json.dumps({**release_document("b9"), "revoked": True}).encode()
    simulator.add_target("releases/b9.json", data, {"format": 2})
    simulator.bump()
    found = refresh(simulator, tmp_path).metadata_status()
    assert [each.release for each in found.revoked] == ["b9"]
    assert "b9" in found.offered, "nobody is told that it is gone"


def test_a_flood_of_unreadable_entries_gives_few_notes(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    for number in range(100, 150):
        simulator.add_target(f"releases/b{number}.json", b"{}", None, "nightly")
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert len(found.notes) == 9
    assert found.notes[-1] == "42 more are skipped: tsuku-llm list --available"
    assert len(found.skipped) == 50


def test_no_role_goes_back_behind_an_unreadable_entry(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    old = simulator.fork()
    simulator.add_target("releases/b9.json", b"{}", None, "nightly")
    simulator.bump()
    refresh(simulator, tmp_path)
    with pytest.raises(MetadataError, match="older than what this machine has"):
        refresh(old, tmp_path)
    assert [*loading.load(simulator.repository(), tmp_path).skipped] == ["b9"]


def too_deep(simulator: RepositorySimulator) -> None:
    simulator.add_target("releases/b9.json", b"{}", nested(40), "nightly")


def too_deep_for_python(simulator: RepositorySimulator) -> None:
    simulator.add_target("releases/b9.json", b"{}", nested(200), "nightly")


def large_number(simulator: RepositorySimulator) -> None:
    simulator.add_target("releases/b9.json", b"{}", {**GOOD, "sequence": 2**60}, "nightly")


def path_out_of_the_folder(simulator: RepositorySimulator) -> None:
    simulator.add_target("releases/../b9.json", b"{}", GOOD, "nightly")


def long_path(simulator: RepositorySimulator) -> None:
    simulator.add_target(f"releases/{'b' * 5000}.json", b"{}", GOOD, "nightly")


def no_digest(simulator: RepositorySimulator) -> None:
    simulator.add_target("releases/b9.json", b"{}", GOOD, "nightly")
    simulator.delegated["nightly"].targets["releases/b9.json"].hashes = {"md5": "0" * 32}


def no_date(simulator: RepositorySimulator) -> None:
    simulator.delegated["nightly"].unrecognized_fields["issued"] = ["today"]


REFUSED = [
    *(too_deep, too_deep_for_python, large_number, path_out_of_the_folder, long_path),
    *(no_digest, no_date),
]


@pytest.mark.parametrize("attack", REFUSED, ids=lambda attack: attack.__name__)
def test_S13_a_role_that_no_client_accepts_hides_only_its_own_releases(
    simulator: RepositorySimulator,
    tmp_path: Path,
    want: dict[str, Any],
    attack: Callable[[RepositorySimulator], None],
) -> None:
    """Its own key has signed it, so python-tuf and the signer of the snapshot let it pass."""
    refresh(simulator, tmp_path)
    attack(simulator)
    then_people_publish(simulator)
    found = refresh(simulator, tmp_path)
    assert stable(found) == want
    assert [each.release for each in found.entries] == ["b2", "b1"]
    (note,) = found.notes
    assert note.startswith("the role 'nightly' is skipped: the ")
    # From the disk alone; and the role does not go back, to say something else.
    assert stable(loading.load(simulator.repository(), tmp_path)) == want
    assert found.trusted.roles["nightly"].version == found.trusted.versions["nightly"] == 3
    simulator.delegated["nightly"].targets.clear()
    simulator.delegated["nightly"].delegations = None
    simulator.delegated["nightly"].version = 1
    simulator.bump()
    with pytest.raises(MetadataError, match="older than what this machine has"):
        refresh(simulator, tmp_path)


@pytest.mark.parametrize("by", ["host", "host_around", "stranger", "too_few"])
def test_a_role_that_its_keys_did_not_sign_still_ends_a_refresh(
    simulator: RepositorySimulator, tmp_path: Path, by: str
) -> None:
    """A host could else make the newest releases of a channel disappear."""
    refresh(simulator, tmp_path)
    name = "metadata/3.nightly.json"
    if by.startswith("host"):
        simulator.bump()
        # Nothing of the signed content is changed.
        around = json.dumps({**json.loads(simulator.files[name]), "x": nested(40)})
        simulator.files[name] = around.encode() if by == "host_around" else b"[" * 40
    else:
        too_deep(simulator)
        simulator.bump()
        simulator.sign_delegated("nightly", [signer("stranger")] if by == "stranger" else [])
    # Snapshots of other tools name only the version. One with a digest says that its signer saw
    # these bytes, and then only the role is refused.
    simulator.snapshot.meta["nightly.json"] = MetaFile(3)
    simulator.sign_snapshot()
    simulator.sign_timestamp()
    with pytest.raises(MetadataError, match="the nightly metadata is not trusted"):
        refresh(simulator, tmp_path)
    assert "n1" in {each.release for each in loading.load(simulator.repository(), tmp_path).entries}


@pytest.mark.parametrize("wrong", ["missing", "other", "huge"])
def test_a_release_file_that_a_machine_signs_and_nobody_has_hides_nothing(
    simulator: RepositorySimulator, tmp_path: Path, want: dict[str, Any], wrong: str
) -> None:
    refresh(simulator, tmp_path)
    simulator.add_target("releases/b9.json", b"{}", GOOD, "nightly")
    file = simulator.delegated["nightly"].targets["releases/b9.json"]
    name = f"targets/{file.get_prefixed_paths()[0]}"
    if wrong == "missing":
        del simulator.files[name]
    else:
        simulator.files[name] = b"[]" if wrong == "other" else bytes(6_000_000)
    file.length = 10**15 if wrong == "huge" else file.length
    then_people_publish(simulator)
    found = refresh(simulator, tmp_path)
    assert stable(found) == want
    told: list[str] = []
    assert [each.release for each, _ in found.readable(found.entries, told.append)] == [
        *("b2", "n1", "b1")
    ]
    assert told == ["b9 is skipped: the release file of b9 is missing"]
    # A release file of people is another matter: a host that lacks it is not up to date.
    simulator.add(release_document("b3"))
    simulator.bump()
    (name,) = (each for each in simulator.files if each.endswith(".b3.json"))
    del simulator.files[name]
    with pytest.raises(HttpStatusError):
        refresh(simulator, tmp_path)


def unreadable_entry(simulator: RepositorySimulator) -> None:
    data = json.dumps(release_document("b9")).encode()
    simulator.add_target("releases/b9.json", data, {"format": 2}, "nightly")


def entry_of_another(simulator: RepositorySimulator) -> None:
    data = json.dumps(release_document("b9")).encode()
    simulator.add_target("releases/b9.json", data, {**GOOD, "release": "b1"}, "nightly")


@pytest.mark.parametrize("mistake", [unreadable_entry, entry_of_another, too_deep])
def test_a_publisher_is_told_of_what_clients_skip(
    simulator: RepositorySimulator, mistake: Callable[[RepositorySimulator], None]
) -> None:
    checking.verify(simulator, simulator.pinned_root)
    mistake(simulator)
    simulator.bump()
    with pytest.raises(PublishError):
        checking.verify(simulator, simulator.pinned_root)


def test_an_unreadable_list_of_revocations_still_ends_a_refresh(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """An entry of that list could be a revocation, so it is not skipped."""
    simulator.targets.unrecognized_fields["revoked"] = [*REVOKED, {"format": 2}]
    simulator.bump()
    with pytest.raises(ManifestError, match="the signed list of revoked releases"):
        refresh(simulator, tmp_path)


def test_S13_commands_work_and_tell_what_is_skipped(tmp_path: Path) -> None:
    shop = FolderShop(tmp_path / "shop")
    shop.simulator.add_target("releases/b9.json", b"{}", {"format": 2})
    shop.publish("b1", {"cpu": shop.variant(shop.stand_in("b1"))})
    user = shop.user(tmp_path / "home")
    assert user.run("repository", "refresh", NAME).code == 0
    done = user.run("install", "--json")
    assert done.code == 0, done.stderr
    assert done.document["data"]["release"] == "b1"
    assert "b9 is skipped" in done.stderr
    named = user.run("install", "--release", "b9", "--json")
    assert (named.code, named.document["error"]["code"]) == (5, "bad-manifest"), named.stderr
    assert "the entry of releases/b9.json" in str(named.document["error"]["facts"])
    assert [*user.run("list", "--available", "--json").document["data"]["skipped"]] == ["b9"]
    assert "b9 cannot be read: the entry of" in user.run("list", "--available").stdout


def test_if_no_entry_can_be_read_that_is_the_error(tmp_path: Path) -> None:
    shop = FolderShop(tmp_path / "shop")
    shop.simulator.add_target("releases/b9.json", b"{}", {"format": 2})
    shop.simulator.bump()
    shop.write()
    done = shop.user(tmp_path / "home").run("install", "--json")
    assert (done.code, done.document["error"]["code"]) == (5, "bad-manifest"), done.stderr
    assert "update tsuku-llm" in done.document["error"]["hint"]
