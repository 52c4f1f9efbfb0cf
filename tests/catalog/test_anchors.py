"""The newest embedded root is the anchor, and a root that was verified once stays what it was."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.packaged import packaged_program
from support.repository import FrozenCopy, RepositorySimulator, release_document, signer

from tsuku_llm import trust
from tsuku_llm.catalog import embedded, loading, refreshing, repositories
from tsuku_llm.ground.errors import MetadataError

MANIFESTS = Path(__file__).parents[2] / "manifests"
EVERY_ROLE = ("root", "targets", "snapshot", "timestamp")
ROTATIONS = 5
FORKS = {"lower": 3, "same": 1 + ROTATIONS, "higher": 2 + ROTATIONS, "much higher": 20}


def rotated(simulator: RepositorySimulator, times: int, generation: str) -> RepositorySimulator:
    """The repository after rotations of all keys; the one that is given stays as it is."""
    later = simulator.fork()
    for number in range(times):
        later.rotate(*EVERY_ROLE, generation=f"{generation} {number}")
    return later


def forked(first: RepositorySimulator, version: int) -> RepositorySimulator:
    """What the holders of the first root's keys can make: another chain, and newer releases."""
    evil = rotated(first, version - 1, "evil")
    for role in ("targets", "snapshot", "timestamp"):
        getattr(evil, role).version = 100
    evil.publish({**release_document("b99999"), "publisher": "EVIL"})
    return evil


@pytest.fixture
def first() -> RepositorySimulator:
    """The repository under its first root."""
    simulator = RepositorySimulator()
    simulator.publish(release_document("b1"))
    return simulator


@pytest.fixture
def honest(first: RepositorySimulator) -> RepositorySimulator:
    """The repository as a later package embeds it."""
    return rotated(first, ROTATIONS, "honest")


def newest(found: loading.Catalog) -> str:
    return found.entries[0].release


def text(error: MetadataError) -> str:
    return ": ".join((error.message, *error.facts))


def place(data: Path, name: str = "simulator") -> Path:
    return data / "metadata" / name


def kept_copy(data: Path) -> Path:
    (copy,) = (place(data) / "copies").iterdir()
    return copy


# --- the package's own chain ------------------------------------------------------------------


def test_every_root_of_the_package_is_in_one_chain() -> None:
    """A gap would leave the roots after it unknown, and the anchor behind."""
    files = {int(path.name.split(".")[0]) for path in MANIFESTS.glob("metadata/*.root.json")}
    pinned = embedded.read("metadata/1.root.json")
    assert pinned
    copy = FrozenCopy({})
    copy.read = embedded.read  # type: ignore[method-assign]
    assert files == set(range(1, trust.newest_root(copy, pinned).version + 1))


def test_T01_a_package_whose_chain_is_broken_is_refused(
    first: RepositorySimulator, honest: RepositorySimulator, tmp_path: Path
) -> None:
    broken = honest.freeze()
    broken.files["metadata/3.root.json"] = forked(first, 3).files["metadata/3.root.json"]
    with pytest.raises(MetadataError, match="root"):
        loading.load(honest.repository(embedded=broken), tmp_path)


# --- keys that were replaced ------------------------------------------------------------------


@pytest.mark.parametrize("version", FORKS.values(), ids=FORKS)
def test_T01_replaced_keys_cannot_sign_a_first_refresh(
    first: RepositorySimulator, honest: RepositorySimulator, tmp_path: Path, version: int
) -> None:
    repository = honest.repository(embedded=honest.freeze())
    evil = forked(first, version)
    for _ in range(2):
        with pytest.raises(MetadataError):
            refreshing.refresh(repository, tmp_path, evil.download)
        found = loading.load(repository, tmp_path)
        assert (found.source, newest(found), found.notes) == ("embedded", "b1", ())
    honest.publish(release_document("b2"))
    assert newest(refreshing.refresh(repository, tmp_path, honest.download)) == "b2"


@pytest.mark.parametrize("version", [1 + ROTATIONS, 2 + ROTATIONS])
def test_T01_a_host_with_another_root_of_a_known_version_is_named(
    first: RepositorySimulator, honest: RepositorySimulator, tmp_path: Path, version: int
) -> None:
    repository = honest.repository(embedded=honest.freeze())
    with pytest.raises(MetadataError, match="the served root 6 is not the root 6") as caught:
        refreshing.refresh(repository, tmp_path, forked(first, version).download)
    assert len([fact for fact in caught.value.facts if "sha256" in fact]) == 2
    assert "publisher" in caught.value.hint


def test_T01_an_update_starts_at_the_newest_root_of_the_package(
    honest: RepositorySimulator, tmp_path: Path
) -> None:
    repository = honest.repository(embedded=honest.freeze())
    honest.bump()
    refreshing.refresh(repository, tmp_path, honest.download)
    assert honest.requests[:2] == ["metadata/7.root.json", "metadata/timestamp.json"]
    roots = {path.name for path in kept_copy(tmp_path).glob("metadata/*.root.json")}
    assert roots == {f"{version}.root.json" for version in range(1, 7)}, "as older packages need"


@pytest.mark.skipif(os.name != "posix", reason="the package is made of links")
@pytest.mark.parametrize("version", FORKS.values(), ids=FORKS)
def test_T01_through_the_command_line(
    first: RepositorySimulator, honest: RepositorySimulator, tmp_path: Path, version: int
) -> None:
    run = packaged_program(tmp_path, honest, forked(first, version))
    refused = run("repository", "refresh")
    assert (refused.code, "EVIL" in refused.stdout + refused.stderr) == (5, False)
    planned = run("install", "--dry-run")
    assert planned.code == 0, planned.stderr
    assert "of b1, built by simulator" in planned.stdout


# --- other bytes for a known root -------------------------------------------------------------


def foreign_root(simulator: RepositorySimulator, version: int) -> bytes:
    """Another root of that version, signed by enough keys of the one before and its own."""
    other = simulator.fork()
    other.root.version = version - 1
    other.rotate("timestamp", generation="other")
    return other.files[f"metadata/{version}.root.json"]


def test_T02_an_updated_copy_with_another_known_root_is_skipped(
    first: RepositorySimulator, honest: RepositorySimulator, tmp_path: Path
) -> None:
    """An older package, which knew the first root only, was led to another chain."""
    evil = forked(first, 3)
    refreshing.refresh(first.repository(embedded=first.freeze()), tmp_path, evil.download)
    repository = honest.repository(embedded=honest.freeze())
    found = loading.load(repository, tmp_path)
    assert (found.source, newest(found)) == ("embedded", "b1")
    (note,) = found.notes
    assert "its root 2 is not the root 2 that this machine knows" in note
    assert "tsuku-llm repository refresh simulator" in note
    honest.publish(release_document("b2"))
    cured = refreshing.refresh(repository, tmp_path, honest.download)
    assert (newest(cured), cured.notes) == ("b2", ())


@pytest.mark.parametrize("damage", ["older keys", "no copy", "no name"])
def test_T02_a_refresh_ends_the_note_even_if_the_host_has_nothing_newer_than_the_package(
    first: RepositorySimulator, honest: RepositorySimulator, tmp_path: Path, damage: str
) -> None:
    refreshing.refresh(first.repository(), tmp_path, first.download)
    if damage == "no copy":
        shutil.rmtree(kept_copy(tmp_path))
    elif damage == "no name":
        (place(tmp_path) / "current").write_bytes(b"../..")
    repository = honest.repository(embedded=honest.freeze())
    (note,) = loading.load(repository, tmp_path).notes
    assert note.endswith("tsuku-llm repository refresh simulator")
    refreshing.refresh(repository, tmp_path, honest.download)
    found = loading.load(repository, tmp_path)
    assert (found.source, found.notes) == ("embedded", ())


def test_T02_one_changed_byte_in_a_known_root_of_the_updated_copy_is_noticed(
    honest: RepositorySimulator, tmp_path: Path
) -> None:
    """Also below the anchor, where no signature is looked at any more."""
    repository = honest.repository(embedded=honest.freeze())
    honest.publish(release_document("b2"))
    refreshing.refresh(repository, tmp_path, honest.download)
    root = kept_copy(tmp_path) / "metadata" / "2.root.json"
    root.write_bytes(root.read_bytes() + b"\n")
    found = loading.load(repository, tmp_path)
    assert found.source == "embedded"
    assert "its root 2 is not" in found.notes[0]


def test_T02_other_roots_in_the_folder_of_known_roots_are_replaced(
    first: RepositorySimulator, honest: RepositorySimulator, tmp_path: Path
) -> None:
    evil = forked(first, 20)
    roots = place(tmp_path) / "roots"
    roots.mkdir(parents=True)
    for version in range(1, 21):
        name = f"{version}.root.json"
        (roots / name).write_bytes(evil.files[f"metadata/{name}"])
    repository = honest.repository(embedded=honest.freeze())
    honest.publish(release_document("b2"))
    assert newest(refreshing.refresh(repository, tmp_path, honest.download)) == "b2"
    for version in range(1, 2 + ROTATIONS):
        name = f"{version}.root.json"
        assert (roots / name).read_bytes() == honest.files[f"metadata/{name}"]


# --- a repository that the user added ---------------------------------------------------------


def lose_seen(data: Path) -> None:
    (place(data) / "seen.json").unlink()


def lose_copies(data: Path) -> None:
    shutil.rmtree(place(data) / "copies")
    (place(data) / "current").unlink()


def lose_both(data: Path) -> None:
    lose_seen(data)
    lose_copies(data)


def damage_roots(data: Path) -> None:
    """The updated copy has them as well."""
    lose_seen(data)
    for path in (place(data) / "roots").iterdir():
        path.write_bytes(path.read_bytes()[:-9])


def damage_seen(data: Path) -> None:
    lose_copies(data)
    (place(data) / "seen.json").write_bytes(b"{}")


LOSSES = (lose_seen, lose_copies, lose_both, damage_roots, damage_seen)


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_T03_a_root_that_was_verified_once_cannot_change(
    first: RepositorySimulator, tmp_path: Path, loss: Callable[[Path], None], version: int
) -> None:
    repository = first.repository()
    later = rotated(first, 2, "honest")
    refreshing.refresh(repository, tmp_path, later.download)
    loss(tmp_path)
    with pytest.raises(MetadataError):
        refreshing.refresh(repository, tmp_path, forked(first, version).download)
    later.publish(release_document("b2"))
    found = refreshing.refresh(repository, tmp_path, later.download)
    assert (newest(found), found.notes) == ("b2", ())
    assert found.trusted.roles["root"].version == 3


def test_T03_a_root_stays_known_even_if_the_rest_was_refused(
    first: RepositorySimulator, tmp_path: Path
) -> None:
    repository = first.repository()
    refreshing.refresh(repository, tmp_path, first.download)
    later = rotated(first, 1, "honest")
    later.signers["timestamp"] = [signer("a mistake")]
    later.sign_timestamp()
    with pytest.raises(MetadataError):
        refreshing.refresh(repository, tmp_path, later.download)
    lose_seen(tmp_path)
    with pytest.raises(MetadataError, match="the served root 2 is not"):
        refreshing.refresh(repository, tmp_path, forked(first, 2).download)
    found = loading.load(repository, tmp_path)
    assert (newest(found), found.notes) == ("b1", ()), "what was trusted before still is"


def test_T03_an_updated_copy_with_another_known_root_is_skipped(
    first: RepositorySimulator, tmp_path: Path
) -> None:
    repository = first.repository()
    refreshing.refresh(repository, tmp_path, rotated(first, 2, "honest").download)
    root = kept_copy(tmp_path) / "metadata" / "2.root.json"
    root.write_bytes(foreign_root(first, 2))
    with pytest.raises(MetadataError, match="no valid metadata") as caught:
        loading.load(repository, tmp_path)
    assert "its root 2 is not" in text(caught.value)


@pytest.mark.skipif(os.name != "posix", reason="links and pipes of a POSIX system")
@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "file for the folder"])
def test_T03_a_pipe_folder_or_link_in_the_place_of_a_known_root_is_replaced(
    first: RepositorySimulator, tmp_path: Path, kind: str
) -> None:
    repository = first.repository()
    refreshing.refresh(repository, tmp_path, rotated(first, 1, "honest").download)
    roots = place(tmp_path) / "roots"
    (roots / "2.root.json").unlink()
    if kind == "pipe":
        os.mkfifo(roots / "2.root.json")
    elif kind == "folder":
        (roots / "2.root.json" / "x").mkdir(parents=True)
    elif kind == "link":
        (roots / "2.root.json").symlink_to("/dev/zero")
    else:
        shutil.rmtree(roots)
        roots.touch()
    found = refreshing.refresh(
        repository, tmp_path, rotated(first, 1, "honest").download, alone=True
    )
    assert found.trusted.roles["root"].version == 2
    assert (roots / "2.root.json").is_file()


def test_T03_a_pinned_root_that_was_replaced_is_refused_until_it_is_added_again(
    first: RepositorySimulator, tmp_path: Path
) -> None:
    refreshing.refresh(first.install(tmp_path, "company"), tmp_path, first.download)
    other = RepositorySimulator(name="other")
    other.publish(release_document("b9"))
    (place(tmp_path, "company") / "root.json").write_bytes(other.pinned_root)
    swapped = repositories.repository(tmp_path, "company")
    for ask in (
        lambda: loading.load(swapped, tmp_path),
        lambda: refreshing.refresh(swapped, tmp_path, other.download),
    ):
        with pytest.raises(MetadataError, match="the pinned root 1 is not the root 1") as caught:
            ask()
        assert "tsuku-llm repository remove company" in caught.value.hint
    repositories.remove_repository(tmp_path, "company")
    found = refreshing.refresh(other.install(tmp_path, "company"), tmp_path, other.download)
    assert newest(found) == "b9"


def test_T03_a_damaged_known_root_does_not_count_against_the_pinned_one(
    first: RepositorySimulator, tmp_path: Path
) -> None:
    repository = first.install(tmp_path, "company")
    refreshing.refresh(repository, tmp_path, first.download)
    kept = place(tmp_path, "company") / "roots" / "1.root.json"
    kept.write_bytes(b"{}")
    assert newest(loading.load(repository, tmp_path)) == "b1"
    refreshing.refresh(repository, tmp_path, first.download)
    assert kept.read_bytes() == first.pinned_root


def test_T03_a_repository_that_is_added_again_starts_at_its_new_root(
    first: RepositorySimulator, tmp_path: Path
) -> None:
    added = first.install(tmp_path, "company")
    refreshing.refresh(added, tmp_path, rotated(first, 1, "honest").download)
    repositories.remove_repository(tmp_path, "company")
    stranger = RepositorySimulator(name="stranger")
    stranger.publish(release_document("b5"))
    added = stranger.install(tmp_path, "company")
    assert newest(refreshing.refresh(added, tmp_path, stranger.download)) == "b5"


# --- an updated copy that an older package kept -----------------------------------------------


def test_T04_the_copy_of_an_older_package_is_used_while_its_keys_are_valid(
    first: RepositorySimulator, tmp_path: Path
) -> None:
    """The newer package has a newer root, of new root keys only, and an older targets."""
    package = first.fork()
    package.root.version += 1
    before = package.signers["root"]
    package.signers["root"] = [signer(f"new {number}") for number in (1, 2, 3)]
    package.adopt_signers()
    package.sign_root([*before, *package.signers["root"]])
    first.publish(release_document("b2"))
    refreshing.refresh(first.repository(embedded=first.fork().freeze()), tmp_path, first.download)
    first.publish(release_document("b3"))
    refreshing.refresh(first.repository(), tmp_path, first.download)
    found = loading.load(package.repository(embedded=package.freeze()), tmp_path)
    assert (found.source, newest(found), found.notes) == ("updated", "b3", ())
    assert found.trusted.roles["root"].version == 2


@pytest.mark.parametrize("role", ["targets", "timestamp", "snapshot"])
def test_T04_the_copy_of_an_older_package_is_skipped_if_its_keys_were_replaced(
    first: RepositorySimulator, tmp_path: Path, role: str
) -> None:
    package = first.fork()
    package.rotate(role)
    for _ in range(5):
        first.publish(release_document("b2"))
    refreshing.refresh(first.repository(), tmp_path, first.download)
    repository = package.repository(embedded=package.freeze())
    found = loading.load(repository, tmp_path)
    assert (found.source, newest(found)) == ("embedded", "b1")
    (note,) = found.notes
    assert f"the {role} metadata is not trusted" in note
    assert "its roots end before root 2" in note
    assert note.endswith("tsuku-llm repository refresh simulator")
    for signed in (package.targets, package.snapshot, package.timestamp):
        signed.version = 10
    package.publish(release_document("b3"))
    cured = refreshing.refresh(repository, tmp_path, package.download)
    assert (newest(cured), cured.notes) == ("b3", ())
