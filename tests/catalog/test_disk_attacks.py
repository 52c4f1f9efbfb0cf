"""What an attacker may leave on the disk or get signed, and what must come of it: nothing."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.repository import URL, RepositorySimulator, release_document

from tsuku_llm.catalog import loading, refreshing, repositories
from tsuku_llm.catalog.copies import FolderCopy
from tsuku_llm.ground.errors import MetadataError, TsukuError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes of a POSIX system")


@pytest.fixture
def simulator() -> RepositorySimulator:
    simulator = RepositorySimulator()
    simulator.publish(release_document("b1"), release_document("b2", version="0.2.0"))
    return simulator


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """A fifo that is opened blocks for ever; then the test must fail and not hang."""
    signal.signal(signal.SIGALRM, _waited)
    signal.alarm(60)
    yield
    signal.alarm(0)


def _waited(*_: object) -> None:
    raise AssertionError("it waits for something that never comes")


def refresh(simulator: RepositorySimulator, data: Path) -> loading.Catalog:
    return refreshing.refresh(simulator.repository(), data, simulator.download, alone=True)


def newest(found: loading.Catalog) -> str:
    return found.releases("stable")[0].release


def everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- what must not be forgotten -------------------------------------------------------------


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    elsewhere = next(each for each in path.parents if each.name == "data").parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    moved = elsewhere / path.name
    shutil.move(path, moved)
    path.symlink_to(moved)


def folder(path: Path) -> None:
    path.unlink()
    (path / "x").mkdir(parents=True)


def huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b'{"signed": ' + b"[" * 100_000)


def foreign(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give away")
    os.chown(path, 12345, 12345)


def unreadable(path: Path) -> None:
    path.chmod(0)


DAMAGES = (pipe, endless, link, folder, huge, empty, garbage, foreign, unreadable)
STATE = ("seen.json", "roots/2.root.json")


@pytest.mark.parametrize("name", STATE)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_M30_a_damaged_memory_is_repaired(
    simulator: RepositorySimulator, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    simulator.rotate("targets")
    refresh(simulator, tmp_path / "data")
    damage(tmp_path / "data" / "metadata" / "simulator" / name)
    outside = everything(tmp_path / "elsewhere")
    simulator.publish(release_document("b3"))
    assert newest(refresh(simulator, tmp_path / "data")) == "b3"
    assert everything(tmp_path / "elsewhere") == outside


def test_M30_a_linked_folder_of_roots_is_not_followed(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    refresh(simulator, tmp_path / "data")
    place = tmp_path / "data" / "metadata" / "simulator" / "roots"
    shutil.rmtree(place)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place.symlink_to(elsewhere)
    simulator.publish(release_document("b3"))
    assert newest(refresh(simulator, tmp_path / "data")) == "b3"
    assert everything(elsewhere) == {}


def test_M12_without_its_memory_a_refresh_accepts_no_older_version(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    old = simulator.fork()
    simulator.publish(release_document("b3"))
    refresh(simulator, tmp_path)
    pipe(tmp_path / "metadata" / "simulator" / "seen.json")
    with pytest.raises(MetadataError, match="older"):
        refresh(old, tmp_path)
    assert newest(loading.load(simulator.repository(), tmp_path)) == "b3"


def test_files_left_by_a_crash_are_removed(simulator: RepositorySimulator, tmp_path: Path) -> None:
    refresh(simulator, tmp_path)
    place = tmp_path / "metadata" / "simulator"
    before = sorted(everything(place))
    for name in (".seen.json", "roots/.2.root.json"):
        (place / f"{name}.0123456789abcdef.tmp").write_bytes(b"half")
    refresh(simulator, tmp_path)
    assert sorted(everything(place)) == before


def test_S16_foreign_files_among_the_roots_keep_their_content(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    refresh(simulator, tmp_path)
    repository = tmp_path / "metadata" / "simulator"
    roots = repository / "roots"
    mine = [roots / "notes.json", roots / "5.root.json" / "p", roots / "photos.json" / "p"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    refresh(simulator, tmp_path)
    assert list(everything(repository).values()).count(b"mine") == len(mine)
    shutil.rmtree(roots)
    roots.write_bytes(b"mine too")
    refresh(simulator, tmp_path)
    assert b"mine too" in everything(repository).values()


# --- what the right keys may sign -----------------------------------------------------------


@pytest.mark.parametrize(
    "custom", [None, [], "stable", {"release": "b9"}, {"channels": "stable"}, 5]
)
def test_newer_metadata_counts_despite_an_unreadable_entry(
    simulator: RepositorySimulator, tmp_path: Path, custom: object
) -> None:
    """Otherwise a publisher's new format, or mistake, would end every older program."""
    refresh(simulator, tmp_path)
    simulator.add_target("releases/b9.json", b"{}", custom)
    simulator.bump()
    for _ in range(2):
        assert "b9 is skipped" in refresh(simulator, tmp_path).notes[0]
        assert newest(loading.load(simulator.repository(), tmp_path)) == "b2"
    del simulator.targets.targets["releases/b9.json"]
    simulator.publish(release_document("b3"))
    assert newest(refresh(simulator, tmp_path)) == "b3"


def test_an_updated_copy_of_a_newer_program_is_used(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    embedded = simulator.freeze()
    repository = simulator.repository(embedded=embedded)
    simulator.publish(release_document("b3"))
    refreshing.refresh(repository, tmp_path, simulator.download)
    simulator.add_target("releases/b9.json", b"{}", {"format": 2})
    simulator.sign()
    (copy,) = (tmp_path / "metadata" / "simulator" / "copies").iterdir()
    for name in ("timestamp", "3.snapshot", "3.targets"):
        (copy / f"metadata/{name}.json").write_bytes(simulator.files[f"metadata/{name}.json"])
    found = loading.load(repository, tmp_path)
    assert (found.source, newest(found)) == ("updated", "b3")
    assert "b9 is skipped" in found.notes[0]


NAMES = {
    "nul": "a\x00b",
    "long": "a" * 300,
    "deep": "d/" * 120 + "x",
    "nothing": "",
    "folder": "releases/",
    "double": "a//b",
    "dot": "a/./b",
    "up": "a/../../b",
    "absolute": "/tmp/x",  # noqa: S108 - a name that must not be written
    "backslash": "a\\..\\b",
    "drive": "C:/x",
    "stream": "a:b",
    "query": "a?b",
    "fragment": "a#b",
    "escaped": "%2e%2e/b",
    "newline": "a\nb",
    "escape": "a\x1b[2Jb",
    "unicode": "releases/\u212a1.json",
    "space": "a /b ",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_target_with_a_hostile_name_is_refused(
    simulator: RepositorySimulator, tmp_path: Path, name: str
) -> None:
    data = tmp_path / "data"
    refresh(simulator, data)
    before = everything(tmp_path)
    simulator.add_target(NAMES[name], b"hostile", None)
    simulator.bump()
    with pytest.raises(TsukuError) as caught:
        refresh(simulator, data)
    assert caught.value.exit_code == 5
    assert all(each.isprintable() for each in (caught.value.message, *caught.value.facts))
    kept = {name: content for name, content in before.items() if not name.endswith("seen.json")}
    assert kept.items() <= everything(tmp_path).items()
    assert b"hostile" not in everything(tmp_path).values()
    assert newest(loading.load(simulator.repository(), data)) == "b2"


def test_a_root_with_the_highest_version_that_can_be_signed(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    simulator.root.version = 2**53 - 1
    simulator.sign_root()
    root = simulator.files[f"metadata/{2**53 - 1}.root.json"]
    added = repositories.add_repository(tmp_path, "company", URL, root)
    assert newest(refreshing.refresh(added, tmp_path, simulator.download)) == "b2"
    assert newest(loading.load(added, tmp_path)) == "b2"


def test_a_repository_of_many_roots(simulator: RepositorySimulator, tmp_path: Path) -> None:
    """Keys changed every week for years, and a client that was pinned at the first root."""
    for number in range(200):
        simulator.root.version += 1
        simulator.root.unrecognized_fields["week"] = number
        simulator.sign_root()
    found = refresh(simulator, tmp_path)
    assert found.trusted.roles["root"].version == 201
    requests = len(simulator.requests)
    refresh(simulator, tmp_path)
    assert len(simulator.requests) == requests + 2  # the next root and the timestamp


def test_a_copy_whose_release_file_is_a_pipe(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    found = refresh(simulator, tmp_path)
    assert isinstance(found.copy, FolderCopy)
    path = found.copy.folder / found.trusted.targets["releases/b2.json"].name
    pipe(path)
    with pytest.raises(TsukuError) as caught:
        found.read(found.entry("b2"))
    assert caught.value.exit_code == 6
    assert str(path) in json.dumps(caught.value.facts)
