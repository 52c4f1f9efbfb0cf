"""Files of other versions in the place of an archive: linked, hashed, looked at again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.stored import FILES, install, make_receipt
from test_tampering import LIBRARY, rewrite, rewrite_with_times_restored

from tsuku_llm.ground.errors import TamperedInstall
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.reuse import confirm, sources_of_all, supply, withdraw
from tsuku_llm.store.staging import Staging
from tsuku_llm.store.store import Store

RECEIPT = make_receipt("b200", links={})


@pytest.fixture
def old(store: Store) -> Installed:
    return install(store, "b100", links={})


def test_reused_and_verified_files_are_committed(store: Store, old: Installed) -> None:
    with store.staging() as staging:
        assert supply(staging.tree, RECEIPT.files, store.installed())
        assert confirm(staging, staging.tree, RECEIPT.files) == []
        new = store.commit(staging, RECEIPT)
    for path in FILES:
        assert (old.tree / path).samefile(new.tree / path)
    store.check(old, full=True)
    store.check(new, full=True)


def test_files_that_no_version_has_are_not_reused(store: Store, old: Installed) -> None:
    other = make_receipt("b200", files={**FILES, "new": b"new"}, links={})
    with store.staging() as staging:
        assert not supply(staging.tree, other.files, store.installed())
        (staging.tree / LIBRARY).write_bytes(b"taken")
        assert not supply(staging.tree, old.receipt.files, store.installed())
        assert [path.name for path in staging.tree.glob("*") if path.is_file()] == [LIBRARY]


def test_X01_a_damaged_source_supplies_nothing(store: Store, old: Installed) -> None:
    rewrite(old.tree / LIBRARY)
    assert sources_of_all(RECEIPT.files, store.installed()) is None
    with store.staging() as staging:
        assert not supply(staging.tree, RECEIPT.files, store.installed())
        assert not [path for path in staging.tree.rglob("*") if path.is_file()]


def test_a_file_that_was_only_touched_supplies(store: Store, old: Installed) -> None:
    (old.tree / LIBRARY).touch()
    assert sources_of_all(RECEIPT.files, store.installed()) is not None


@pytest.mark.skipif(sys.platform == "win32", reason="no mode says what a program is")
def test_a_store_from_a_backup_without_modes_is_named_and_repaired(
    store: Store, old: Installed
) -> None:
    """The manual of cp says that a copy without -p gets modes from the umask, and FAT keeps none.

    The content is right then, so nothing has to be downloaded again.
    """
    server = old.tree / "llama-server"
    server.chmod(0o444)
    with pytest.raises(TamperedInstall) as caught:
        store.check(old)
    assert caught.value.facts == ("cannot be executed any more: llama-server",)
    assert store.verify(old) == caught.value.facts
    with store.staging() as staging:
        assert supply(staging.tree, old.receipt.files, store.installed())
        assert os.access(staging.tree / "llama-server", os.X_OK), "the gate starts it there"
        again = store.commit(staging, old.receipt)
    store.check(again, full=True)
    assert again.id == old.id
    assert os.access(server, os.X_OK)


def test_X01_what_a_source_does_not_have_any_more_is_named(store: Store, old: Installed) -> None:
    with store.staging() as staging:
        assert supply(staging.tree, RECEIPT.files, store.installed())
        rewrite(old.tree / LIBRARY)
        assert confirm(staging, staging.tree, RECEIPT.files) == [LIBRARY]
        withdraw(staging.tree, RECEIPT.files)
        assert not [path for path in staging.tree.rglob("*") if path.is_file()]


def test_C04_unreadable_files_are_not_confirmed(store: Store, old: Installed) -> None:
    with store.staging() as staging:
        assert supply(staging.tree, old.receipt.files, store.installed())
        (staging.tree / LIBRARY).unlink()
        assert LIBRARY in confirm(staging, staging.tree, old.receipt.files)


def test_X04_files_touched_after_the_check_are_hashed_again(store: Store, old: Installed) -> None:
    with store.staging() as staging:
        _supply(store, staging)
        rewrite_with_times_restored(old.tree / LIBRARY)
        with pytest.raises(TamperedInstall) as refused:
            store.commit(staging, RECEIPT)
    assert refused.value.facts == (f"content changed: {LIBRARY}",)
    assert store.find(RECEIPT.id) is None


def test_X04_a_file_whose_source_was_removed_is_hashed_again(store: Store, old: Installed) -> None:
    with store.staging() as staging:
        _supply(store, staging)
        rewrite_with_times_restored(old.tree / LIBRARY)
        store.remove(old.id)
        with pytest.raises(TamperedInstall):
            store.commit(staging, RECEIPT)


def test_a_further_hard_link_does_not_invalidate_a_file(
    store: Store, old: Installed, tmp_path: Path
) -> None:
    with store.staging() as staging:
        _supply(store, staging)
        (tmp_path / "backup").hardlink_to(old.tree / LIBRARY)
        new = store.commit(staging, RECEIPT)
    store.check(new)
    store.check(old)


def _supply(store: Store, staging: Staging) -> None:
    assert supply(staging.tree, RECEIPT.files, store.installed())
    assert confirm(staging, staging.tree, RECEIPT.files) == []
