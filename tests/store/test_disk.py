from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.stored import FILES, fill, install, make_receipt, snapshot

from tsuku_llm.ground.disk import disk_errors, require_space
from tsuku_llm.ground.errors import (
    CorruptStore,
    NoSpace,
    NotInstalled,
    NotWritable,
    StoreError,
    UnsafeLocation,
)
from tsuku_llm.ground.files import write_note
from tsuku_llm.store.store import Store

DRIVER = Path(__file__).parents[1] / "support" / "store_process.py"
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def mount(folder: Path, *options: str) -> None:
    """Mount a memory disk, where that is allowed."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(("mode=755", *options)), "none", folder],
        check=False,
        capture_output=True,
    )
    if done.returncode:
        pytest.skip("cannot mount here")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    if not ROOT or sys.platform != "linux":
        pytest.skip("needs root on Linux")
    folder = tmp_path / "small"
    folder.mkdir()
    mount(folder, "size=1m")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EMFILE, "too many open files"),
        (errno.ENFILE, "too many open files"),
        (errno.ENOMEM, "not enough memory"),
        (errno.EAGAIN, "no more processes or threads"),
    ],
)
def test_a_limit_is_not_blamed_on_the_disk(tmp_path: Path, number: int, words: str) -> None:
    with pytest.raises(StoreError) as caught, disk_errors("running pip", tmp_path):
        raise OSError(number, os.strerror(number))
    assert words in caught.value.message
    assert "disk" not in caught.value.hint
    assert caught.value.hint


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_limit_on_the_size_of_files_is_no_full_disk(tmp_path: Path) -> None:
    """getrlimit(2): beyond RLIMIT_FSIZE a write fails with EFBIG, whatever room there is."""
    code = """
import resource, sys
from pathlib import Path
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
place = Path(sys.argv[1])
try:
    with disk_errors("replacing a receipt", place):
        (place / "receipt").write_bytes(bytes(4096))
except StoreError as error:
    print(error.slug, error.message, error.hint, sep="\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "store",
        "no file of this process may become larger (ulimit -f, in bytes: 1024)",
        "raise the limit: ulimit -f unlimited",
    ]


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSYS, "set TSUKU_HOME to a folder on another file system"),
        (errno.EOPNOTSUPP, "set TSUKU_HOME to a folder on another file system"),
        # FAT has no file of 4 GiB or more; no limit of the process is in the way.
        (errno.EFBIG, "set TSUKU_HOME to a folder on another file system"),
        (errno.EXDEV, "set TSUKU_HOME to a folder that is all on one file system"),
        (errno.ENAMETOOLONG, "set TSUKU_HOME to a folder with a shorter path"),
        (errno.EROFS, "mount that file system writable, or set TSUKU_HOME to one that is"),
        (errno.EACCES, "make that folder yours and writable, or set TSUKU_HOME to one that is"),
    ],
)
@pytest.mark.parametrize("inner", ["", "llm/versions"])
def test_the_hint_is_about_what_the_file_system_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str, inner: str
) -> None:
    """Seen on a FAT of FUSE (no such call), and on a read-only disk with the config file.

    To check the disk, or to make oneself the owner, helps with none of them; and the variable is
    that of the folder, also if it is TSUKU_HOME itself.
    """
    monkeypatch.setenv("TSUKU_HOME", str(tmp_path))
    with pytest.raises(StoreError) as caught, disk_errors("marking", tmp_path / inner):
        raise OSError(number, os.strerror(number))
    assert caught.value.hint == hint


def test_a_folder_that_is_not_there_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    """So ended 'status --prometheus --output' for a collector that is not installed."""
    with pytest.raises(StoreError) as caught, disk_errors("writing x.prom", tmp_path / "no"):
        (tmp_path / "no" / "x.prom").write_bytes(b"")
    assert caught.value.hint == "make that folder, or name another one"


def test_C03_a_full_disk_keeps_the_old_version(small: Path) -> None:
    store = Store(small / "data")
    old = install(store, "b100")
    files = {**FILES, "big": os.urandom(2_000_000)}
    with pytest.raises(NoSpace) as caught:
        install(store, "b200", files=files)
    assert caught.value.hint
    assert store.active() == old
    store.check(old, full=True)
    assert snapshot(store.data / "staging") == {}


def test_C03_a_disk_that_fills_at_any_write_keeps_the_old_version(small: Path) -> None:
    store = Store(small / "data")
    old = install(store, "b100")
    for ballast in range(0, 64 * 1024, 4096):
        free = shutil.disk_usage(small).free
        (small / "ballast").write_bytes(bytes(max(0, free - ballast)))
        try:
            new = install(store, "b200", files={**FILES, "llama-server": b"newer"})
        except NoSpace:
            assert store.active() == old
            store.check(old, full=True)
        else:
            assert store.active() == new
            assert ballast > 0
            break
        finally:
            (small / "ballast").unlink()
        store.sweep()
        assert snapshot(store.data / "staging") == {}
    else:
        pytest.fail("it never fitted")


def test_a_full_file_system_is_reported_before_the_install(small: Path) -> None:
    store = Store(small / "not" / "yet" / "there")
    require_space(store.data, 1000)
    with pytest.raises(NoSpace, match=r"5000\.0 MB are needed and 1\.0 MB are free"):
        require_space(store.data, 5_000_000_000)
    assert not store.data.exists()


def test_C11_versions_on_another_disk_are_refused_with_a_reason(
    small: Path, tmp_path: Path
) -> None:
    store = Store(tmp_path / "data")
    (store.data / "staging").mkdir(parents=True)
    subprocess.run(["mount", "--bind", small, store.data / "staging"], check=True)
    try:
        with pytest.raises(StoreError, match="could not be read or written") as caught:
            install(store)
        assert "cross-device" in caught.value.facts[0].lower()
        assert store.active() is None
    finally:
        subprocess.run(["umount", store.data / "staging"], check=True)


def test_X13_an_install_on_a_read_only_disk_can_be_used(tmp_path: Path) -> None:
    if not ROOT or sys.platform != "linux":
        pytest.skip("needs root on Linux")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "size=8m")
    try:
        store = Store(folder / "data")
        installed = install(store, "b100")
        (installed.tree / "llama-server").touch()  # a check now has to hash, and cannot note it
        before = snapshot(folder)
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        assert store.active() == installed
        assert store.installed() == (installed,)
        store.check(installed)
        store.check(installed, full=True)
        with store.hold(installed) as descriptor:
            assert descriptor is not None
        store.sweep()
        refused: list[Callable[[], object]] = [
            lambda: install(store, "b200"),
            lambda: store.activate(installed),
            lambda: store.remove(installed.id),
        ]
        for act in refused:
            with pytest.raises(NotWritable) as caught:
                act()
            assert caught.value.hint
        assert snapshot(folder) == before
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.skipif(not ROOT, reason="needs root, to be another user")
def test_X13_an_install_by_root_can_be_used_by_others(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    installed = install(store)
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o055)
    before = snapshot(store.data)
    nobody = {"user": 65534, "group": 65534, "extra_groups": ()}
    python = [sys.executable, "-c", "import filelock, tsuku_llm.store"]
    try:
        subprocess.run(python, check=True, capture_output=True, **nobody)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("another user cannot run this Python")
    done = subprocess.run(
        [sys.executable, "-B", DRIVER, "use", store.data, ""],
        check=False,
        capture_output=True,
        text=True,
        **nobody,
    )
    assert (done.stdout, done.returncode) == ("used\n", 6), done.stderr
    assert "does not allow" in done.stderr
    assert snapshot(store.data) == before
    store.check(installed, full=True)


def test_the_data_folder_may_be_a_link_to_a_larger_disk(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "large" / "tsuku-llm")
    store = Store(tmp_path / "data")
    installed = install(store)
    assert store.active() == installed
    assert (tmp_path / "large" / "tsuku-llm" / "versions").is_dir()


@pytest.mark.parametrize("name", ["versions", "staging", "locks"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_anything_but_a_folder_in_the_place_of_one_is_refused(
    store: Store, name: str, kind: str
) -> None:
    store.data.mkdir()
    if kind == "file":
        (store.data / name).write_bytes(b"")
    else:
        (store.data / "elsewhere").mkdir()
        (store.data / name).symlink_to("elsewhere")
    with pytest.raises(CorruptStore, match="is not a folder"):
        install(store)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"{"),
        lambda path: path.write_bytes(b"[]"),
        lambda path: path.write_bytes(b'{"format": 1, "active": "../x", "previous": null}'),
        lambda path: path.write_bytes(b'{"format": 1, "active": 3, "previous": null}'),
        lambda path: path.write_bytes(b'{"format": 2, "active": null, "previous": null}'),
        lambda path: path.write_bytes(b'{"format": 1, "active": "b1-cpu-0", "previous": null}'),
        lambda path: path.write_bytes(b" " * 10_000),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/etc/hostname"),
        os.mkfifo,
    ],
    ids=[
        *("empty", "torn", "list", "path", "number", "format", "dangling"),
        *("huge", "folder", "link", "fifo"),
    ],
)
def test_C10_a_damaged_pointer_is_refused_and_then_replaced(
    store: Store, spoil: Callable[[Path], object]
) -> None:
    installed = install(store)
    pointer = store.data / "active.json"
    pointer.unlink()
    spoil(pointer)
    with pytest.raises(CorruptStore) as caught:
        store.active()
    assert caught.value.hint
    assert store.installed() == (installed,)
    if pointer.is_dir():  # not ours to remove: it may hold something
        return
    store.sweep()
    assert store.active() is None
    store.activate(installed)
    assert store.active() == installed


def test_a_repaired_pointer_keeps_the_version_to_roll_back_to(store: Store) -> None:
    old, new = install(store, "b100"), install(store, "b200")
    shutil.rmtree(new.path)
    with pytest.raises(CorruptStore, match="does not exist"):
        store.active()
    store.sweep()
    assert store.active() is None
    assert store.previous() == old
    assert store.rollback() == old


@pytest.mark.skipif(not ROOT, reason="needs root, to give a file away")
@pytest.mark.parametrize("name", ["active.json", "versions/{id}/receipt.json"])
def test_X10_state_of_another_user_is_refused(store: Store, name: str) -> None:
    installed = install(store)
    os.chown(store.data / name.format(id=installed.id), 12345, 12345)
    with pytest.raises(UnsafeLocation, match="another user") as caught:
        store.active()
    assert "chown" in caught.value.hint


@pytest.mark.skipif(not ROOT, reason="needs root, to give a folder away")
def test_X11_root_does_not_write_into_a_users_store(store: Store) -> None:
    install(store)
    os.chown(store.data, 12345, 12345)
    with pytest.raises(UnsafeLocation, match="another user"):
        install(store, "b200")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda version: (version / "receipt.json").write_bytes(bytes(100)),
        lambda version: (version / "receipt.json").unlink(),
        lambda version: shutil.rmtree(version / "tree"),
        shutil.rmtree,
        lambda version: version.rename(version.with_name("b999-cpu-000000000000")),
    ],
    ids=["receipt-zeros", "receipt-gone", "tree-gone", "all-gone", "renamed"],
)
def test_C10_a_damaged_version_is_named_and_reinstalled(
    store: Store, spoil: Callable[[Path], object]
) -> None:
    other, installed = install(store, "b050"), install(store)
    spoil(installed.path)
    assert other in store.installed()
    store.sweep()
    again = install(store)
    assert store.active() == again
    store.check(again, full=True)
    for name, error in store.damaged().items():
        assert name == "b999-cpu-000000000000"
        assert error.hint
    store.prune()
    assert store.damaged() == {}


def test_a_reinstall_with_another_request_changes_only_the_receipt(store: Store) -> None:
    installed = install(store)
    before = snapshot(installed.tree)
    receipt = make_receipt(requested="cpu", device="Vulkan0")
    with store.staging() as staging:
        fill(staging.tree)
        again = store.commit(staging, receipt)
    assert again.receipt == receipt
    assert store.find(installed.id) == again
    assert snapshot(installed.tree) == before
    later = make_receipt(requested="cpu", device="Vulkan0", installed_at="2027-01-01T00:00:00Z")
    with store.staging() as staging:
        fill(staging.tree)
        assert store.commit(staging, later).receipt == receipt


def test_a_removed_version_cannot_be_activated(store: Store) -> None:
    installed = install(store, activate=False)
    store.remove(installed.id)
    with pytest.raises(NotInstalled, match="no longer exists"):
        store.activate(installed)
    assert store.active() is None


def test_S16_a_note_that_is_a_hard_link_to_a_file_of_the_users_does_not_change_it(
    tmp_path: Path,
) -> None:
    thesis, note = tmp_path / "thesis.odt", tmp_path / "update-look"
    thesis.write_bytes(b"mine, and longer than any note")
    note.hardlink_to(thesis)
    write_note(note, b"ours")
    assert thesis.read_bytes() == b"mine, and longer than any note"
    assert note.read_bytes() == b"ours"
    write_note(note, b"new")
    assert note.read_bytes() == b"new"


@pytest.mark.parametrize(("home", "variable"), [(None, "TSUKU_HOME"), ("/srv/tsuku", "HOME")])
def test_a_forbidden_folder_names_the_variable_that_decides_it(
    monkeypatch: pytest.MonkeyPatch, home: str | None, variable: str
) -> None:
    """A service's user without a home folder, and with the builds that root has installed."""
    monkeypatch.delenv("TSUKU_HOME", raising=False)
    if home:
        monkeypatch.setenv("TSUKU_HOME", home)
    monkeypatch.setenv("HOME", "/nonexistent")
    folder = Path("/nonexistent/.local/state/tsuku-llm")
    with pytest.raises(NotWritable) as caught, disk_errors("making a folder", folder):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert caught.value.hint.endswith(f"or set {variable} to one that is")


@pytest.mark.parametrize("home", [None, "/srv/tsuku"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EXDEV])
def test_a_folder_that_the_user_named_is_decided_by_no_variable(
    monkeypatch: pytest.MonkeyPatch, home: str | None, number: int
) -> None:
    """A mirror or a bundle on a USB stick that is read-only or full: HOME does not move it."""
    monkeypatch.delenv("TSUKU_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/anna")
    if home:
        monkeypatch.setenv("TSUKU_HOME", home)
    with pytest.raises(StoreError) as caught, disk_errors("writing", Path("/media/stick/llm")):
        raise OSError(number, "no")
    assert "HOME" not in caught.value.hint
    assert "name" in caught.value.hint
    assert "()" not in caught.value.hint


def fill_up(ballast: Path) -> None:
    """Leave no free block on the disk of a file."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1024))
            os.fsync(file.fileno())


@pytest.fixture(params=["tmpfs", "ext4"])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with three versions, the last one active, on a disk without room for a folder."""
    if not ROOT or sys.platform != "linux":
        pytest.skip("needs root on Linux")
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "tmpfs":
        mount(folder, "size=1m")
    else:
        image = tmp_path / "image"
        image.write_bytes(bytes(4 << 20))
        for words in ("mkfs.ext4 -q -m 0 image", "mount -o loop image disk"):
            try:
                subprocess.run(words.split(), cwd=tmp_path, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                pytest.skip("cannot make such a disk here")
    store = Store(folder / "data")
    try:
        for release in ("b100", "b101", "b102"):
            install(store, release)
        fill_up(folder / "ballast")
        yield store
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_lets_every_version_be_removed(filled: Store) -> None:
    """The cure for a full disk needs no room: no staging folder, and no second pointer.

    On ext4 a new folder takes a block (the kernel's documentation of its directories), so ``mkdir``
    fails on a full disk. ``prune`` is what the error ``no-space`` advises.
    """
    with pytest.raises(OSError, match="No space left"):
        filled.data.with_name("note").write_bytes(bytes(5000))
    assert len(filled.prune().removed) == 1
    fill_up(filled.data.with_name("more"))
    active, previous = filled.active(), filled.previous()
    assert active
    assert previous
    filled.remove(previous.id)
    assert (filled.active(), filled.previous()) == (active, None)
    fill_up(filled.data.with_name("most"))
    filled.remove(active.id)
    assert filled.active() is None
    assert filled.installed() == ()
    assert snapshot(filled.data / "staging") == {}


def test_a_version_of_a_containers_image_can_be_removed(tmp_path: Path) -> None:
    """The kernel's page on overlayfs: to rename a folder of a lower layer fails with EXDEV."""
    if not ROOT or sys.platform != "linux":
        pytest.skip("needs root on Linux")
    image, upper, merged = (tmp_path / name for name in ("image", "upper", "merged"))
    for folder in (image, upper, merged):
        folder.mkdir()
    old, new = (
        install(Store(image / "data"), release, sealed=True) for release in ("b100", "b101")
    )
    mount(upper, "size=8m")
    try:
        (upper / "changes").mkdir(mode=0o755)
        (upper / "work").mkdir()
        layers = f"lowerdir={image},upperdir={upper / 'changes'},workdir={upper / 'work'}"
        words = ["mount", "-t", "overlay", "-o", layers, "none", merged]
        if subprocess.run(words, check=False, capture_output=True).returncode:
            pytest.skip("cannot mount here")
        store = Store(merged / "data")
        store.remove(old.id)
        store.remove(new.id)
        assert store.installed() == ()
        assert snapshot(store.data / "staging") == {}
        assert snapshot(store.data / "versions") == {}
    finally:
        subprocess.run(["umount", "-l", merged], check=False)
        subprocess.run(["umount", "-l", upper], check=False)
