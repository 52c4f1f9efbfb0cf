from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.stored import install

from tsuku_llm.errors import StoreError, UnsafeLocation
from tsuku_llm.ownership import check_path
from tsuku_llm.store import Store

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")


def test_an_install_of_ours_is_accepted(store: Store) -> None:
    check_path(install(store).tree)


@pytest.mark.parametrize(
    ("mode", "who"), [(0o757, "every user"), (0o777, "every user"), (0o775, "its group")]
)
@pytest.mark.parametrize("level", ["data", "data/versions", "."])
def test_X10_a_folder_that_others_may_write_is_refused(
    store: Store, mode: int, who: str, level: str
) -> None:
    installed = install(store)
    folder = store.data.parent / level
    if mode == 0o775:
        _give_to_a_group(folder)
    folder.chmod(mode)
    with pytest.raises(UnsafeLocation, match=who) as caught:
        check_path(installed.tree)
    assert f"chmod {'g' if who == 'its group' else 'o'}-w '{folder}'" in caught.value.hint


def _give_to_a_group(folder: Path) -> None:
    if not ROOT:
        pytest.skip("needs root, to give a folder to a group")
    os.chown(folder, -1, 12345)


def test_X10_a_sticky_folder_on_the_way_is_accepted(store: Store) -> None:
    installed = install(store)
    store.data.parent.chmod(0o1777)
    check_path(installed.tree)


@pytest.mark.skipif(not ROOT, reason="needs root, to give a folder away")
def test_X10_a_folder_of_another_user_is_refused(store: Store) -> None:
    installed = install(store)
    os.chown(store.data, 12345, 12345)
    with pytest.raises(UnsafeLocation, match="another user"):
        check_path(installed.tree)


def test_X10_the_folder_that_a_link_on_the_way_lies_in_counts(tmp_path: Path) -> None:
    (tmp_path / "safe" / "data").mkdir(parents=True)
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to("../safe")
    check_path(tmp_path / "open" / "link" / "data")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnsafeLocation, match="open"):
        check_path(tmp_path / "open" / "link" / "data")
    check_path(tmp_path / "safe" / "data")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StoreError, match="could not be read"):
        check_path(tmp_path / "a" / "data")


def test_what_is_not_there_yet_is_checked_as_far_as_it_is(tmp_path: Path) -> None:
    check_path(tmp_path / "missing" / "data")
    tmp_path.chmod(0o757)
    with pytest.raises(UnsafeLocation, match="every user"):
        check_path(tmp_path / "missing" / "data")
