"""The modes that every writing command sets below a home, with any umask."""

import os
import stat
import subprocess
from pathlib import Path

import pytest
from support.folder_shop import FolderShop
from support.program import COMMAND, Result, environment
from support.release_server import NAME

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")

PRIVATE = {"llm/state/servers", "llm/state/credentials", "llm/state/work"}
"""Folders that only their owner may look into: prompts and keys."""

STEPS = (
    ("config", "set", "llm.prefer", "portable"),
    ("config", "unset", "llm.prefer"),
    ("repository", "refresh", NAME),
    ("install",),
    ("serve",),
    ("serve", "--detach", "--", "--port", "0"),
    ("stop",),
    ("service", "systemd", "--", "--api-key", "K"),
    ("run", "llama-server"),
    ("bench", "-m", "model.gguf", "--rounds", "1", "--yes", "--save"),
)
LATER = (
    ("update", "--check"),
    ("update",),
    ("rollback",),
    ("use", "b1"),
    ("install", "--force"),
    ("uninstall", "b2"),
    ("prune",),
)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o027, 0o077], ids=lambda mask: f"{mask:03o}")
def test_T15_folders_and_files_have_the_same_modes_with_any_umask(
    mask: int, tmp_path: Path
) -> None:
    """Others can read what is installed, only the user can write, and secrets stay private."""
    shop, home = FolderShop(tmp_path / "shop"), tmp_path / "made" / "home"
    shop.publish(
        "b1",
        {"cpu": shop.variant(shop.stand_in("b1-cpu", serve=("err listening on :1", "exit 0")))},
    )
    root = tmp_path / "root.json"
    root.write_bytes(shop.simulator.pinned_root)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    env = environment(home, TSUKU_LLM_MIRROR=shop.mirror, TSUKU_LLM_REPOSITORY=NAME)

    def run(*words: str) -> Result:
        done = subprocess.run(
            [*COMMAND, *words],
            env=env,
            cwd=tmp_path,
            umask=mask,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert wrong(home) == [], words
        return Result(done.returncode, done.stdout, done.stderr)

    added = run("repository", "add", NAME, shop.simulator.url, "--root", str(root))
    assert added.code == 0, added.stderr
    codes = {words[0]: run(*words).code for words in STEPS}
    assert codes["install"] == 0
    shop.publish(
        "b2",
        {"cpu": shop.variant(shop.stand_in("b2-cpu", serve=("err listening on :1", "exit 0")))},
    )
    codes = {words[0]: run(*words).code for words in LATER}
    assert set(codes.values()) == {0}
    assert run("repository", "remove", NAME).code == 0


def wrong(home: Path) -> list[str]:
    """Each name whose mode is not what it is to be."""
    paths = [home.parent, home, *home.rglob("*")] if home.exists() else []
    found = []
    for path in paths:
        mode, name = path.lstat().st_mode, os.path.relpath(path, home)
        if stat.S_ISLNK(mode):
            continue
        bits = stat.S_IMODE(mode)
        if bits not in expected(name, folder=stat.S_ISDIR(mode)):
            found.append(f"{name}: {bits:o}")
    return found


def expected(name: str, *, folder: bool) -> set[int]:
    """The modes that a name may have."""
    in_a_build = name.startswith("llm/versions/") and "/tree" in name
    if folder:
        return {0o700} if name in PRIVATE else {0o555} if in_a_build else {0o755}
    if in_a_build:
        return {0o444, 0o555}
    closed = any(name.startswith(f"{folder}/") for folder in PRIVATE)
    closed = closed or name == "config.toml"  # settings follow the umask
    if name.startswith("llm/locks/"):
        return {0o600}  # another user who can open a lock can hold it
    return {0o600, 0o640, 0o644} if closed else {0o644}
