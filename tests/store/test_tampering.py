from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stored import FILES, install

from tsuku_llm.ground.errors import TamperedInstall
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.integrity import read_stamps, stamp_of
from tsuku_llm.store.store import Store

LIBRARY = "libggml-base.so.0.9.5"


def rewrite(path: Path) -> None:
    """Other bytes of the same size, written when the file system's clock has ticked."""
    before = path.stat()
    content = bytes(byte ^ 1 for byte in path.read_bytes())
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        with path.open("r+b") as file:
            file.write(content)


def rewrite_with_times_restored(path: Path) -> None:
    before = path.stat()
    rewrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def replace_by_link(path: Path) -> None:
    path.rename(path.parent.parent / "moved")
    path.symlink_to(path.parent.parent / "moved")


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_hard_link(path: Path) -> None:
    other = path.parent.parent / "other"
    other.write_bytes(bytes(path.stat().st_size))
    path.unlink()
    path.hardlink_to(other)


def truncate(path: Path) -> None:
    os.truncate(path, 10)


TAMPERING: list[tuple[str, Callable[[Path], object], str]] = [
    ("X01-server-changed", lambda tree: rewrite(tree / "llama-server"), "llama-server"),
    ("X01-library-changed", lambda tree: rewrite(tree / LIBRARY), LIBRARY),
    ("X01-library-truncated", lambda tree: truncate(tree / LIBRARY), LIBRARY),
    ("X01-library-deleted", lambda tree: (tree / LIBRARY).unlink(), f"missing: {LIBRARY}"),
    ("X01-link-deleted", lambda tree: (tree / "libggml-base.so").unlink(), "libggml-base.so"),
    ("X01-tree-deleted", lambda tree: tree.rename(tree.parent / "gone"), "missing: tree"),
    (
        "X02-extra-backend",
        lambda tree: (tree / "libggml-evil.so").write_bytes(b"x"),
        "not part of the build: libggml-evil.so",
    ),
    ("X02-extra-in-a-subfolder", lambda tree: (tree / "share/x").write_bytes(b""), "share/x"),
    ("X02-extra-folder", lambda tree: (tree / "plugins").mkdir(), "plugins"),
    ("X02-extra-link", lambda tree: (tree / "libx.so").symlink_to("/lib/libx.so"), "libx.so"),
    ("X02-unprintable-name", lambda tree: (tree / "a\x1b[2Jb").write_bytes(b""), r"a\x1b[2Jb"),
    (
        "X03-file-became-a-link",
        lambda tree: replace_by_link(tree / LIBRARY),
        f"a file became a link: {LIBRARY}",
    ),
    ("X03-file-became-a-fifo", lambda tree: replace_by_fifo(tree / LIBRARY), "special file"),
    ("X03-hard-link-to-another", lambda tree: replace_by_hard_link(tree / LIBRARY), LIBRARY),
    ("X03-tree-became-a-link", replace_by_link, "missing: tree"),
    (
        "X03-link-target-changed",
        lambda tree: (
            (tree / "libggml-base.so").unlink(),
            (tree / "libggml-base.so").symlink_to("/tmp/evil.so"),  # noqa: S108
        ),
        "link changed: libggml-base.so -> /tmp/evil.so",
    ),
    (
        "X04-times-restored",
        lambda tree: rewrite_with_times_restored(tree / LIBRARY),
        f"content changed: {LIBRARY}",
    ),
]


@pytest.mark.parametrize(
    ("tamper", "fact"),
    [pytest.param(tamper, fact, id=name) for name, tamper, fact in TAMPERING],
)
@pytest.mark.parametrize("full", [False, True], ids=["quick", "full"])
def test_changed_files_are_named(
    store: Store, tamper: Callable[[Path], object], fact: str, full: bool
) -> None:
    installed = install(store)
    store.check(installed)
    tamper(installed.tree)
    with pytest.raises(TamperedInstall) as caught:
        store.check(installed, full=full)
    assert any(fact in line for line in caught.value.facts), caught.value.facts
    assert caught.value.hint


def test_X04_a_changed_shared_file_with_restored_times_is_found(store: Store) -> None:
    old, new = install(store, "b100"), install(store, "b200")
    assert (old.tree / LIBRARY).samefile(new.tree / LIBRARY)
    rewrite_with_times_restored(old.tree / LIBRARY)
    for version in (old, new):
        with pytest.raises(TamperedInstall):
            store.check(version)


def test_a_long_list_of_differences_is_shortened(store: Store) -> None:
    installed = install(store)
    for number in range(50):
        (installed.tree / f"extra-{number}").write_bytes(b"")
    with pytest.raises(TamperedInstall) as caught:
        store.check(installed)
    assert caught.value.facts[-1] == "and 38 more"


def is_fresh(installed: Installed) -> bool:
    """Whether a check would have to hash nothing."""
    stamps = read_stamps(installed.path)
    return all(
        stamps[file.path] == stamp_of((installed.tree / file.path).lstat())
        for file in installed.receipt.files
    )


def test_a_touched_file_is_hashed_once(store: Store) -> None:
    installed = install(store)
    assert is_fresh(installed)
    (installed.tree / LIBRARY).touch()
    assert not is_fresh(installed)
    store.check(installed)
    assert is_fresh(installed)


@pytest.mark.parametrize(
    "content",
    [None, b"", b"\0" * 100, b"[]", b'{"files": 3}', b'{"files": {"llama-server": "x"}}', b"{"],
)
def test_C10_a_lost_or_damaged_fingerprint_is_made_again(
    store: Store, content: bytes | None
) -> None:
    installed = install(store)
    path = installed.path / "fingerprint.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    store.check(installed)
    assert is_fresh(installed)
    rewrite(installed.tree / LIBRARY)
    path.unlink()
    with pytest.raises(TamperedInstall):
        store.check(installed)


def test_identical_files_are_stored_once_and_stay_fresh(store: Store) -> None:
    new_files = {**FILES, "llama-server": b"newer"}
    old = install(store, "b100", sealed=True)
    new = install(store, "b200", files=new_files, sealed=True)
    for path in FILES:
        same = (old.tree / path).samefile(new.tree / path)
        assert same == (path != "llama-server"), path
    assert is_fresh(old)
    assert is_fresh(new)


def test_removing_a_version_updates_the_fingerprints_of_versions_that_share_its_files(
    store: Store,
) -> None:
    old, new = install(store, "b100"), install(store, "b200")
    store.remove(old.id)
    assert is_fresh(new)
    store.check(new, full=True)


def test_a_damaged_source_is_not_linked(store: Store) -> None:
    old = install(store, "b100")
    rewrite(old.tree / LIBRARY)
    new = install(store, "b200")
    assert not (old.tree / LIBRARY).samefile(new.tree / LIBRARY)
    assert (new.tree / LIBRARY).read_bytes() == FILES[LIBRARY]
    assert (old.tree / "llama-server").samefile(new.tree / "llama-server")
    store.check(new, full=True)


def test_files_of_other_modes_are_not_shared(store: Store) -> None:
    content = FILES["llama-server"]
    old = install(store, "b100", sealed=True)
    new = install(store, "b200", files={**FILES, "other": content}, sealed=True)
    assert (old.tree / "llama-server").samefile(new.tree / "llama-server")
    assert (new.tree / "other").stat().st_mode & 0o777 == 0o444
    assert (new.tree / "llama-server").stat().st_mode & 0o777 == 0o555
