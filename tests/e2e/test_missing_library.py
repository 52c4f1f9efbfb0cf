"""A build needs a library that it does not bring: asked before the download, named everywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.builds import compile_library
from support.folder_shop import FolderShop
from support.release_server import User

LIBRARY = "libtsukutest.so.7"


@pytest.fixture
def user(tmp_path: Path) -> User:
    """Of a release whose only build needs a library that the probe does not ask for by itself."""
    shop = FolderShop(tmp_path / "shop")
    build = shop.variant(shop.stand_in("b1-cpu"), requires={"libraries": [LIBRARY]})
    shop.publish("b1", {"cpu": build})
    return shop.user(tmp_path / "home")


def test_it_is_refused_before_the_download_and_the_library_is_named(user: User) -> None:
    reason = f"needs {LIBRARY}, which this system lacks"
    fix = f"install the package of your system that has {LIBRARY}"
    installed = user.run("install")
    assert installed.code == 3, installed.stderr
    assert reason in installed.stderr
    assert fix in installed.stderr
    for words in (("explain",), ("doctor", "--backend", "cpu")):
        done = user.run(*words)
        assert reason in done.stdout + done.stderr, words
        assert fix in done.stdout + done.stderr, words
    assert not user.versions()
    assert not [*user.data.glob("partials/*")]


def test_it_is_taken_where_the_servers_loader_finds_the_library(user: User, tmp_path: Path) -> None:
    compile_library(tmp_path / LIBRARY, "int here;", "-nostdlib")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("LD_LIBRARY_PATH"))))
    done = user.run("install", LD_LIBRARY_PATH=path)
    assert done.code == 0, done.stderr
    assert len(user.versions()) == 1
