from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.stored import install

from tsuku_llm.ground.errors import StoreError, UnsafeLocation
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.store.store import Store

if os.name == "posix":
    import grp
    import pwd

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")


def test_our_own_install_is_accepted(store: Store) -> None:
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


def test_X10_a_sticky_folder_in_the_path_is_accepted(store: Store) -> None:
    installed = install(store)
    store.data.parent.chmod(0o1777)
    check_path(installed.tree)


@pytest.mark.skipif(not ROOT, reason="needs root, to give a folder away")
def test_X10_a_folder_of_another_user_is_refused(store: Store) -> None:
    installed = install(store)
    os.chown(store.data, 12345, 12345)
    with pytest.raises(UnsafeLocation, match="another user"):
        check_path(installed.tree)


def test_X10_the_folder_of_a_link_in_the_path_counts(tmp_path: Path) -> None:
    (tmp_path / "safe" / "data").mkdir(parents=True)
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to("../safe")
    check_path(tmp_path / "open" / "link" / "data")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnsafeLocation, match="open"):
        check_path(tmp_path / "open" / "link" / "data")
    check_path(tmp_path / "safe" / "data")


# --- groups -------------------------------------------------------------------------------------

ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, rights, owner)
    for tag, rights, owner in (
        (1, 7, 0xFFFFFFFF),
        (2, 7, 65534),
        (4, 7, 0xFFFFFFFF),
        (16, 7, 0xFFFFFFFF),
        (32, 5, 0xFFFFFFFF),
    )
)
"""An access list (acl(5)) that lets the user 65534 write."""


@pytest.fixture
def person() -> Any:
    """A user of this system, other than root, who is the only member of the group of that name."""
    if not ROOT:
        pytest.skip("needs root, to become another user")
    everybody = pwd.getpwall()
    for user in everybody:
        group = next((each for each in grp.getgrall() if each.gr_gid == user.pw_gid), None)
        others = [each for each in everybody if each.pw_gid == user.pw_gid and each != user]
        if user.pw_uid and group and group.gr_name == user.pw_name and not (group.gr_mem or others):
            return user
    pytest.skip("this system has no user with a private group")


def refused_to(person: Any, folder: Path) -> str:
    """What a check of ``folder`` says to that user; "" where it is accepted."""
    for above in folder.parents:
        above.chmod(above.stat().st_mode | 0o055)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(person.pw_gid)
        os.setuid(person.pw_uid)
        said = ""
        try:
            check_path(folder)
        except StoreError as error:
            said = f"{error.message}; {error.hint}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return said


def test_T19_a_folder_of_a_private_group_is_accepted(tmp_path: Path, person: Any) -> None:
    """With umask 002 everything that a user makes is like that."""
    folder = tmp_path / "data"
    folder.mkdir()
    os.chown(folder, person.pw_uid, person.pw_gid)
    folder.chmod(0o2775)
    assert refused_to(person, folder) == ""


def test_T19_an_access_list_is_not_hidden_by_a_private_group(tmp_path: Path, person: Any) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    os.chown(folder, person.pw_uid, person.pw_gid)
    try:
        os.setxattr(folder, "system.posix_acl_access", ACL)
    except OSError:
        pytest.skip("this file system has no access lists")
    assert f"chmod g-w '{folder}'" in refused_to(person, folder)
    folder.chmod(0o755)
    assert refused_to(person, folder) == "", "the command of the hint closes the list as well"


def test_T19_a_folder_of_a_shared_group_is_refused(tmp_path: Path, person: Any) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    users = next(each for each in grp.getgrall() if each.gr_gid not in (0, person.pw_gid))
    os.chown(folder, person.pw_uid, users.gr_gid)
    folder.chmod(0o775)
    said = refused_to(person, folder)
    assert f"its group ({users.gr_name}) can write to" in said
    assert f"chmod g-w '{folder}'" in said


@pytest.mark.skipif(sys.platform != "linux", reason="mounts as Linux does")
def test_a_disk_without_modes_is_told_how_to_be_mounted(tmp_path: Path) -> None:
    """mount(8): on FAT, exFAT and NTFS the modes come from the option umask, for all files alike.

    There chmod ends with 0 and changes nothing, so it cannot be the only advice.
    """
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "mode=777", "none", tmp_path],
        check=False,
        capture_output=True,
    )
    if done.returncode:
        pytest.skip("cannot mount here")
    try:
        with pytest.raises(UnsafeLocation) as caught:
            check_path(tmp_path / "data")
        assert caught.value.hint.startswith(f"run: chmod o-w '{tmp_path}'; if its mode stays")
        assert "umask=022" in caught.value.hint
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="its folders have no such modes")
def test_no_right_is_taken_from_a_device_in_the_place_of_a_folder() -> None:
    """Services have /dev/null as their home: passwd(5) of systems without /nonexistent."""
    with pytest.raises(StoreError) as caught:
        check_path(Path(os.devnull, ".local", "share"))
    assert "chmod" not in caught.value.hint
    assert caught.value.hint.startswith("a part of that path is a file: name another folder")


def test_circular_links_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StoreError, match="could not be read"):
        check_path(tmp_path / "a" / "data")


def test_a_missing_path_is_checked_up_to_its_last_existing_folder(tmp_path: Path) -> None:
    check_path(tmp_path / "missing" / "data")
    tmp_path.chmod(0o757)
    with pytest.raises(UnsafeLocation, match="every user"):
        check_path(tmp_path / "missing" / "data")
