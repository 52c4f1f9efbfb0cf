from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.stored import install, snapshot

from tsuku_llm.store import Store

WEEK = 7 * 24 * 3600


def partial(store: Store, name: str, *, modified: float) -> Path:
    path = store.partials / name
    path.write_bytes(b"half")
    os.utime(path, (modified, modified))
    return path


def test_only_downloads_that_nobody_resumed_for_a_week_are_swept(store: Store) -> None:
    old = partial(store, f"{'a' * 64}.part", modified=1_000_000)
    note = partial(store, f"{'a' * 64}.part.json", modified=1_000_000)
    new = partial(store, f"{'b' * 64}.part", modified=1_000_000 + WEEK)
    store.sweep(now=1_000_001 + WEEK)
    assert not old.exists()
    assert not note.exists()
    assert new.exists()
    store.prune()
    assert not new.exists()


def test_a_download_that_somebody_works_on_stays(store: Store) -> None:
    busy = partial(store, f"{'a' * 64}.part", modified=0)
    with store.lock("a" * 64):
        store.sweep()
        store.prune()
        assert busy.exists()
    store.sweep()
    assert not busy.exists()


def test_a_version_that_somebody_installs_is_not_pruned(store: Store) -> None:
    versions = [install(store, f"b{number}") for number in (100, 200, 300)]
    with store.lock(versions[0].id):
        assert store.prune().in_use == (versions[0].id,)
    assert store.prune().removed == (versions[0].id,)


def test_C01_leftovers_of_every_sort_are_swept(store: Store) -> None:
    installed = install(store)
    before = snapshot(store.data / "versions")
    staging = store.data / "staging"
    (staging / "0123").mkdir()
    (staging / "0123" / "file").write_bytes(b"")
    (staging / "4567.lock").write_bytes(b"")
    (staging / "89ab.pid").write_text("1 here")
    (staging / "89ab").mkdir()
    (store.data / ".active.json.0123.tmp").write_bytes(b"torn")
    (installed.path / ".fingerprint.json.0123.tmp").write_bytes(b"torn")
    before_names = set(before)
    store.sweep()
    assert list(staging.glob("0123*")) == list(staging.glob("4567*")) == []
    assert not list(store.data.glob(".*.tmp"))
    assert set(snapshot(store.data / "versions")) == before_names
    assert snapshot(store.data / "versions") == before
    store.sweep()


@pytest.mark.parametrize("content", [b"", bytes(20), b"12", b"x y"])
def test_C08_a_note_about_a_holder_that_lost_its_bytes_is_swept(
    store: Store, content: bytes
) -> None:
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
    (store.data / "staging" / "0123").symlink_to(tmp_path / "precious")
    store.sweep()
    assert (tmp_path / "precious" / "file").exists()
