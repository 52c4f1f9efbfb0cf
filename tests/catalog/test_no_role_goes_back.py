"""Each role is compared by itself with every copy that is known, on the disk and in a refresh."""

import dataclasses
import functools
import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.packaged import packaged_program
from support.repository import RepositorySimulator, cpu_platform, release_document, signer
from tuf.api.metadata import MetaFile

from tsuku_llm import trust
from tsuku_llm.catalog import loading, refreshing, repositories
from tsuku_llm.ground.errors import HttpStatusError, MetadataError

ROLES = ("timestamp", "snapshot", "targets")


OTHER_BUILD = {"linux-amd64": cpu_platform()}
"""Not the archive of ``b1``: a revocation counts for the same archive under any name."""
for artifact in OTHER_BUILD["linux-amd64"]["variants"]["cpu"]["artifacts"]:
    artifact["sha256"] = "2" * 64


@pytest.fixture
def simulator() -> RepositorySimulator:
    simulator = RepositorySimulator()
    simulator.publish(release_document("b1"), release_document("b2", platforms=OTHER_BUILD))
    return simulator


def revoked(simulator: RepositorySimulator) -> RepositorySimulator:
    """The repository after its newest release was revoked, and that twice signed again."""
    later = simulator.fork()
    later.publish(release_document("b2", platforms=OTHER_BUILD, revoked=True))
    for _ in range(2):
        later.bump()
    return later


def replayed(old: RepositorySimulator, versions: int = 100) -> RepositorySimulator:
    """The old targets below a new snapshot and timestamp: all that the online key can do."""
    evil = old.fork()
    evil.snapshot.version = evil.timestamp.version = versions
    evil.sign_snapshot()
    evil.sign_timestamp()
    return evil


def place(data: Path) -> Path:
    return data / "metadata" / "simulator"


def is_revoked(found: loading.Catalog) -> bool:
    return found.revocation(found.entry("b2")) is not None


def refused(repository: repositories.Repository, data: Path, host: RepositorySimulator) -> str:
    """What a refresh says that changes nothing of what is trusted."""
    before = loading.load(repository, data)
    with pytest.raises(MetadataError) as caught:
        refreshing.refresh(repository, data, host.download, alone=True)
    after = loading.load(repository, data)
    assert (after.source, after.trusted, after.notes) == (
        before.source,
        before.trusted,
        before.notes,
    )
    assert caught.value.exit_code == 5
    return ": ".join((caught.value.message, *caught.value.facts))


# --- the online key alone -----------------------------------------------------------------------


def test_T05_the_online_key_alone_does_not_undo_a_revocation_of_the_package(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    later = revoked(simulator)
    repository = later.repository(embedded=later.freeze())
    for _ in range(2):
        said = refused(repository, tmp_path, replayed(simulator))
        assert "older than what this machine has" in said
        assert "versions here (embedded): snapshot 5, targets 5, timestamp 5" in said
        assert "targets 2" in said
    assert is_revoked(loading.load(repository, tmp_path))


@pytest.mark.parametrize("versions", [5, 6, 100])
def test_T05_through_the_command_line(
    simulator: RepositorySimulator, tmp_path: Path, versions: int
) -> None:
    later = revoked(simulator)
    run = packaged_program(tmp_path, later, replayed(simulator, versions))
    answer = run("repository", "refresh")
    if versions > 5:
        assert answer.code == 5
        assert "older than what this machine has" in answer.stderr
    planned = run("install", "--dry-run")
    assert planned.code == 0, planned.stderr
    assert "cpu of b1, built by" in planned.stdout


def test_T05_a_first_refresh_must_not_be_older_than_the_package(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """A removed role is a lower one, and so is a snapshot below the package's."""
    repository = simulator.repository(embedded=simulator.freeze())
    older = RepositorySimulator()
    older.timestamp.version = 9
    older.sign_timestamp()
    assert "snapshot 2" in refused(repository, tmp_path, older)


def forget(data: Path) -> None:
    (place(data) / "seen.json").unlink(missing_ok=True)


def tear(data: Path) -> None:
    path = place(data) / "seen.json"
    path.write_bytes(path.read_bytes()[:100])


def forget_copies(data: Path) -> None:
    shutil.rmtree(place(data) / "copies")
    (place(data) / "current").unlink()


def keep_all(_: Path) -> None:
    pass


LOSSES = (keep_all, forget, tear)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("with_embedded", [True, False])
def test_T06_the_online_key_alone_does_not_undo_a_revocation_of_an_update(
    simulator: RepositorySimulator,
    tmp_path: Path,
    loss: Callable[[Path], None],
    with_embedded: bool,
) -> None:
    repository = simulator.repository(embedded=simulator.freeze() if with_embedded else None)
    later = revoked(simulator)
    refreshing.refresh(repository, tmp_path, later.download)
    for _ in range(2):
        loss(tmp_path)
        assert "older than what this machine has" in refused(
            repository, tmp_path, replayed(simulator)
        )
    assert is_revoked(loading.load(repository, tmp_path))


@pytest.mark.parametrize("rotated", [False, True])
def test_T06_a_refresh_starts_from_the_later_copy_if_its_memory_is_lost(
    simulator: RepositorySimulator, tmp_path: Path, rotated: bool
) -> None:
    repository = simulator.repository(embedded=simulator.freeze())
    later = revoked(simulator)
    if rotated:
        later.rotate("root", "targets", "snapshot", "timestamp")
    refreshing.refresh(repository, tmp_path, later.download)
    before = (place(tmp_path) / "seen.json").read_bytes()
    forget(tmp_path)
    later.requests.clear()
    refreshing.refresh(repository, tmp_path, later.download)
    next_root = f"metadata/{later.root.version + 1}.root.json"
    assert later.requests == [next_root, "metadata/timestamp.json"]
    assert (place(tmp_path) / "seen.json").read_bytes() == before


def test_T06_what_a_failed_refresh_saw_counts(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """No known copy takes it away, and no other failed refresh."""
    repository = simulator.repository(embedded=simulator.freeze())
    later = revoked(simulator)
    ahead = later.fork()
    ahead.publish(release_document("b3"))
    broken = ahead.fork()
    (name,) = [name for name in broken.files if name.endswith(".b3.json")]
    del broken.files[name]
    with pytest.raises(Exception, match="404"):
        refreshing.refresh(repository, tmp_path, broken.download)
    for _ in range(2):
        said = refused(repository, tmp_path, later)
        assert "older than what this machine has" in said
        assert "versions here (seen before): snapshot 6, targets 6, timestamp 6" in said
    assert refreshing.refresh(repository, tmp_path, ahead.download).entries[0].release == "b3"


def test_T06_a_timestamp_counts_before_its_snapshot_is_here(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """TUF 5.4.5: a host that answers half of a refresh has shown what it has."""
    repository = simulator.repository(embedded=simulator.freeze())
    later = revoked(simulator)
    ahead = later.fork()
    ahead.bump()
    del ahead.files[f"metadata/{ahead.snapshot.version}.snapshot.json"]
    with pytest.raises(HttpStatusError):
        refreshing.refresh(repository, tmp_path, ahead.download)
    said = refused(repository, tmp_path, later)
    assert "versions here (seen before): snapshot 6, timestamp 6" in said


def test_T06_what_was_seen_counts_without_any_copy(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    repository = simulator.repository()
    later = revoked(simulator)
    refreshing.refresh(repository, tmp_path, later.download)
    forget_copies(tmp_path)
    with pytest.raises(MetadataError, match="older than what this machine has"):
        refreshing.refresh(repository, tmp_path, simulator.download)
    assert is_revoked(refreshing.refresh(repository, tmp_path, later.download))


@pytest.mark.parametrize("role", ["timestamp", "snapshot"])
def test_T06_what_was_seen_under_keys_that_were_replaced_does_not_count(
    simulator: RepositorySimulator, tmp_path: Path, role: str
) -> None:
    """TUF 5.3.11, for a refresh that failed after a thief's high versions."""
    repository = simulator.repository(embedded=simulator.freeze())
    fast = simulator.fork()
    fast.timestamp.version = fast.snapshot.version = 2**53 - 2
    fast.bump()
    del fast.files[f"metadata/{fast.snapshot.version}.snapshot.json"]
    with pytest.raises(HttpStatusError):
        refreshing.refresh(repository, tmp_path, fast.download)
    assert "seen before" in refused(repository, tmp_path, simulator)
    cured = simulator.fork()
    cured.rotate(role)
    assert refreshing.refresh(repository, tmp_path, cured.download).notes == ()


def test_T06_a_new_key_beside_the_others_lets_nothing_be_forgotten(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    repository = simulator.repository(embedded=simulator.freeze())
    ahead = simulator.fork()
    for _ in range(5):
        ahead.bump()
    del ahead.files[f"metadata/{ahead.snapshot.version}.snapshot.json"]
    with pytest.raises(HttpStatusError):
        refreshing.refresh(repository, tmp_path, ahead.download)
    simulator.signers["timestamp"] = [*simulator.signers["timestamp"], signer("one more")]
    simulator.rotate()
    assert "seen before" in refused(repository, tmp_path, simulator)


def test_T06_after_a_lost_memory_nothing_older_is_accepted(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    repository = simulator.repository()
    later = revoked(simulator)
    refreshing.refresh(repository, tmp_path, later.download)
    for _ in range(2):
        forget(tmp_path)
        refused(repository, tmp_path, simulator)


def test_T06_a_refresh_without_news_leaves_the_kept_copy_unchanged(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """A reader may use it, and a crash during a replacement would leave no copy."""
    repository = simulator.repository()
    refreshing.refresh(repository, tmp_path, simulator.download)
    (copy,) = (place(tmp_path) / "copies").iterdir()
    before = copy.stat()
    refreshing.refresh(repository, tmp_path, simulator.download)
    assert copy.stat() == before


def without_digests(simulator: RepositorySimulator) -> None:
    """Name files by their versions alone, as TUF allows."""
    for name, about in simulator.snapshot.meta.items():
        simulator.snapshot.meta[name] = MetaFile(about.version)
    simulator.sign_snapshot()
    simulator.timestamp.snapshot_meta = MetaFile(simulator.snapshot.version)
    simulator.sign_timestamp()


@pytest.mark.parametrize("digests", [True, False])
def test_T06_a_stored_file_is_not_fetched_again_whatever_is_sought(
    simulator: RepositorySimulator, tmp_path: Path, digests: bool
) -> None:
    """Also if the copy does not verify for it: the snapshot lacks the role that may sign it."""
    simulator.delegate("nightly", "other/*")
    simulator.bump()
    del simulator.snapshot.meta["nightly.json"]
    simulator.sign_snapshot()
    simulator.sign_timestamp()
    if not digests:
        without_digests(simulator)
    repository = simulator.repository()
    refreshing.refresh(repository, tmp_path, simulator.download)
    simulator.requests.clear()
    other = dataclasses.replace(repository, sought="other/file")
    with pytest.raises(MetadataError, match="nightly"):
        refreshing.refresh(other, tmp_path, simulator.download)
    assert simulator.requests == ["metadata/2.root.json", "metadata/timestamp.json"]


@pytest.mark.parametrize("digests", [True, False])
@pytest.mark.parametrize("role", ["snapshot", "targets"])
def test_T06_only_the_damaged_file_of_a_copy_is_fetched_again(
    simulator: RepositorySimulator, tmp_path: Path, role: str, digests: bool
) -> None:
    if not digests:
        without_digests(simulator)
    repository = simulator.repository()
    refreshing.refresh(repository, tmp_path, simulator.download)
    (copy,) = (place(tmp_path) / "copies").iterdir()
    name = trust.file_name(role, getattr(simulator, role).version)
    (copy / name).write_bytes((copy / name).read_bytes().replace(b'"sig":"', b'"sig":"0'))
    simulator.requests.clear()
    assert refreshing.refresh(repository, tmp_path, simulator.download).notes == ()
    assert simulator.requests == ["metadata/2.root.json", "metadata/timestamp.json", name]
    assert loading.load(repository, tmp_path).notes == ()


def test_T06_a_file_signed_with_keys_that_were_replaced_is_fetched_again(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """Where a version alone names the file, as the new one may have the same version."""
    without_digests(simulator)
    repository = simulator.repository()
    refreshing.refresh(repository, tmp_path, simulator.download)
    simulator.targets.version -= 1
    simulator.rotate("targets")
    without_digests(simulator)
    found = refreshing.refresh(repository, tmp_path, simulator.download)
    assert (found.trusted.roles["targets"].version, found.notes) == (simulator.targets.version, ())
    assert loading.load(repository, tmp_path).notes == ()


def test_T06_a_root_that_was_put_beside_the_others_is_removed(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    repository = simulator.repository()
    refreshing.refresh(repository, tmp_path, simulator.download)
    (copy,) = (place(tmp_path) / "copies").iterdir()
    (copy / "metadata" / "2.root.json").write_bytes(b"{}")
    with pytest.raises(MetadataError):
        loading.load(repository, tmp_path)
    refreshing.refresh(repository, tmp_path, simulator.download)
    assert loading.load(repository, tmp_path).notes == ()


# --- a newer package over an updated copy -------------------------------------------------------


Versions = tuple[int, int, int]
"""Of timestamp, snapshot and targets."""


@functools.cache
def of_versions(timestamp: int, snapshot: int, targets: int) -> RepositorySimulator:
    """A repository in which each role has the version that is given, all rightly signed."""
    simulator = RepositorySimulator()
    simulator.targets.version = targets
    simulator.add(release_document(f"b{targets}"))
    simulator.snapshot.version = snapshot
    simulator.timestamp.version = timestamp
    simulator.sign()
    return simulator


def one_content_each(*all_versions: Versions) -> bool:
    """Whether no version of a role has two contents among these."""
    return all(
        not (first[role] == second[role] and first[role + 1 :] != second[role + 1 :])
        for first, second in itertools.combinations(all_versions, 2)
        for role in range(2)
    )


MIXES = [(5, 5, 5), *itertools.product((4, 6), (4, 5, 6), (4, 6))]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(map(str, mix)))
def test_T07_every_mix_of_an_updated_copy_and_a_newer_package(
    tmp_path: Path, mix: Versions
) -> None:
    package, updated = of_versions(5, 5, 5), of_versions(*mix)
    refreshing.refresh(updated.repository(), tmp_path, updated.download)
    repository = package.repository(embedded=package.freeze())
    found = loading.load(repository, tmp_path)
    lower, higher = [sum(each < 5 for each in mix), sum(each > 5 for each in mix)]
    assert found.source == ("updated" if higher and not lower else "embedded")
    assert len(found.notes) == (1 if higher and lower else 0)
    for note in found.notes:
        names = [role for role, version in zip(ROLES, mix, strict=True) if version < 5]
        assert note.startswith("the updated metadata of simulator is not used: this package has")
        assert all(f"{role} 5" in note for role in names)
        assert note.endswith("tsuku-llm repository refresh simulator")
    host = of_versions(7, 7, 7)
    cured = refreshing.refresh(repository, tmp_path, host.download)
    assert (cured.entries[0].release, cured.notes) == ("b7", ())


@pytest.mark.parametrize("served", MIXES, ids=lambda mix: "-".join(map(str, mix)))
def test_T07_a_refresh_is_compared_with_the_package_role_by_role(
    tmp_path: Path, served: Versions
) -> None:
    package, host = of_versions(5, 5, 5), of_versions(*served)
    repository = package.repository(embedded=package.freeze())
    if served == (5, 5, 5):
        assert refreshing.refresh(repository, tmp_path, host.download).source == "embedded"
    elif min(served) < 5 or not one_content_each((5, 5, 5), served):
        refused(repository, tmp_path, host)
    else:
        found = refreshing.refresh(repository, tmp_path, host.download)
        assert tuple(found.trusted.versions[role] for role in ROLES) == served


def test_T08_a_refresh_must_not_be_older_than_package_or_update(tmp_path: Path) -> None:
    """Each has a role that is higher, so no copy is the newer one."""
    package, updated = of_versions(5, 5, 6), of_versions(6, 6, 5)
    refreshing.refresh(updated.repository(), tmp_path, updated.download)
    repository = package.repository(embedded=package.freeze())
    said = refused(repository, tmp_path, of_versions(7, 7, 5))
    assert "versions here (embedded): snapshot 5, targets 6, timestamp 5" in said
    refused(repository, tmp_path, of_versions(5, 5, 6))
    found = refreshing.refresh(repository, tmp_path, of_versions(8, 8, 6).download)
    assert (found.source, found.notes) == ("updated", ())


# --- the comparison itself ----------------------------------------------------------------------

NAMES = st.sampled_from(("timestamp", "snapshot", "targets", "nightly", "stable"))
VERSIONS = st.dictionaries(NAMES, st.integers(1, 4), max_size=5)


@given(VERSIONS, VERSIONS)
def test_T08_a_copy_goes_back_if_any_role_is_lower_or_missing(
    known: dict[str, int], other: dict[str, int]
) -> None:
    names = {role for role in known if role not in other or other[role] < known[role]}
    assert set(trust.setbacks(known, other)) == names


@given(VERSIONS, VERSIONS, VERSIONS)
def test_T08_never_going_back_is_a_partial_order(
    first: dict[str, int], second: dict[str, int], third: dict[str, int]
) -> None:
    def after(known: dict[str, int], other: dict[str, int]) -> bool:
        return not trust.setbacks(known, other)

    assert after(first, first)
    if after(first, second) and after(second, first):
        assert first == second
    if after(first, second) and after(second, third):
        assert after(first, third)


def test_T08_delegated_roles_in_the_snapshot_count_too(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """As delegated roles are named there; no file of theirs is needed for that."""
    simulator.snapshot.meta["nightly.json"] = MetaFile(7)
    simulator.bump()
    repository = simulator.repository(embedded=simulator.freeze())
    for change in (MetaFile(6), None):
        lower = simulator.fork()
        lower.snapshot.meta.pop("nightly.json")
        if change:
            lower.snapshot.meta["nightly.json"] = change
        lower.bump()
        assert "nightly" in refused(repository, tmp_path, lower)
        added = lower.repository()
        refreshing.refresh(added, tmp_path / "other", lower.download)
        assert loading.load(repository, tmp_path / "other").source == "embedded"
        shutil.rmtree(tmp_path / "other")
        forget(tmp_path)
    simulator.snapshot.meta["nightly.json"] = MetaFile(8)
    simulator.bump()
    found = refreshing.refresh(repository, tmp_path, simulator.download)
    assert (found.source, found.trusted.versions["nightly"]) == ("updated", 8)


TRIPLES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
STEPS = st.lists(st.tuples(TRIPLES, st.booleans()), min_size=1, max_size=3)
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))


@settings(deadline=None, max_examples=EXAMPLES)
@given(TRIPLES, STEPS)
def test_T08_no_role_ever_goes_back_in_any_history(
    tmp_path_factory: pytest.TempPathFactory,
    package: Versions,
    steps: list[tuple[Versions, bool]],
) -> None:
    """Hosts of any versions one after the other, now and then with the memory lost."""
    data = tmp_path_factory.mktemp("data")
    embedded = of_versions(*package)
    repository = embedded.repository(embedded=embedded.freeze())
    reached = package
    for served, lost in steps:
        if lost:
            forget(data)
        with_error = False
        try:
            found = refreshing.refresh(repository, data, of_versions(*served).download)
        except (MetadataError, HttpStatusError):  # a file of a version that the host lacks
            with_error = True
            found = loading.load(repository, data)
        now = tuple(found.trusted.versions[role] for role in ROLES)
        assert all(after >= before for before, after in zip(reached, now, strict=True))
        assert now in (reached, served)
        assert not (with_error and now != reached)
        reached = now  # type: ignore[assignment]
    shutil.rmtree(data)


NUMBERS = st.integers(1, 3)


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.tuples(*[NUMBERS] * 4), st.tuples(*[NUMBERS] * 3), NUMBERS, NUMBERS)
def test_T08_the_order_of_the_known_copies_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory,
    snapshots: tuple[int, ...],
    targets: tuple[int, ...],
    one: int,
    another: int,
) -> None:
    """One embedded and one updated, or the other way round: the same hosts are believed.

    ``snapshots`` are those that each timestamp names, ``targets`` those of each snapshot.
    """
    first, second, served = (
        (each, snapshots[each - 1], targets[snapshots[each - 1] - 1]) for each in (one, another, 4)
    )
    outcomes = []
    for here, there in ((first, second), (second, first)):
        data = tmp_path_factory.mktemp("data")
        package, updated, host = of_versions(*here), of_versions(*there), of_versions(*served)
        refreshing.refresh(updated.repository(), data, updated.download)
        forget(data)
        repository = package.repository(embedded=package.freeze())
        try:
            refreshing.refresh(repository, data, host.download)
        except MetadataError:
            outcomes.append(False)
        else:
            outcomes.append(True)
        loaded = loading.load(repository, data).trusted.versions
        assert all(loaded[role] >= version for role, version in zip(ROLES, here, strict=True))
        shutil.rmtree(data)
    known = [max(pair) for pair in zip(first, second, strict=True)]
    assert outcomes == [all(a >= b for a, b in zip(served, known, strict=True))] * 2


# --- recovery ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [True, False])
def test_T08_new_online_keys_may_continue_from_the_old_versions(
    simulator: RepositorySimulator, tmp_path: Path, lost: bool
) -> None:
    """TUF 5.3.11: what was fast-forwarded under keys that were replaced does not count."""
    repository = simulator.repository(embedded=simulator.freeze())
    fast = simulator.fork()
    fast.timestamp.version = fast.snapshot.version = 2**53 - 2
    fast.publish(release_document("b3"))
    refreshing.refresh(repository, tmp_path, fast.download)
    if lost:
        forget(tmp_path)
    assert "older" in refused(repository, tmp_path, simulator)
    cured = simulator.fork()
    cured.rotate("timestamp", "snapshot")
    found = refreshing.refresh(repository, tmp_path, cured.download)
    assert found.source == "updated"
    assert found.trusted.versions["timestamp"] == 3
    assert found.notes == ()


def test_T08_what_the_package_has_under_keys_that_were_replaced_does_not_count(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    fast = simulator.fork()
    fast.timestamp.version = fast.snapshot.version = 2**53 - 2
    fast.bump()
    repository = fast.repository(embedded=fast.freeze())
    cured = fast.fork()
    cured.timestamp.version = cured.snapshot.version = 2
    cured.rotate("timestamp", "snapshot")
    refreshing.refresh(repository, tmp_path, cured.download)
    found = loading.load(repository, tmp_path)
    assert (found.source, found.trusted.versions["timestamp"], found.notes) == ("updated", 3, ())


def test_T08_new_targets_keys_do_not_let_the_online_roles_go_back(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    later = simulator.fork()
    for _ in range(3):
        later.bump()
    repository = later.repository(embedded=later.freeze())
    simulator.rotate("targets")
    said = refused(repository, tmp_path, simulator)
    assert "older than what this machine has" in said


def test_T06_a_newer_root_with_the_same_roles_changes_nothing(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    repository = simulator.repository(embedded=simulator.freeze())
    simulator.root.version += 1
    simulator.root.unrecognized_fields["note"] = "the same keys"
    simulator.sign_root()
    found = refreshing.refresh(repository, tmp_path, simulator.download)
    assert (found.source, found.notes) == ("embedded", ())
    roots = place(tmp_path) / "roots"
    assert json.loads((roots / "2.root.json").read_bytes())["signed"]["version"] == 2
