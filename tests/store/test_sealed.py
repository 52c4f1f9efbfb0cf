"""A build is read-only on disk: everything that the store does with it works all the same.

Root ignores modes, so these run as another user.
"""

import functools
import os
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.stored import FILES, snapshot
from support.stored import install as install_open

from tsuku_llm.ground.errors import TamperedInstall
from tsuku_llm.store.reuse import confirm, supply, withdraw
from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs another user of the system")

NOBODY = 65534
install = functools.partial(install_open, sealed=True)
LIBRARY = "libggml-base.so.0.9.5"


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what the store needs: another user may not be able to read this Python."""
    store = Store(tmp_path_factory.mktemp("first") / "llm")
    for release in ("b1", "b2", "b3"):
        installed = install(store, release)
    plant(installed.tree, "core")
    store.admit(installed)
    store.prune()


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder that every user can enter; pytest's own ones are private."""
    with tempfile.TemporaryDirectory(prefix="tsuku-sealed-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_nobody(theirs: Path, act: Callable[[Store], object], *, owned: bool = True) -> None:
    """Do something as a user without rights, with a store that is theirs or root's."""
    data = theirs / "llm"
    if os.geteuid() == 0 and owned:
        os.chown(theirs, NOBODY, NOBODY)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            act(Store(data))
            code = 0
        except BaseException:  # noqa: BLE001 - the parent only sees the exit code
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, "see what it has written"


def plant(folder: Path, name: str) -> None:
    folder.chmod(0o755)
    (folder / name).write_bytes(b"foreign")
    folder.chmod(0o555)


def nothing_can_be_written(store: Store) -> None:
    installed = install(store)
    for folder in (installed.tree, installed.tree / "share", installed.tree / "share/licenses"):
        with pytest.raises(PermissionError):
            (folder / "notes.txt").write_bytes(b"")
    for name in FILES:
        with pytest.raises(PermissionError):
            (installed.tree / name).write_bytes(b"")
        with pytest.raises(PermissionError):
            (installed.tree / name).unlink()
    store.check(installed, full=True)


def a_removed_version_is_gone(store: Store) -> None:
    installed = install(store)
    store.remove(installed.id)
    assert not installed.path.exists()
    assert not any((store.data / "staging").iterdir())


def a_prune_removes_old_ones(store: Store) -> None:
    for release in ("b1", "b2", "b3"):
        install(store, release)
    assert len(store.prune().removed) == 1
    assert len(store.installed()) == 2
    assert not any((store.data / "staging").iterdir())


def a_damaged_version_is_replaced(store: Store) -> None:
    first = install(store)
    (first.tree / LIBRARY).chmod(0o644)
    (first.tree / LIBRARY).write_bytes(b"x" * len(FILES[LIBRARY]))
    again = install(store)
    store.check(again, full=True)


def versions_share_their_files(store: Store) -> None:
    old, new = install(store, "b1"), install(store, "b2")
    assert (old.tree / LIBRARY).samefile(new.tree / LIBRARY)
    store.remove(old.id)
    store.check(new, full=True)


def files_are_supplied_and_withdrawn(store: Store) -> None:
    installed = install(store)
    with store.staging() as staging:
        files = installed.receipt.files
        assert supply(staging.tree, files, store.installed())
        assert confirm(staging, staging.tree, files) == []
        withdraw(staging.tree, files)
        assert not any(path.is_file() for path in staging.tree.rglob("*"))


def an_extra_file_is_moved_and_the_folder_sealed_again(store: Store) -> None:
    installed = install(store)
    for folder, name in ((installed.tree, "core"), (installed.tree / "share", "x.so")):
        plant(folder, name)
    store.admit(installed)
    store.check(installed)
    assert {path.stat().st_mode & 0o777 for path in (installed.tree, installed.tree / "share")} == {
        0o555
    }
    kept = [path.name for path in (store.data / "set-aside").rglob("*") if path.is_file()]
    assert sorted(kept) == ["core", "x.so"]


def a_killed_install_is_swept(store: Store) -> None:
    """Killed when some of its folders were sealed already."""
    left = install(store).path.rename(store.data / "staging" / "0123456789abcdef")
    (left / "tree/share").chmod(0o755)
    (left.parent / f"{left.name}.lock").touch(0o600)
    store.sweep()
    assert not left.exists()


def a_version_with_extra_files_is_removed(store: Store) -> None:
    installed = install(store)
    plant(installed.tree / "share", "mine.txt")
    store.remove(installed.id)
    (kept,) = (store.data / "set-aside").rglob("mine.txt")
    assert kept.read_bytes() == b"foreign"


def a_build_from_before_is_accepted(store: Store) -> None:
    """It is not sealed."""
    installed = install(store)
    for path in (installed.tree, *installed.tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    store.admit(installed)
    plant(installed.tree, "core")
    installed.tree.chmod(0o755)
    store.admit(installed)
    store.use(installed)
    store.remove(installed.id)


def starts_at_once_move_the_same_files(store: Store) -> None:
    installed = install(store)
    for number in range(20):
        plant(installed.tree, f"core.{number}")
    failed: list[BaseException] = []

    def admit() -> None:
        try:
            Store(store.data).admit(installed)
        except BaseException as error:  # noqa: BLE001 - the main thread looks at it
            failed.append(error)

    threads = [threading.Thread(target=admit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len([*(store.data / "set-aside").rglob("core.*")]) == 20
    store.check(installed)


ACTS = (
    nothing_can_be_written,
    a_removed_version_is_gone,
    a_prune_removes_old_ones,
    a_damaged_version_is_replaced,
    versions_share_their_files,
    files_are_supplied_and_withdrawn,
    an_extra_file_is_moved_and_the_folder_sealed_again,
    a_killed_install_is_swept,
    a_version_with_extra_files_is_removed,
    a_build_from_before_is_accepted,
    starts_at_once_move_the_same_files,
)


@pytest.mark.parametrize("act", ACTS, ids=[act.__name__ for act in ACTS])
def test_N01_a_read_only_build(act: Callable[[Store], object], theirs: Path) -> None:
    as_nobody(theirs, act)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid(), reason="needs root")
def test_N01_an_extra_file_in_another_users_store_is_refused(theirs: Path) -> None:
    store = Store(theirs / "llm")
    installed = install(store)
    plant(installed.tree, "libggml-evil.so")
    before = snapshot(store.data)

    def admit(roots: Store) -> None:
        with pytest.raises(TamperedInstall, match="not as it was installed"):
            roots.admit(installed)

    as_nobody(theirs, admit, owned=False)
    assert snapshot(store.data) == before
