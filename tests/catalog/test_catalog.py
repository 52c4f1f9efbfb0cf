"""Which copy counts, what a catalog offers, and what a refresh takes over from a host."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from securesystemslib.signer import SSlibKey
from support.repository import (
    EXPIRES,
    ISSUED,
    URL,
    FrozenCopy,
    RepositorySimulator,
    release_document,
    signer,
)
from tuf.api.metadata import MetaFile

from tsuku_llm import trust
from tsuku_llm.catalog import loading, refreshing, repositories
from tsuku_llm.ground.errors import (
    BodyError,
    CorruptStore,
    DigestMismatch,
    HostUnreachable,
    HttpStatusError,
    ManifestError,
    MetadataError,
    NotWritable,
    TrustError,
    TsukuError,
    UnknownRequest,
    UsageError,
)

PACKAGE_DAY = datetime(2026, 11, 21, tzinfo=timezone.utc)


@pytest.fixture
def simulator() -> RepositorySimulator:
    simulator = RepositorySimulator()
    simulator.publish(
        release_document("b1", version="0.1.0"), release_document("b2", version="0.2.0")
    )
    simulator.publish(release_document("b3"), channels=["nightly"])
    return simulator


def refresh(simulator: RepositorySimulator, data: Path) -> loading.Catalog:
    return refreshing.refresh(simulator.repository(), data, simulator.download)


def refused(simulator: RepositorySimulator, data: Path) -> MetadataError:
    """A refresh that must be refused and must leave the catalog as it was."""
    before = versions(loading.load(simulator.repository(), data))
    with pytest.raises(MetadataError) as caught:
        refresh(simulator, data)
    assert caught.value.exit_code == 5
    assert versions(loading.load(simulator.repository(), data)) == before
    return caught.value


def versions(found: loading.Catalog) -> dict[str, int]:
    return {role: state.version for role, state in found.trusted.roles.items()}


def text(error: TsukuError) -> str:
    return ": ".join((error.message, *error.facts))


# --- what a catalog offers ----------------------------------------------------------------


@pytest.fixture
def offered(simulator: RepositorySimulator, tmp_path: Path) -> loading.Catalog:
    return refresh(simulator, tmp_path)


def test_channels_and_releases_newest_first(offered: loading.Catalog) -> None:
    assert offered.channels == ("nightly", "stable")
    assert [entry.release for entry in offered.entries] == ["b3", "b2", "b1"]
    assert [entry.release for entry in offered.releases("stable")] == ["b2", "b1"]
    assert offered.releases("stable")[0].version == "0.2.0"
    assert offered.releases("nightly")[0].release == "b3"


def test_the_newest_release_is_found_by_number_and_not_by_text(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.publish(release_document("b10"))
    assert refresh(simulator, tmp_path).releases("stable")[0].release == "b10"


@pytest.mark.parametrize("name", ["b1", "v0.1.0", "0.1.0", "V0.1.0", "B1"])
def test_a_release_is_found_by_tag_and_by_version(offered: loading.Catalog, name: str) -> None:
    assert offered.read(offered.entry(name)).release == "b1"


@pytest.mark.parametrize("name", ["b9", "0.9.0", "v", "", "vb1", "None"])
def test_an_unknown_release_lists_what_exists(offered: loading.Catalog, name: str) -> None:
    with pytest.raises(UnknownRequest) as caught:
        offered.read(offered.entry(name))
    assert "b3, b2 (v0.2.0), b1 (v0.1.0)" in text(caught.value)
    assert caught.value.hint


def test_an_unknown_channel_lists_what_exists(offered: loading.Catalog) -> None:
    with pytest.raises(UnknownRequest) as caught:
        offered.releases("weekly")[0]
    assert "nightly, stable" in text(caught.value)


def test_age_and_expiry(offered: loading.Catalog) -> None:
    freshness = offered.freshness
    assert (freshness.signed, freshness.expires) == (ISSUED, EXPIRES)
    assert freshness.age(ISSUED + timedelta(days=3)) == "signed on 2026-11-20 (3 days ago)"
    assert freshness.age(ISSUED - timedelta(days=300)) == "signed on 2026-11-20", (
        "a clock that was set back gives no age"
    )
    assert not freshness.expired(EXPIRES - timedelta(days=1))
    assert freshness.expired(EXPIRES)


def test_age_is_unknown_where_the_publisher_does_not_say(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.timestamp.unrecognized_fields.clear()
    simulator.bump()
    for role in (simulator.root, simulator.targets, simulator.snapshot):
        role.unrecognized_fields.clear()
    simulator.sign_root()
    simulator.bump()
    assert "of unknown age" in refresh(simulator, tmp_path).freshness.age(ISSUED)


def test_M28_a_release_file_in_the_place_of_another_is_refused(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """Signed, the right digest, and yet another release than the one asked for."""
    entry = dict(simulator.targets.targets["releases/b3.json"].custom)
    data = json.dumps(release_document("b1")).encode()
    simulator.add_target("releases/b3.json", data, entry)
    simulator.bump()
    found = refresh(simulator, tmp_path)
    with pytest.raises(ManifestError, match="describes b1"):
        found.read(found.entry("b3"))


def test_M28_a_release_file_of_another_version_is_refused(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """A request for v0.2.0 must not get v0.9.0, even if both have one tag."""
    entry = dict(simulator.targets.targets["releases/b2.json"].custom)
    data = json.dumps(release_document("b2", version="0.9.0")).encode()
    simulator.add_target("releases/b2.json", data, entry)
    simulator.bump()
    found = refresh(simulator, tmp_path)
    with pytest.raises(ManifestError, match=r"b2 \(v0.2.0\) describes b2 \(v0.9.0\)"):
        found.read(found.entry("v0.2.0"))


def test_M28_an_entry_in_the_place_of_another_is_refused(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    target = simulator.targets.targets["releases/b3.json"]
    target.unrecognized_fields["custom"] = {**target.custom, "release": "b1"}
    simulator.bump()
    found = refresh(simulator, tmp_path)
    assert [each.release for each in found.entries] == ["b2", "b1"]
    assert found.files["b1"].path == "releases/b1.json"
    with pytest.raises(ManifestError, match="b3 cannot be read") as caught:
        found.entry("b3")
    assert "describes b1" in text(caught.value)


def test_targets_that_are_not_releases_are_ignored(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.add_target("notes/today.txt", b"hello", None)
    simulator.bump()
    assert len(refresh(simulator, tmp_path).entries) == 3


def test_a_missing_release_file_is_an_error(offered: loading.Catalog, tmp_path: Path) -> None:
    (kept,) = tmp_path.glob("metadata/simulator/copies/*/targets/releases/*.b1.json")
    kept.unlink()
    with pytest.raises(MetadataError, match="b1 is missing"):
        offered.read(offered.entry("b1"))


def test_a_changed_release_file_is_an_error(offered: loading.Catalog, tmp_path: Path) -> None:
    (kept,) = tmp_path.glob("metadata/simulator/copies/*/targets/releases/*.b1.json")
    kept.write_bytes(kept.read_bytes().replace(b"simulator", b"simulatoR"))
    with pytest.raises(DigestMismatch):
        offered.read(offered.entry("b1"))


# --- embedded and updated -----------------------------------------------------------------


def test_the_embedded_copy_is_used_without_an_updated_one(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    found = loading.load(simulator.repository(embedded=simulator.freeze()), tmp_path)
    assert (found.source, found.notes) == ("embedded", ())
    assert found.releases("stable")[0].release == "b2"


def test_M30_a_newer_updated_copy_wins(simulator: RepositorySimulator, tmp_path: Path) -> None:
    repository = simulator.repository(embedded=simulator.freeze())
    simulator.publish(release_document("b4"))
    assert refreshing.refresh(repository, tmp_path, simulator.download).source == "updated"
    assert loading.load(repository, tmp_path).releases("stable")[0].release == "b4"


def test_M30_a_newer_embedded_copy_wins(simulator: RepositorySimulator, tmp_path: Path) -> None:
    refresh(simulator, tmp_path)
    simulator.publish(release_document("b4"))
    found = loading.load(simulator.repository(embedded=simulator.freeze()), tmp_path)
    assert (found.source, found.releases("stable")[0].release) == ("embedded", "b4")


def test_M30_of_equal_copies_the_embedded_one_is_used(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    repository = simulator.repository(embedded=simulator.freeze())
    assert refreshing.refresh(repository, tmp_path, simulator.download).source == "embedded"


def current(data: Path) -> Path:
    """The folder of the copy that counts."""
    folder = data / "metadata" / "simulator"
    return folder / "copies" / (folder / "current").read_text()


def empty(data: Path) -> None:
    (current(data) / "metadata" / "timestamp.json").write_bytes(b"")


def corrupt(data: Path) -> None:
    (snapshot,) = current(data).glob("metadata/*.snapshot.json")
    snapshot.write_bytes(snapshot.read_bytes()[:-1])


def remove(data: Path) -> None:
    (current(data) / "metadata" / "timestamp.json").unlink()


def link(data: Path) -> None:
    file = current(data) / "metadata" / "timestamp.json"
    file.rename(data / "elsewhere.json")
    file.symlink_to(data / "elsewhere.json")


def link_the_copy(data: Path) -> None:
    copy = current(data)
    copy.rename(data / "elsewhere")
    copy.symlink_to(data / "elsewhere")


def link_current(data: Path) -> None:
    file = data / "metadata" / "simulator" / "current"
    file.rename(data / "elsewhere")
    file.symlink_to(data / "elsewhere")


def pipe(data: Path) -> None:
    file = current(data) / "metadata" / "timestamp.json"
    file.unlink()
    os.mkfifo(file)


def folder(data: Path) -> None:
    file = current(data) / "metadata" / "timestamp.json"
    file.unlink()
    file.mkdir()


def huge(data: Path) -> None:
    with (current(data) / "metadata" / "timestamp.json").open("ab") as file:
        file.truncate(10**9)


def leave(data: Path) -> None:
    (data / "metadata" / "simulator" / "current").write_text("../../../../etc")


def zeros(data: Path) -> None:
    (data / "metadata" / "simulator" / "current").write_bytes(bytes(16))


DAMAGES = [
    empty,
    corrupt,
    remove,
    link,
    link_the_copy,
    link_current,
    pipe,
    folder,
    huge,
    leave,
    zeros,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: f"M30_C10_{damage.__name__}")
@pytest.mark.skipif(os.name != "posix", reason="links and pipes of a POSIX system")
def test_a_damaged_updated_copy_is_skipped_with_a_note_and_repaired(
    simulator: RepositorySimulator, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    repository = simulator.repository(embedded=simulator.freeze())
    simulator.publish(release_document("b4"))
    refreshing.refresh(repository, tmp_path, simulator.download)
    damage(tmp_path)
    found = loading.load(repository, tmp_path)
    assert (found.source, found.releases("stable")[0].release) == ("embedded", "b2")
    assert len(found.notes) == 1
    assert found.notes[0].startswith("the updated metadata of simulator is not used: ")

    healed = refreshing.refresh(repository, tmp_path, simulator.download)
    assert (healed.source, healed.notes) == ("updated", ())
    loaded = loading.load(repository, tmp_path)
    assert (loaded.source, loaded.notes) == ("updated", ())


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give away")
def test_M30_a_copy_of_another_owner_is_skipped(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    repository = simulator.repository(embedded=simulator.freeze())
    simulator.publish(release_document("b4"))
    refreshing.refresh(repository, tmp_path, simulator.download)
    os.chown(current(tmp_path) / "metadata" / "timestamp.json", 12345, 12345)
    found = loading.load(repository, tmp_path)
    assert found.source == "embedded"
    assert found.notes


def test_without_an_embedded_copy_a_valid_one_is_needed(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    with pytest.raises(MetadataError, match="no valid metadata") as caught:
        loading.load(simulator.repository(), tmp_path)
    assert "tsuku-llm repository refresh simulator" in caught.value.hint
    refresh(simulator, tmp_path)
    corrupt(tmp_path)
    with pytest.raises(MetadataError) as caught:
        loading.load(simulator.repository(), tmp_path)
    assert "snapshot" in text(caught.value)


def test_a_damaged_embedded_copy_is_a_damaged_package(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.flip("metadata/timestamp.json", 400)
    with pytest.raises(MetadataError):
        loading.load(simulator.repository(embedded=simulator.freeze()), tmp_path)


# --- refresh ------------------------------------------------------------------------------


def test_a_refresh_fetches_only_what_is_new(simulator: RepositorySimulator, tmp_path: Path) -> None:
    refresh(simulator, tmp_path)
    simulator.requests.clear()
    refresh(simulator, tmp_path)
    assert simulator.requests == ["metadata/2.root.json", "metadata/timestamp.json"]
    simulator.publish(release_document("b4"))
    simulator.requests.clear()
    refresh(simulator, tmp_path)
    assert simulator.requests[:4] == [
        "metadata/2.root.json",
        "metadata/timestamp.json",
        "metadata/4.snapshot.json",
        "metadata/4.targets.json",
    ]
    (fetched,) = simulator.requests[4:]
    assert fetched.endswith(".b4.json")


def test_a_first_refresh_takes_release_files_from_the_package(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    repository = simulator.repository(embedded=simulator.freeze())
    simulator.bump()
    refreshing.refresh(repository, tmp_path, simulator.download)
    assert not [name for name in simulator.requests if name.startswith("targets/")]


def test_the_previous_copy_is_kept_and_older_ones_are_not(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    kept = []
    for _ in range(3):
        simulator.bump()
        refresh(simulator, tmp_path)
        kept.append(current(tmp_path).name)
    assert {path.name for path in current(tmp_path).parent.iterdir()} == set(kept[1:])


def test_the_kept_copy_is_the_published_one(simulator: RepositorySimulator, tmp_path: Path) -> None:
    refresh(simulator, tmp_path)
    kept = current(tmp_path)
    files = {
        path.relative_to(kept).as_posix(): path.read_bytes()
        for path in kept.rglob("*")
        if path.is_file()
    }
    assert files.items() <= simulator.files.items()
    assert len(files) == 4 + 3


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_M12_M13_M14_rollback_between_refreshes(
    simulator: RepositorySimulator, tmp_path: Path, role: str
) -> None:
    old = simulator.fork()
    simulator.bump()
    refresh(simulator, tmp_path)
    if role == "timestamp":
        simulator.files["metadata/timestamp.json"] = old.files["metadata/timestamp.json"]
    else:
        getattr(simulator, role).version = getattr(old, role).version
        simulator.timestamp.version += 1
        if role == "targets":
            simulator.snapshot.version += 1
        simulator.sign()
    assert "version" in text(refused(simulator, tmp_path))


@pytest.mark.parametrize("forgotten", ["seen.json", "copies"])
def test_M12_rollback_after_a_memory_was_lost(
    simulator: RepositorySimulator, tmp_path: Path, forgotten: str
) -> None:
    """A crash may lose what was seen, or the kept copy: the other remembers as well."""
    old = simulator.fork()
    simulator.publish(release_document("b4"))
    refresh(simulator, tmp_path)
    (tmp_path / "metadata" / "simulator" / forgotten).rename(tmp_path / "lost")
    with pytest.raises(MetadataError, match="older than what this machine has") as caught:
        refresh(old, tmp_path)
    assert "timestamp 4" in text(caught.value)
    assert "timestamp 3" in text(caught.value)


def test_M12_rollback_below_the_embedded_copy(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    old = simulator.fork()
    simulator.publish(release_document("b4"))
    repository = simulator.repository(embedded=simulator.freeze())
    with pytest.raises(MetadataError, match="older than what this machine has"):
        refreshing.refresh(repository, tmp_path, old.download)
    assert loading.load(repository, tmp_path).releases("stable")[0].release == "b4"


def test_M15_a_snapshot_without_targets_is_refused(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    refresh(simulator, tmp_path)
    simulator.snapshot.meta["other.json"] = MetaFile(1)
    del simulator.snapshot.meta["targets.json"]
    simulator.snapshot.version += 1
    simulator.sign_snapshot()
    simulator.timestamp.version += 1
    simulator.sign_timestamp()
    refused(simulator, tmp_path)


def test_M16_other_content_of_the_same_version_is_refused(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    refresh(simulator, tmp_path)
    kept = (current(tmp_path) / "metadata" / "timestamp.json").read_bytes()
    other = simulator.fork()
    other.timestamp.unrecognized_fields["note"] = "another one"
    other.sign_timestamp()
    refresh(other, tmp_path)
    assert (current(tmp_path) / "metadata" / "timestamp.json").read_bytes() == kept
    (tmp_path / "metadata" / "simulator" / "seen.json").rename(tmp_path / "lost")
    refresh(other, tmp_path)
    assert (current(tmp_path) / "metadata" / "timestamp.json").read_bytes() == kept


def test_M16_a_timestamp_of_the_same_version_names_nothing_new(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    before = versions(refresh(simulator, tmp_path))
    other = simulator.fork()
    other.publish(release_document("b9"))
    other.timestamp.version = before["timestamp"]
    other.sign_timestamp()
    assert versions(refresh(other, tmp_path)) == before


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
@pytest.mark.parametrize("with_embedded", [True, False])
def test_M17_fast_forward_recovers_after_a_rotation(
    simulator: RepositorySimulator, tmp_path: Path, role: str, with_embedded: bool
) -> None:
    """A stolen online signer jumps to version 100; new keys may count from where they were."""
    before = {name: getattr(simulator, name).version for name in ("timestamp", "snapshot")}
    embedded = simulator.freeze() if with_embedded else None
    repository = simulator.repository(embedded=embedded)
    getattr(simulator, role).version = 100
    simulator.bump()
    refreshing.refresh(repository, tmp_path, simulator.download)
    for name, version in before.items():
        getattr(simulator, name).version = version
    simulator.targets.version = 4
    simulator.rotate("timestamp", "snapshot", "targets")
    found = refreshing.refresh(repository, tmp_path, simulator.download)
    assert versions(found)["root"] == 2
    assert versions(found)[role] < 100
    assert (found.source, found.notes) == ("updated", ())


def test_an_old_timestamp_below_a_new_root_is_still_a_rollback(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """A root that keeps the online signer must not hide that the timestamp is older."""
    old = simulator.fork()
    old.rotate("root")
    simulator.publish(release_document("b4"))
    simulator.publish(release_document("b5"))
    repository = simulator.repository(embedded=simulator.freeze())
    with pytest.raises(MetadataError, match="older than what this machine has"):
        refreshing.refresh(repository, tmp_path, old.download)


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_M18_expired_metadata_is_refused_by_a_refresh(
    simulator: RepositorySimulator, tmp_path: Path, role: str
) -> None:
    refresh(simulator, tmp_path)
    simulator.expire(role, datetime(2020, 1, 1, tzinfo=timezone.utc))
    error = refused(simulator, tmp_path)
    assert "has expired" in error.message
    assert "clock" in error.hint


def test_M18_an_expired_root_is_refused_by_a_refresh(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    refresh(simulator, tmp_path)
    simulator.root.expires = datetime(2020, 1, 1, tzinfo=timezone.utc)
    simulator.rotate("targets")
    for _ in range(2):  # the second time, this machine has that root already
        error = refused(simulator, tmp_path)
        assert "has expired" in error.message
        assert any(fact.startswith("root 2: signed on 2026-11-20") for fact in error.facts)


def test_M19_an_expired_copy_is_replaced_by_a_fresh_one(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.timestamp.expires = datetime(2020, 1, 1, tzinfo=timezone.utc)
    simulator.sign()
    repository = simulator.repository(embedded=simulator.freeze())
    assert loading.load(repository, tmp_path).trusted.expired(PACKAGE_DAY) == ("timestamp",)
    simulator.timestamp.expires = EXPIRES
    simulator.bump()
    assert refreshing.refresh(repository, tmp_path, simulator.download).source == "updated"


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_M01_wrongly_signed_metadata_is_refused_by_a_refresh(
    simulator: RepositorySimulator, tmp_path: Path, role: str
) -> None:
    refresh(simulator, tmp_path)
    good = simulator.signers[role]
    simulator.signers[role] = [signer(f"stranger {number}") for number in (1, 2, 3)]
    simulator.bump()
    refused(simulator, tmp_path)
    simulator.signers[role] = good
    simulator.bump()
    assert refresh(simulator, tmp_path).notes == ()


def test_a_host_that_no_longer_has_a_known_root_is_refused(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """A 404 for the newest root must not bring the replaced signers back."""
    old = simulator.fork()
    simulator.rotate("root", "timestamp", "snapshot")
    assert versions(refresh(simulator, tmp_path))["root"] == 2
    for _ in range(10):
        old.bump()
    assert "timestamp" in text(refused(old, tmp_path))
    simulator.bump()
    del simulator.files["metadata/2.root.json"]
    assert versions(refresh(simulator, tmp_path))["root"] == 2


def test_a_rotation_is_followed_from_the_oldest_root(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    for generation in "abcde":
        simulator.rotate("root", "targets", generation=generation)
    found = refresh(simulator, tmp_path)
    assert versions(found)["root"] == 6
    assert loading.load(simulator.repository(), tmp_path).notes == ()


def test_M06_a_root_that_python_tuf_accepts_and_this_program_refuses(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """It is refused on its way to the updater, so that the next refresh is not stuck with it."""
    refresh(simulator, tmp_path)
    good = simulator.fork()
    public = simulator.signers["targets"][0].public_key.keyval
    simulator.root.add_key(SSlibKey("f" * 64, "ed25519", "ed25519", public), "targets")
    simulator.root.version = 2
    simulator.sign_root()
    assert "one public key twice" in text(refused(simulator, tmp_path))
    good.rotate("root")
    assert versions(refresh(good, tmp_path))["root"] == 2


def test_M26_a_duplicate_key_is_refused_on_the_way_to_the_updater(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    refresh(simulator, tmp_path)
    simulator.bump()
    name = "metadata/timestamp.json"
    simulator.files[name] = simulator.files[name].replace(
        b'"version":4}', b'"version":9,"version":4}'
    )
    assert "a key appears twice" in text(refused(simulator, tmp_path))


@pytest.mark.parametrize("name", ["metadata/timestamp.json", "metadata/4.targets.json", "release"])
@pytest.mark.parametrize("status", [403, 404, 429, 500])
def test_an_http_status_keeps_the_old_catalog(
    simulator: RepositorySimulator, tmp_path: Path, name: str, status: int
) -> None:
    refresh(simulator, tmp_path)
    simulator.publish(release_document("b4"))

    def download(file: str, limit: int) -> bytes:
        if name in file or (name == "release" and ".b4.json" in file):
            raise HttpStatusError("no", status=status)
        return simulator.download(file, limit)

    with pytest.raises(HttpStatusError) as caught:
        refreshing.refresh(simulator.repository(), tmp_path, download)
    assert caught.value.status == status
    found = loading.load(simulator.repository(), tmp_path)
    assert (found.releases("stable")[0].release, found.notes) == ("b2", ())
    assert refresh(simulator, tmp_path).releases("stable")[0].release == "b4"


@pytest.mark.parametrize("after", range(6))
def test_H35_a_host_that_goes_away_keeps_the_old_catalog(
    simulator: RepositorySimulator, tmp_path: Path, after: int
) -> None:
    refresh(simulator, tmp_path)
    simulator.rotate("timestamp", "snapshot", "targets")
    simulator.publish(release_document("b4"))
    left = after

    def download(file: str, limit: int) -> bytes:
        nonlocal left
        left -= 1
        if left < 0:
            raise HostUnreachable("no route")
        return simulator.download(file, limit)

    with pytest.raises(HostUnreachable):
        refreshing.refresh(simulator.repository(), tmp_path, download)
    found = loading.load(simulator.repository(), tmp_path)
    assert (found.releases("stable")[0].release, found.notes) == ("b2", ())
    assert refresh(simulator, tmp_path).releases("stable")[0].release == "b4"


def test_M22_every_download_has_a_limit(simulator: RepositorySimulator, tmp_path: Path) -> None:
    limits: dict[str, int] = {}

    def download(file: str, limit: int) -> bytes:
        limits[file.rpartition("/")[2]] = limit
        return simulator.download(file, limit)

    refreshing.refresh(simulator.repository(), tmp_path, download)
    sizes = {name.rpartition("/")[2]: len(data) for name, data in simulator.files.items()}
    for name, limit in limits.items():
        exact = name not in ("timestamp.json", "2.root.json")
        assert limit == sizes[name] if exact else limit <= 512_000, name


def test_M22_a_download_over_its_limit_is_refused(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    def download(file: str, limit: int) -> bytes:
        if file.endswith(".root.json"):
            return simulator.download(file, limit)
        return bytes(limit + 1)

    with pytest.raises(BodyError):
        refreshing.refresh(simulator.repository(), tmp_path, download)


def test_a_release_file_other_than_the_signed_one_is_refused(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    (name,) = [name for name in simulator.files if name.endswith(".b3.json")]
    simulator.flip(name, 80)
    with pytest.raises(DigestMismatch):
        refresh(simulator, tmp_path)
    with pytest.raises(MetadataError, match="no valid metadata"):
        loading.load(simulator.repository(), tmp_path)


@pytest.mark.parametrize("state", ["file", "folder in the way"])
def test_a_folder_that_cannot_be_written_is_an_error(
    simulator: RepositorySimulator, tmp_path: Path, state: str
) -> None:
    place = tmp_path / "metadata" / "simulator"
    place.parent.mkdir()
    if state == "file":
        place.write_text("in the way")
    else:
        (place / "current" / "x").mkdir(parents=True)
    with pytest.raises(TsukuError) as caught:
        refresh(simulator, tmp_path)
    assert caught.value.exit_code in (5, 6)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(simulator: RepositorySimulator, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(NotWritable):
        refresh(simulator, tmp_path)
    tmp_path.chmod(0o700)


# --- repositories -------------------------------------------------------------------------


def test_an_added_repository_is_kept_and_can_be_fetched(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    added = simulator.install(tmp_path, "company", URL.rstrip("/"))
    assert added == repositories.repository(tmp_path, "company")
    assert added.url == URL
    assert [each.name for each in repositories.repositories(tmp_path)] == ["official", "company"]
    found = refreshing.refresh(added, tmp_path, simulator.download)
    assert found.releases("stable")[0].release == "b2"


def test_the_official_repository_has_a_url_that_can_be_overridden(tmp_path: Path) -> None:
    assert repositories.repository(tmp_path).url == "https://releases.tsuku.dev/tsuku-llm/"
    mirror = repositories.repository(
        tmp_path, repositories.OFFICIAL, ["https://mirror.example/llm"]
    )
    assert mirror.url == "https://mirror.example/llm/"
    assert mirror.embedded is not None


def test_the_url_of_an_added_repository_can_be_overridden(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.install(tmp_path, "company")
    assert (
        repositories.repository(tmp_path, "company", ["https://m.example/"]).url
        == "https://m.example/"
    )


def test_an_unknown_repository_lists_what_exists(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.install(tmp_path, "company")
    for name in ("other", "../company", ""):
        with pytest.raises(UnknownRequest) as caught:
            repositories.repository(tmp_path, name)
        assert "official, company" in text(caught.value)


@pytest.mark.parametrize(
    "name", ["official", "", "Company", "a/b", "..", "a" * 41, "-a", "a\n", "a.b", "é"]
)
def test_a_bad_repository_name_is_refused(
    simulator: RepositorySimulator, tmp_path: Path, name: str
) -> None:
    with pytest.raises(UsageError):
        simulator.install(tmp_path, name)
    assert not (tmp_path / "metadata").exists()


@pytest.mark.parametrize(
    "url",
    [
        "http://host/",
        "ftp://host/",
        "file://host/tmp/",
        "file:tmp/",
        "file:///tmp/?token=secret",
        "host",
        "https://",
        "https://user:secret@host/",
        "https://host/?token=secret",
        "https://host/#x",
        "https://host:port/",
        "https://[::1/",
        "",
    ],
)
def test_a_bad_repository_url_is_refused(
    simulator: RepositorySimulator, tmp_path: Path, url: str
) -> None:
    with pytest.raises(UsageError) as caught:
        repositories.add_repository(tmp_path, "company", url, simulator.pinned_root)
    assert "secret" not in text(caught.value)


def test_a_root_that_did_not_sign_itself_is_refused(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.sign_root(simulator.signers["root"][:1])
    with pytest.raises(MetadataError, match="root"):
        simulator.install(tmp_path, "company")
    with pytest.raises(TrustError):
        repositories.add_repository(tmp_path, "company", URL, b"not a root")
    assert len(repositories.repositories(tmp_path)) == 1


def test_a_repository_name_cannot_be_used_twice(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.install(tmp_path, "company")
    with pytest.raises(UsageError, match="already"):
        simulator.install(tmp_path, "company", "https://other.example/")
    assert repositories.repository(tmp_path, "company").url == URL


def test_a_removed_repository_leaves_nothing(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    added = simulator.install(tmp_path, "company")
    refreshing.refresh(added, tmp_path, simulator.download)
    repositories.remove_repository(tmp_path, "company")
    assert list((tmp_path / "metadata").iterdir()) == []
    with pytest.raises(UnknownRequest):
        repositories.remove_repository(tmp_path, "company")
    with pytest.raises(UsageError):
        repositories.remove_repository(tmp_path, "official")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": 5}', '{"url": "http://h/"}', "null"])
def test_damaged_settings_of_a_repository_are_an_error(
    simulator: RepositorySimulator, tmp_path: Path, content: str
) -> None:
    simulator.install(tmp_path, "company")
    (tmp_path / "metadata" / "company" / "repository.json").write_text(content)
    with pytest.raises(CorruptStore) as caught:
        repositories.repository(tmp_path, "company")
    assert "delete" in caught.value.hint


def test_a_changed_pinned_root_is_refused(simulator: RepositorySimulator, tmp_path: Path) -> None:
    added = simulator.install(tmp_path, "company")
    refreshing.refresh(added, tmp_path, simulator.download)
    stranger = RepositorySimulator(name="stranger")
    (tmp_path / "metadata" / "company" / "root.json").write_bytes(stranger.pinned_root)
    with pytest.raises(MetadataError):
        loading.load(repositories.repository(tmp_path, "company"), tmp_path)


# --- the embedded repository ----------------------------------------------------------------


def test_the_package_embeds_a_valid_repository(tmp_path: Path) -> None:
    found = loading.load(repositories.repository(tmp_path), tmp_path)
    assert found.source == "embedded"
    assert found.channels == ("index", "nightly", "stable")
    assert found.trusted.expired(PACKAGE_DAY) == ()
    assert found.read(found.entry("v0.6.0")).release == "b11429"
    assert found.read(found.entry("b11429")).version == "0.6.0"
    with pytest.raises(UnknownRequest) as caught:
        found.entry("v0.6")
    assert caught.value.hint == "did you mean 0.6.0?"


def test_the_embedded_repository_is_found_in_a_zipped_package(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as package:
        for path in (root / "installer" / "tsuku_llm").rglob("*.py"):
            package.write(path, path.relative_to(root / "installer"))
        for path in (root / "manifests").rglob("*"):
            package.write(path, Path("tsuku_llm") / path.relative_to(root))
    code = (
        f"import sys; sys.path[:0] = [{str(archive)!r}];"
        "from pathlib import Path; from tsuku_llm.catalog import loading, repositories;"
        f"data = Path({str(tmp_path)!r});"
        "found = loading.load(repositories.repository(data), data);"
        "print(loading.__file__, found.releases('stable')[0].release)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(archive) in done.stdout
    assert done.stdout.split()[-1] == "b11429"


def test_a_catalog_loads_no_network_and_importing_it_loads_no_tuf() -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tsuku_llm.catalog import loading, repositories\n"
        "from tsuku_llm.catalog import refreshing\n"
        "heavy = ('tuf', 'securesystemslib', 'cryptography', 'msgspec', 'httpx', 'urllib3')\n"
        "print([m for m in heavy if m in sys.modules])\n"
        "data = Path('nowhere')\n"
        "loading.load(repositories.repository(data), data).releases('stable')[0]\n"
        "print([m for m in ('httpx', 'urllib3', 'tuf.ngclient') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


def test_a_frozen_copy_does_not_change(simulator: RepositorySimulator) -> None:
    frozen: FrozenCopy = simulator.freeze()
    simulator.bump()
    assert trust.load(frozen, simulator.pinned_root).roles["timestamp"].version == 3
