from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.stored import install, snapshot

from tsuku_llm.store.store import Store

WEEK = 7 * 24 * 3600


def partial(store: Store, name: str, *, modified: float) -> Path:
    path = store.partials / name
    path.write_bytes(b"half")
    os.utime(path, (modified, modified))
    return path


def test_only_downloads_unused_for_a_week_are_swept(store: Store) -> None:
    week_ago = time.time() - WEEK
    old = partial(store, f"{'a' * 64}.part", modified=week_ago)
    note = partial(store, f"{'a' * 64}.part.json", modified=week_ago)
    new = partial(store, f"{'b' * 64}.part", modified=week_ago + 600)
    store.sweep()
    assert not old.exists()
    assert not note.exists()
    assert new.exists()
    store.prune()
    assert not new.exists()


def test_a_download_in_progress_is_not_swept(store: Store) -> None:
    busy = partial(store, f"{'a' * 64}.part", modified=0)
    with store.lock("a" * 64):
        store.sweep()
        store.prune()
        assert busy.exists()
    store.sweep()
    assert not busy.exists()


def test_a_version_that_is_being_installed_is_not_pruned(store: Store) -> None:
    versions = [install(store, f"b{number}") for number in (100, 200, 300)]
    with store.lock(versions[0].id):
        assert store.prune().in_use == (versions[0].id,)
    assert store.prune().removed == (versions[0].id,)


def test_C01_leftovers_of_every_kind_are_swept(store: Store) -> None:
    installed = install(store)
    before = snapshot(store.data / "versions")
    staging = store.data / "staging"
    one, two, three = ("01" * 8, "45" * 8, "89" * 8)
    (staging / one / "tree" / "bin").mkdir(parents=True)
    (staging / one / "tree" / "bin" / "file").write_bytes(b"")
    (staging / one / "receipt.json").write_bytes(b"")
    (staging / f"{two}.lock").write_bytes(b"")
    (staging / f"{three}.pid").write_text("1 here")
    (staging / three).mkdir()
    (store.data / f".active.json.{one}.tmp").write_bytes(b"torn")
    (installed.path / f".fingerprint.json.{one}.tmp").write_bytes(b"torn")
    before_names = set(before)
    store.sweep()
    assert list(staging.iterdir()) == []
    assert not list(store.data.glob(".*.tmp"))
    assert set(snapshot(store.data / "versions")) == before_names
    assert snapshot(store.data / "versions") == before
    store.sweep()


@pytest.mark.parametrize("content", [b"", bytes(20), b"12", b"x y"])
def test_C08_an_empty_note_of_a_lock_holder_is_swept(store: Store, content: bytes) -> None:
    install(store)
    note = store.data / "locks" / f"{'a' * 64}.pid"
    with store.lock("a" * 64):
        note.write_bytes(content)
        store.sweep()
        assert note.read_bytes() == content, "somebody may be about to write it"
    note.write_bytes(content)
    store.sweep()
    assert not note.exists()


def test_a_link_in_staging_is_not_followed(store: Store, tmp_path: Path) -> None:
    install(store)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"")
    (store.data / "staging" / ("01" * 8)).symlink_to(tmp_path / "precious")
    store.sweep()
    assert (tmp_path / "precious" / "file").exists()
