"""A server never touches its build: where it runs, what it leaves, and what lies beside its files.

The server is a shell script that says where it is and what it may do.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.builds import stand_in
from support.program import COMMAND, Result, environment, run_program
from support.stored import FILES, install

from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the server is a shell script")

ROOT = getattr(os, "geteuid", lambda: 1)() == 0
as_root = pytest.mark.skipif(not ROOT, reason="needs root, to give a folder away")
OTHER = 65534
SERVER = b'#!/bin/sh\necho "cwd $(pwd)"\necho "cores $(ulimit -Sc) $(ulimit -Hc)"\n'
WITH_CORES = ("/bin/sh", "-c", 'ulimit -c unlimited; exec "$@"', "sh", *COMMAND)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def installed(home: Path) -> Installed:
    return install(Store(home / "llm"), files={**FILES, "llama-server": SERVER})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder from which the user calls."""
    made = tmp_path / "models"
    made.mkdir(mode=0o755)
    return made


def serve(home: Path, cwd: Path, *options: str, command: tuple[str, ...] = COMMAND) -> Result:
    line = ("serve", "--exec", *options, "--", "-m", "a.gguf")
    return run_program(*line, env=environment(home), cwd=cwd, command=command)


def where(done: Result) -> Path:
    """The folder in which the server said that it runs."""
    assert done.code == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("cwd "))
    return Path(line.removeprefix("cwd "))


def plant(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(b"evil")


UNSAFE: dict[str, Callable[[Path], object]] = {
    "a-plugin": plant("libggml-cpu-evil.so"),
    "a-base-plugin": plant("libggml-vulkan.so"),
    "a-linked-plugin": lambda folder: (folder / "libggml-x.so").symlink_to("/lib/x.so"),
    "everybody-writes": lambda folder: folder.chmod(0o777),
    "sticky": lambda folder: folder.chmod(0o1777),
    "a-shared-group-writes": lambda folder: (os.chown(folder, 0, OTHER), folder.chmod(0o775)),
    "a-sticky-shared-group": lambda folder: (os.chown(folder, 0, OTHER), folder.chmod(0o1775)),
    "another-users": lambda folder: os.chown(folder, OTHER, OTHER),
    "below-an-open-folder": lambda folder: folder.parent.chmod(0o777),
}
NEEDS_ROOT = {"a-shared-group-writes", "a-sticky-shared-group", "another-users"}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[as_root] * (name in NEEDS_ROOT))
        for name, make in UNSAFE.items()
    ],
)
@pytest.mark.usefixtures("installed")
def test_N01_a_server_runs_in_no_folder_that_could_give_it_a_plugin(
    make: Callable[[Path], object], home: Path, folder: Path, tmp_path: Path
) -> None:
    # The store is not below the folder that is opened.
    store = tmp_path.parent / f"{tmp_path.name}-store"
    home.rename(store)
    make(folder)
    done = serve(store, folder)
    assert where(done) == store / "llm/state/work"
    assert "the server runs in another folder" in done.stderr
    assert (store / "llm/state/work").stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("installed")
def test_N01_a_server_runs_in_the_users_folder(home: Path, folder: Path) -> None:
    done = serve(home, folder)
    assert where(done) == folder
    assert "warning" not in done.stderr
    shown = run_program(
        "serve", "--dry-run", "--json", "--", "-m", "a.gguf", env=environment(home), cwd=folder
    )
    assert json.loads(shown.stdout)["data"]["cwd"] == str(folder), "a dry run says the same"


def test_N01_a_server_does_not_run_in_its_build(
    installed: Installed, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(installed.tree)
    inside = (installed.tree / "share", installed.path, home / "llm/versions", home / "llm")
    for folder in (installed.tree, tmp_path / "link", *inside):
        done = serve(home, folder)
        assert where(done) == home / "llm/state/work", folder
        assert "belongs to tsuku-llm" in done.stderr


@pytest.mark.usefixtures("installed")
def test_N01_the_root_folder_is_nobodys(home: Path) -> None:
    """A service without a folder runs there."""
    done = serve(home, Path("/"))
    assert where(done) == home / "llm/state/work"
    assert "warning" not in done.stderr


@pytest.mark.usefixtures("installed")
def test_N01_a_server_that_several_programs_share_runs_in_none_of_their_folders(
    home: Path, folder: Path
) -> None:
    line = ("serve", "--notify", "library", "--", "-m", "a.gguf")
    done = run_program(*line, env=environment(home), cwd=folder)
    log = (home / "llm/state/servers/default.log").read_text("utf-8")
    assert f"cwd {home / 'llm/state/work'}\n" in log
    assert "warning" not in log + done.stderr


@pytest.mark.usefixtures("installed")
def test_N01_a_plugin_in_our_own_folder_is_named(home: Path) -> None:
    assert serve(home, Path("/")).code == 0
    (home / "llm/state/work/libggml-cpu-evil.so").write_bytes(b"evil")
    done = serve(home, Path("/"))
    assert (done.code, done.stdout) == (6, "")
    assert "state/work" in done.stderr


@pytest.mark.usefixtures("installed")
def test_N01_a_server_makes_no_core_dump(home: Path, folder: Path) -> None:
    done = serve(home, folder, command=WITH_CORES)
    # The hard limit stays: the user can ask for the core of a server that runs.
    assert "cores 0 unlimited" in done.stdout
    tool = run_program("run", "llama-server", env=environment(home), cwd=folder, command=WITH_CORES)
    assert "cores unlimited unlimited" in tool.stdout, "a tool is the user's own program"


def test_N01_a_crash_leaves_nothing_and_the_next_start_works(home: Path, folder: Path) -> None:
    crashing = b"#!/bin/sh\necho listening on http://127.0.0.1:1 >&2\nkill -SEGV $$\n"
    installed = install(Store(home / "llm"), files={**FILES, "llama-server": crashing})
    for _ in range(2):
        line = ("serve", "--", "--port", "1")
        done = run_program(*line, env=environment(home), cwd=folder, command=WITH_CORES)
        assert done.code == 128 + 11, done.stderr
        assert [*folder.iterdir()] == []
        Store(home / "llm").check(installed)


EXTRA: dict[str, Callable[[Path], object]] = {
    "a-core": plant("core"),
    "a-note-of-a-tool": plant("notes.txt"),
    "a-plugin": plant("libggml-cpu-evil.so"),
    "a-library-by-rpath": plant("libc.so.6"),
    "a-hidden-file": plant(".x"),
    "in-a-subfolder": plant("share/licenses/x"),
    "an-unprintable-name": plant("a\x1b[2Jb"),
    "an-empty-folder": lambda tree: (tree / "glibc-hwcaps").mkdir(),
    "a-sealed-folder": lambda tree: (
        (tree / "sealed/below").mkdir(parents=True),
        plant("sealed/below/x")(tree),
        (tree / "sealed").chmod(0o555),
    ),
    "a-link": lambda tree: (tree / "libx.so").symlink_to("/lib/x.so"),
    "a-fifo": lambda tree: os.mkfifo(tree / "fifo"),
    "a-file-without-rights": lambda tree: (plant("x")(tree), (tree / "x").chmod(0)),
}


def opened(tree: Path) -> Path:
    """The tree, open for those who are not root."""
    for folder in (tree, *(path for path in tree.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return tree


@pytest.mark.parametrize("make", EXTRA.values(), ids=EXTRA)
def test_N01_a_file_beside_the_right_ones_is_moved_away(
    make: Callable[[Path], object], installed: Installed, home: Path, folder: Path
) -> None:
    before = {path.relative_to(installed.tree) for path in installed.tree.rglob("*")}
    make(opened(installed.tree))
    extra = {path.relative_to(installed.tree) for path in installed.tree.rglob("*")} - before
    done = serve(home, folder)
    assert done.code == 0, done.stderr
    assert "is not part of the build, and was moved to" in done.stderr
    assert {path.relative_to(installed.tree) for path in installed.tree.rglob("*")} == before
    (aside,) = (home / "llm/set-aside").iterdir()
    kept = aside / installed.id / "tree"
    assert extra == {path.relative_to(kept) for path in kept.rglob("*")} & extra
    assert run_program("verify", env=environment(home)).code == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda tree: (tree / "libggml-base.so.0.9.5").unlink(),
        lambda tree: (tree / "libggml-base.so.0.9.5").write_bytes(b"BASE" * 500),
        lambda tree: (tree / "libggml-base.so.0.9.5").write_bytes(b"short"),
        lambda tree: ((tree / "libggml-base.so").unlink(), plant("libggml-base.so")(tree)),
    ],
    ids=["missing", "changed", "shorter", "a-link-became-a-file"],
)
def test_N01_a_changed_file_is_refused_with_and_without_an_extra_one(
    damage: Callable[[Path], object], installed: Installed, home: Path, folder: Path
) -> None:
    (opened(installed.tree) / "libggml-base.so.0.9.5").chmod(0o644)
    damage(installed.tree)
    assert serve(home, folder).code == 5
    plant("notes.txt")(installed.tree)
    done = serve(home, folder)
    assert (done.code, done.stdout) == (5, "")
    assert "libggml-base.so" in done.stderr


def test_N01_what_appears_while_a_server_starts_ends_it_and_not_the_next_one(
    home: Path, folder: Path
) -> None:
    """A plugin may have been loaded by then."""
    writing = b"""#!/bin/sh
chmod u+w "$(dirname "$0")"
touch "$(dirname "$0")/x.so"
exec "$(dirname "$0")/llama-real" "$@"
"""
    build = stand_in(home.parent / "build").tree
    files = {"llama-server": writing, "llama-real": (build / "llama-server").read_bytes()}
    files["stand-in.txt"] = (build / "stand-in.txt").read_bytes()
    installed = install(Store(home / "llm"), files=files, links={})
    for _ in range(2):
        done = run_program("serve", "--", "--port", "0", env=environment(home), cwd=folder)
        assert done.code == 5, done.stderr
        assert "not part of the build: x.so" in done.stderr
        assert "the next start moves such files out of the build" in done.stderr
    assert run_program("use", "b100", env=environment(home)).code == 0
    assert len([*(home / "llm/set-aside").rglob("x.so")]) == 2
    assert installed.tree.exists()


@pytest.mark.parametrize("words", [("use", "b100"), ("install", "--dry-run"), ("doctor",)])
def test_N01_a_look_changes_nothing(
    words: tuple[str, ...], installed: Installed, home: Path, folder: Path
) -> None:
    plant("notes.txt")(opened(installed.tree))
    run_program(*words, env=environment(home), cwd=folder)
    moved = [*(home / "llm/set-aside").rglob("notes.txt")]
    assert len(moved) == (words[0] == "use"), "only a command that uses the build moves it"
