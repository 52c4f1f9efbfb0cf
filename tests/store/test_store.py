from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stored import FILES, fill, install, make_receipt, snapshot

from tsuku_llm.ground.errors import CorruptStore, InUse, NotInstalled, TamperedInstall
from tsuku_llm.store.in_use import try_exclusive
from tsuku_llm.store.store import Store


def test_reading_creates_nothing(store: Store) -> None:
    assert store.active() is None
    assert store.previous() is None
    assert store.installed() == ()
    assert store.find("b100-cpu-000000000000") is None
    store.sweep()
    assert not store.data.exists()


def test_a_committed_version_is_found_with_its_receipt(store: Store) -> None:
    installed = install(store)
    assert store.active() == store.find(installed.id) == installed
    assert store.installed() == (installed,)
    assert installed.tree == store.data / "versions" / installed.id / "tree"
    assert installed.receipt == make_receipt()
    assert list((store.data / "staging").iterdir()) == []
    store.check(installed, full=True)


def test_rollback_swaps_the_active_and_the_previous_version(store: Store) -> None:
    old, new = install(store, "b100"), install(store, "b200")
    assert store.previous() == old
    assert store.rollback() == old
    assert (store.active(), store.previous()) == (old, new)
    assert store.rollback() == new
    assert (store.active(), store.previous()) == (new, old)


def test_rollback_without_an_earlier_version_is_refused(store: Store) -> None:
    install(store)
    with pytest.raises(NotInstalled):
        store.rollback()


def test_rollback_to_a_damaged_version_is_refused(store: Store) -> None:
    old, new = install(store, "b100"), install(store, "b200")
    (old.tree / "llama-server").unlink()
    with pytest.raises(TamperedInstall):
        store.rollback()
    assert store.active() == new


def test_an_uncommitted_staging_folder_is_removed(store: Store) -> None:
    with store.staging() as staging:
        fill(staging.tree)
    assert snapshot(store.data / "staging") == {}


def test_a_failure_in_staging_leaves_nothing(store: Store) -> None:
    def fail() -> None:
        with store.staging() as staging:
            fill(staging.tree)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert snapshot(store.data / "staging") == {}
    assert store.installed() == ()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tree: (tree / "libggml-evil.so").write_bytes(b"x"),
        lambda tree: (tree / "llama-server").unlink(),
        lambda tree: (tree / "llama-server").write_bytes(b"short"),
        lambda tree: os.mkfifo(tree / "pipe"),
        lambda tree: (tree / "libggml-base.so").unlink(),
    ],
    ids=["extra", "missing", "short", "fifo", "link-missing"],
)
def test_a_tree_unlike_its_receipt_is_never_committed(
    store: Store, spoil: Callable[[Path], object]
) -> None:
    with store.staging() as staging:
        fill(staging.tree)
        spoil(staging.tree)
        with pytest.raises(TamperedInstall):
            store.commit(staging, make_receipt())
    assert store.installed() == ()


def test_empty_folders_of_an_archive_are_dropped(store: Store) -> None:
    with store.staging() as staging:
        fill(staging.tree)
        (staging.tree / "empty" / "inner").mkdir(parents=True)
        installed = store.commit(staging, make_receipt())
    assert not (installed.tree / "empty").exists()
    store.check(installed)


@pytest.mark.parametrize("umask", [0o000, 0o077], ids=["X12-umask-000", "X12-umask-077"])
def test_modes_do_not_depend_on_the_umask(store: Store, umask: int) -> None:
    old = os.umask(umask)
    try:
        installed = install(store, sealed=True)
    finally:
        os.umask(old)
    modes = {name: mode & 0o7777 for name, (mode, _) in snapshot(installed.path).items()}
    for link in installed.receipt.links:
        del modes[f"tree/{link.path}"]
    assert modes.pop("tree/llama-server") == 0o555
    assert {modes.pop(name) for name in ("tree", "tree/share", "tree/share/licenses")} == {0o555}
    assert {mode for name, mode in modes.items() if name.startswith("tree/")} == {0o444}
    assert {mode for name, mode in modes.items() if not name.startswith("tree/")} == {0o644}
    assert store.data.stat().st_mode & 0o777 == 0o755


def test_the_same_version_again_returns_the_installed_one(store: Store) -> None:
    first = install(store)
    before = snapshot(first.path)
    assert install(store) == first
    assert snapshot(first.path) == before


def test_a_damaged_version_is_replaced(store: Store) -> None:
    first = install(store)
    (first.tree / "llama-server").write_bytes(b"broken")
    again = install(store)
    store.check(again, full=True)
    assert (again.tree / "llama-server").read_bytes() == FILES["llama-server"]


def test_S16_a_foreign_folder_with_the_versions_name_is_set_aside(store: Store) -> None:
    receipt = make_receipt()
    install(store, "b050")
    (store.data / "versions" / receipt.id).write_text("a file")
    store.check(install(store), full=True)
    (kept,) = (store.data / "set-aside").rglob(receipt.id)
    assert kept.read_text() == "a file"
    assert kept.parent in store.foreign()


def test_removing_the_active_version_leaves_nothing_active(store: Store) -> None:
    old, new = install(store, "b100"), install(store, "b200")
    store.remove(new.id)
    assert store.active() is None
    assert store.installed() == (old,)
    assert store.previous() == old


def test_prune_keeps_the_active_the_previous_and_the_requested(store: Store) -> None:
    versions = [install(store, f"b{number}") for number in (100, 200, 300, 400)]
    pruned = store.prune(keep={versions[0].id})
    assert pruned.removed == (versions[1].id,)
    assert pruned.in_use == ()
    assert store.installed() == (versions[0], *versions[2:])


def test_L07_prune_keeps_a_version_that_a_server_holds(store: Store) -> None:
    versions = [install(store, f"b{number}") for number in (100, 200, 300)]
    with store.hold(versions[0]) as descriptor:
        assert descriptor is not None
        pruned = store.prune()
        assert pruned.removed == ()
        assert pruned.in_use == (versions[0].id,)
        store.check(versions[0], full=True)
    assert store.prune().removed == (versions[0].id,)


def test_C10_a_pointer_of_zeros_is_refused_and_repaired_by_a_sweep(store: Store) -> None:
    installed = install(store)
    (store.data / "active.json").write_bytes(bytes(60))
    with pytest.raises(CorruptStore):
        store.active()
    store.sweep()
    assert store.active() is None
    store.activate(installed)
    assert store.active() == installed


def test_a_version_in_use_is_not_removed(store: Store) -> None:
    installed = install(store)
    with store.hold(installed), pytest.raises(InUse, match="a running server uses"):
        store.remove(installed.id)
    assert store.active() == installed
    store.remove(installed.id)


def test_a_version_that_is_being_removed_cannot_be_held(store: Store) -> None:
    installed = install(store)
    with (
        try_exclusive(installed.path) as alone,
        pytest.raises(NotInstalled, match="is being removed"),
        store.hold(installed),
    ):
        pass
    assert alone


def test_large_files_are_hashed_two_at_once(store: Store) -> None:
    files = {"llama-server": b"x", "a.so": bytes(3 << 20), "b.so": b"b" * (2 << 20)}
    with store.staging() as staging:
        fill(staging.tree, files, {})
        installed = store.commit(staging, make_receipt(files=files, links={}))
    store.check(installed, full=True)
    (installed.tree / "b.so").chmod(0o644)
    (installed.tree / "b.so").write_bytes(b"c" * (2 << 20))
    with pytest.raises(TamperedInstall) as caught:
        store.check(installed, full=True)
    assert caught.value.facts == ("content changed: b.so",)


def test_a_version_that_came_into_use_meanwhile_is_not_pruned(store: Store) -> None:
    versions = [install(store, f"b{number}") for number in (100, 200, 300)]
    store.use(versions[0])
    assert [store._prune_one(version.id, set()) for version in versions] == [False, True, False]
    assert (store.active(), store.previous()) == (versions[0], versions[2])


def test_a_missing_version_cannot_be_removed(store: Store) -> None:
    installed = install(store)
    with pytest.raises(NotInstalled, match="no longer exists"):
        store.remove("b9-cpu-0123456789ab")
    assert store.active() == installed
