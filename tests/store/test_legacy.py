from __future__ import annotations

from pathlib import Path

from support.stored import install, snapshot

from tsuku_llm.store.legacy import find_legacy
from tsuku_llm.store.store import Store


def leave(path: Path, content: str = "old") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_every_layout_of_the_addon_is_named_and_only_prune_removes_it(tmp_path: Path) -> None:
    home = tmp_path / "tsuku"
    leave(home / "addons" / "tsuku-llm" / "0.1.0" / "tsuku-llm")
    leave(home / "tools" / "tsuku-llm" / "tsuku-llm")
    leave(home / "tools" / "tsuku-llm" / "0.2.0" / "tsuku-llm")
    leave(home / "tools" / "tsuku-llm" / "0.2.0" / ".download.lock")
    leave(home / "tools" / "tsuku-llm" / "0.3.0" / "tsuku-llm.exe")
    kept = {
        "addons/other/x",
        "tools/tsuku-llm-0.5.0/bin/tsuku-llm",
        "tools/tsuku-llm/notes/readme",
        "tools/other/tsuku-llm",
    }
    for name in kept:
        leave(home / name)
    store = Store(home / "tools" / "tsuku-llm")
    installed = install(store)

    found = find_legacy(home)
    assert {addon.path.relative_to(home).as_posix(): addon.what for addon in found} == {
        "addons/tsuku-llm": "tsuku's first addon",
        "tools/tsuku-llm/0.2.0": "tsuku's addon 0.2.0",
        "tools/tsuku-llm/0.3.0": "tsuku's addon 0.3.0",
        "tools/tsuku-llm/tsuku-llm": "tsuku's addon without a version",
    }
    before = snapshot(home)
    store.sweep()
    assert store.prune().legacy_removed == ()
    assert snapshot(home) == before

    assert store.prune(legacy_home=home).legacy_removed == found
    assert find_legacy(home) == ()
    assert all((home / name).is_file() for name in kept)
    store.check(installed, full=True)


def test_links_are_left_alone(tmp_path: Path) -> None:
    leave(tmp_path / "elsewhere" / "tsuku-llm")
    (tmp_path / "home" / "addons").mkdir(parents=True)
    (tmp_path / "home" / "tools" / "tsuku-llm").mkdir(parents=True)
    (tmp_path / "home" / "addons" / "tsuku-llm").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "home" / "tools" / "tsuku-llm" / "1.0").symlink_to(tmp_path / "elsewhere")
    assert find_legacy(tmp_path / "home") == ()


def test_a_home_without_the_addon_reports_none(tmp_path: Path) -> None:
    assert find_legacy(tmp_path / "missing") == ()


def test_S16_only_the_addon_s_own_files_are_removed(tmp_path: Path) -> None:
    home = tmp_path / "tsuku"
    first, second = home / "addons" / "tsuku-llm", home / "tools" / "tsuku-llm"
    mine = {first / "photos" / "1.jpg", second / "0.2.0" / "thesis.odt", second / "src" / "main.c"}
    for path in (first / "tsuku-llm", second / "0.2.0" / "tsuku-llm", second / "src" / "tsuku-llm"):
        leave(path)
    for path in mine:
        leave(path, "mine")
    store = Store(home / "llm")
    assert store.prune(legacy_home=home).legacy_removed
    assert find_legacy(home) == ()
    assert all(path.read_text() == "mine" for path in mine)
    assert (second / "src" / "tsuku-llm").exists()
    assert not (first / "tsuku-llm").exists()
    assert not (second / "0.2.0" / "tsuku-llm").exists()


def test_S01_a_linked_parent_of_the_addon_is_not_followed(tmp_path: Path) -> None:
    leave(tmp_path / "mine" / "tsuku-llm" / "1.0.0" / "tsuku-llm")
    before = snapshot(tmp_path / "mine")
    (tmp_path / "home").mkdir()
    for name in ("addons", "tools"):
        (tmp_path / "home" / name).symlink_to(tmp_path / "mine")
    store = Store(tmp_path / "home" / "llm")
    assert store.prune(legacy_home=tmp_path / "home").legacy_removed == ()
    assert snapshot(tmp_path / "mine") == before
