"""What this program did not make stays, and what it made goes."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stored import fill, install, make_receipt, snapshot

from tsuku_llm.ground.errors import CorruptStore, LockTimeout, StoreError, UnsafeLocation
from tsuku_llm.store.store import Store

POSIX = pytest.mark.skipif(os.name != "posix", reason="modes and links")
MARKER = ".tsuku-llm-store"
FOLDERS = ("versions", "staging", "partials", "locks")


def precious(folder: Path) -> dict[str, tuple[int, str]]:
    """Fill a folder of the user's with what a sweep could take for a leftover."""
    (folder / "photos").mkdir(parents=True)
    for name in ("photos/1.jpg", "thesis.odt", f"{'a' * 64}.part", "notes.pid", ".DS_Store"):
        (folder / name).write_bytes(b"mine")
        os.utime(folder / name, (1_000_000, 1_000_000))
    return snapshot(folder)


CHANGES: dict[str, Callable[[Store], object]] = {
    "sweep": Store.sweep,
    "prune": lambda store: (store.sweep(), store.prune()),
    "install": lambda store: (store.sweep(), install(store, "b300")),
    "use": lambda store: (store.sweep(), store.use(store.installed()[0])),
    "staging": lambda store: store.staging().__enter__(),
    "remove": lambda store: (store.sweep(), [store.remove(name) for name in store.ids()]),
}


@POSIX
@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("change", CHANGES)
def test_S01_a_linked_folder_is_refused_and_nothing_in_it_is_changed(
    store: Store, tmp_path: Path, name: str, change: str
) -> None:
    install(store, "b100")
    install(store, "b200")
    store.partials.mkdir(exist_ok=True)
    before = precious(tmp_path / "mine")
    shutil.move(store.data / name, tmp_path / f"old-{name}")
    (store.data / name).symlink_to(tmp_path / "mine")
    if name == "staging" or change != "staging":
        with pytest.raises(CorruptStore, match=f"{name} is not a folder but a link") as caught:
            CHANGES[change](store)
        assert caught.value.exit_code == 6
        assert "TSUKU_HOME" in caught.value.hint
    assert snapshot(tmp_path / "mine") == before


@POSIX
@pytest.mark.parametrize("name", FOLDERS)
def test_S16_foreign_files_stay_and_are_named(store: Store, name: str) -> None:
    installed = install(store)
    store.partials.mkdir(exist_ok=True)
    folder = store.data / name
    taken = {path.name for path in folder.iterdir()}
    precious(folder)
    if name == "partials":
        (folder / f"{'a' * 64}.part").unlink()  # that one is ours by all that can be seen
    mine = {path.name for path in folder.iterdir()} - taken
    before = {each: snapshot(folder / each) for each in mine}
    store.sweep()
    assert store.prune().removed == ()
    store.remove(installed.id)
    store.sweep()
    assert {each: snapshot(folder / each) for each in mine} == before
    assert {path for path in store.foreign() if path.parent == folder} == {
        folder / each for each in mine
    }


def test_S16_a_users_folder_with_the_name_of_a_version_is_not_a_version(store: Store) -> None:
    install(store)
    photos = store.data / "versions" / "summer-photos-0123456789ab"
    photos.mkdir()
    (photos / "1.jpg").write_bytes(b"mine")
    assert store.damaged() == {}
    assert store.prune().removed == ()
    assert (photos / "1.jpg").read_bytes() == b"mine"
    assert photos in store.foreign()


@pytest.mark.parametrize("receipt", [True, False], ids=["receipt", "fingerprint"])
def test_S16_foreign_files_in_a_version_are_set_aside(store: Store, receipt: bool) -> None:
    installed = install(store)
    (installed.tree / "share" / "mine").mkdir()
    (installed.tree / "share" / "mine" / "thesis.odt").write_bytes(b"mine")
    (installed.path / "notes.txt").write_bytes(b"mine")
    if not receipt:
        (installed.path / "receipt.json").write_bytes(b"{")
    store.remove(installed.id)
    assert not installed.path.exists()
    (aside,) = (store.data / "set-aside").iterdir()
    assert sorted(path.name for path in aside.rglob("*") if path.is_file()) == [
        "notes.txt",
        "thesis.odt",
    ]
    assert aside in store.foreign()


@POSIX
def test_S16_a_foreign_folder_too_deep_for_a_path_is_set_aside_with_its_version(
    store: Store,
) -> None:
    installed = install(store)
    (installed.tree / "mine").mkdir()
    here = os.open(installed.tree / "mine", os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    store.remove(installed.id)
    assert not installed.path.exists()
    (aside,) = (store.data / "set-aside").iterdir()
    assert (aside / installed.id / "tree" / "mine" / ("d" * 250)).is_dir()
    assert os.fstat(here).st_nlink > 0  # the innermost folder is still there
    os.close(here)


@pytest.mark.parametrize("name", [".DS_Store", ".nfs0000000001", ".", "a.b"])
def test_S02_a_dot_file_next_to_a_running_install_does_not_end_it(store: Store, name: str) -> None:
    install(store)
    with store.staging() as staging:
        (store.data / "staging" / f"{name}x").write_bytes(b"")
        fill(staging.tree)
        other = Store(store.data)
        other.sweep()
        other.prune()
        assert store.commit(staging, make_receipt("b200")).id
    assert (store.data / "staging" / f"{name}x").exists()


@pytest.mark.parametrize("name", [".DS_Store", "._x", ".part", "a b.part"])
def test_S03_a_dot_file_among_the_downloads_stays(store: Store, name: str) -> None:
    install(store)
    (store.partials / name).write_bytes(b"")
    os.utime(store.partials / name, (0, 0))
    store.sweep()
    store.prune()
    store.drop_downloads(["", "a" * 64])
    assert (store.partials / name).exists()


def test_S04_the_folder_of_an_interrupted_pip_is_removed_unless_pip_runs(store: Store) -> None:
    install(store)
    scratch = store.partials / f"{'a' * 64}.index"
    (scratch / "wheel").mkdir(parents=True)
    (scratch / "wheel" / "x.whl").write_bytes(b"half")
    with store.lock("a" * 64):
        Store(store.data).sweep()
        assert scratch.exists()
    store.sweep()
    assert not scratch.exists()


@POSIX
def test_S06_only_the_owner_can_take_a_lock(store: Store) -> None:
    install(store)
    with store.lock("b" * 64), store.staging():
        paths = [*store.data.glob("locks/*.lock"), *store.data.glob("staging/*.lock")]
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}


@pytest.mark.skipif(sys.platform == "win32", reason="flock")
def test_S06_a_lock_holder_without_a_note_is_not_named(store: Store) -> None:
    import fcntl  # noqa: PLC0415  # Windows lacks it

    told: list[object] = []
    install(store)
    with (store.data / "locks" / "active.lock").open("rb") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        waiting = Store(store.data, lock_timeout=0.01, on_wait=told.append)
        with pytest.raises(LockTimeout) as caught, waiting.lock("active"):
            pass
    assert told == [None]
    assert "tsuku-llm" not in caught.value.message
    assert "fuser" in caught.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="locks of open files are Linux's")
def test_S06_a_user_who_can_only_read_a_version_cannot_block_servers(store: Store) -> None:
    """As ``flock -x FILE`` does, which any user may run on root's store."""
    import fcntl  # noqa: PLC0415  # Windows lacks it

    installed = install(store)
    with (installed.path / "in-use").open("rb") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="Bad file descriptor"):
            fcntl.fcntl(
                stranger, fcntl.F_OFD_SETLK, fcntl.F_WRLCK.to_bytes(2, "little") + bytes(30)
            )
        with store.hold(installed) as descriptor:
            assert descriptor is not None


def test_S20_locks_of_removed_versions_are_removed(store: Store) -> None:
    one, two = install(store, "b100"), install(store, "b200")
    for name in (one.id, two.id, "a" * 64, "metadata-other"):
        with store.lock(name):
            pass
    with store.lock("b" * 64):
        store.remove(one.id)
        names = {path.name for path in (store.data / "locks").iterdir()}
        assert names == {"active.lock", f"{two.id}.lock", f"{'b' * 64}.lock", f"{'b' * 64}.pid"}
    store.sweep()
    names = {path.name for path in (store.data / "locks").iterdir()}
    assert names == {"active.lock", f"{two.id}.lock"}


@POSIX
def test_S20_a_removed_lock_file_never_admits_two_holders(store: Store) -> None:
    """The owner of a removed file and the owner of the new one must not both hold the lock."""
    install(store)
    with store.lock("a" * 64):
        Store(store.data).sweep()
        with pytest.raises(LockTimeout), Store(store.data, lock_timeout=0).lock("a" * 64):
            pass


def test_S22_a_new_store_is_marked_and_one_that_lost_its_marker_is_refused(store: Store) -> None:
    install(store)
    marker = store.data / MARKER
    assert marker.is_file()
    marker.unlink()
    (store.data / "thesis.odt").write_bytes(b"mine")
    before = snapshot(store.data)
    with pytest.raises(CorruptStore, match="not made by tsuku-llm") as caught:
        Store(store.data).sweep()
    assert snapshot(store.data) == before
    assert caught.value.hint.endswith(f"touch {marker}")
    marker.touch()
    later = Store(store.data)  # the next command: one asks once
    later.sweep()
    install(later, "b200")
    assert store.foreign() == (store.data / "thesis.odt",)


@pytest.mark.parametrize("content", [(), ("model.gguf",), ("lost+found/",)])
def test_S22_a_folder_without_our_names_can_be_used(store: Store, content: tuple[str, ...]) -> None:
    store.data.mkdir()
    for name in content:
        (store.data / name).mkdir() if name.endswith("/") else (store.data / name).touch()
    store.sweep()
    install(store)
    store.prune()
    assert {path.name for path in store.foreign()} == {name.rstrip("/") for name in content}


@pytest.mark.parametrize("name", [*FOLDERS, "metadata"])
def test_S22_another_programs_folder_is_never_adopted(store: Store, name: str) -> None:
    before = precious(store.data / name)
    for change in (Store.sweep, install):
        with pytest.raises(CorruptStore, match="not made by tsuku-llm") as caught:
            change(store)
        assert caught.value.exit_code == 6
    assert snapshot(store.data / name) == before
    assert not (store.data / MARKER).exists()


@pytest.mark.parametrize("name", ["partials/" + "a" * 64, "staging/0123456789abcdef/tree/x"])
def test_S22_a_name_like_ours_does_not_make_a_folder_ours(store: Store, name: str) -> None:
    file = store.data / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"mine")
    with pytest.raises(CorruptStore, match="not made by tsuku-llm"):
        store.sweep()
    assert file.read_bytes() == b"mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("name", ["staging", "partials", "locks"])
def test_S01_a_folder_of_another_user_is_not_swept(store: Store, name: str) -> None:
    install(store)
    store.partials.mkdir(exist_ok=True)
    leftover = store.data / name / {"staging": "01" * 8, "partials": "a" * 64}.get(name, "x.pid")
    leftover.write_bytes(b"")
    os.chown(store.data / name, 12345, 12345)
    with pytest.raises(UnsafeLocation) as caught:
        store.sweep()
    assert isinstance(caught.value, StoreError)
    assert leftover.exists()
