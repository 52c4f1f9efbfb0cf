"""Row S13: one release file that cannot be read stops no work on the others."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.folder_shop import FolderShop
from support.program import COMMAND, run_program
from support.release_server import NAME, User
from support.repository import cpu_platform, release_document
from support.tools import require_tool

Document = dict[str, Any]


def newer_format(document: Document) -> None:
    document["format"] = 2


def another_release(document: Document) -> None:
    document["release"] = "b7"


SIGNED: dict[str, Callable[[Document], None]] = {
    "newer_format": newer_format,
    "another_release": another_release,
}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.rename(path.with_suffix(".away"))
    path.symlink_to(path.with_suffix(".away"))


DAMAGED: dict[str, Callable[[Path], object]] = {
    "cut": cut,
    "missing": Path.unlink,
    "fifo": fifo,
    "link": link,
}


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    shop = FolderShop(tmp_path / "shop")
    shop.publish("b1", {"cpu": shop.variant(shop.stand_in("b1"))})
    return shop


def publish_unreadable(shop: FolderShop, change: Callable[[Document], None]) -> None:
    """Sign b2, newer than b1 and in the same channel, with a file that is not understood."""
    document = release_document("b2", platforms={"linux-amd64": cpu_platform()})
    entry = {**document, "sequence": 2, "channels": ["stable"]}
    changed = json.loads(json.dumps(document))
    change(changed)
    data = json.dumps(changed).encode()
    keys = ("release", "publisher", "published", "sequence", "channels")
    shop.simulator.add_target("releases/b2.json", data, {key: entry[key] for key in keys})
    shop.simulator.bump()
    shop.write()


def with_unreadable(shop: FolderShop, home: Path, kind: str) -> User:
    """A user whose metadata has b1, and b2 with a file of that kind."""
    publish_unreadable(shop, SIGNED.get(kind, lambda _: None))
    user = shop.user(home)
    done = user.run("repository", "refresh", NAME)
    assert done.code == 0, done.stderr
    if kind in DAMAGED:
        (file,) = (user.data / "metadata").rglob("*.b2.json")
        DAMAGED[kind](file)
    return user


@pytest.mark.parametrize("kind", [*SIGNED, *DAMAGED])
def test_S13_the_other_releases_are_used(shop: FolderShop, tmp_path: Path, kind: str) -> None:
    user = with_unreadable(shop, tmp_path / "home", kind)
    done = user.run("install", "--json")
    assert done.code == 0, done.stderr
    assert done.document["data"]["release"] == "b1"
    assert "b2 is skipped" in done.stderr
    named = user.run("install", "--release", "b2", "--json")
    assert named.code in (5, 6)
    assert "b2" in str(named.document["error"]), "asked for by its name, it is an error"
    assert user.run("config", "set", "llm.backend", "cpu").code == 0


COMMANDS = (
    ("install",),
    ("install", "--dry-run"),
    ("update", "--check"),
    ("update",),
    ("list",),
    ("list", "--available"),
    ("explain",),
    ("backends",),
    ("doctor",),
    ("config", "set", "llm.backend", "cpu"),
    ("serve", "--dry-run"),
    ("verify",),
)


def unknown_backend(variant: Document) -> None:
    variant["backend"] = "npu"


def unknown_format_of_archive(variant: Document) -> None:
    variant["artifacts"][0]["format"] = "tar.zst"


def unknown_url(variant: Document) -> None:
    variant["artifacts"][0]["url"] = "oci://host/archive@sha256:0"


def unknown_key(variant: Document) -> None:
    variant["requires"]["npu"] = "2"


def unknown_key_inside(variant: Document) -> None:
    cuda = {"toolkit": "13.4", "sass": ["8.6"], "ptx": [], "driver": "610.0"}
    variant |= {"backend": "cuda", "requires": {"cuda": cuda}}


def unknown_word(variant: Document) -> None:
    rocm = {"runtime": "10.0", "gfx": ["gfx1100", "gfx12-generic"]}
    variant |= {"backend": "rocm", "requires": {"rocm": rocm}}


NEWER: dict[str, Callable[[Document], None]] = {
    "unknown_backend": unknown_backend,
    "unknown_format_of_archive": unknown_format_of_archive,
    "unknown_url": unknown_url,
    "unknown_key": unknown_key,
    "unknown_key_inside": unknown_key_inside,
    "unknown_word": unknown_word,
}


@pytest.mark.parametrize("kind", NEWER)
def test_S13_a_variant_of_a_newer_version_leaves_the_others_of_its_release(
    shop: FolderShop, tmp_path: Path, kind: str
) -> None:
    newer = json.loads(json.dumps(shop.variant(shop.stand_in("b2-newer"))))
    NEWER[kind](newer)
    shop.publish("b2", {"newer": newer, "cpu": shop.variant(shop.stand_in("b2"))})
    user = shop.user(tmp_path / "home")
    assert user.run("repository", "refresh", NAME).code == 0
    explained = user.run("explain", "--json")
    assert explained.code == 0, explained.stderr
    told = {each["variant"]: each for each in explained.document["data"]["variants"]}
    assert told["newer"]["code"] == "unknown-requirement"
    assert "not understood by this version" in told["newer"]["reason"]
    done = user.run("install", "--json")
    assert done.code == 0, done.stderr
    assert (done.document["data"]["release"], done.document["data"]["variant"]) == ("b2", "cpu")
    assert "skipped" not in done.stderr
    asked = user.run("install", "--backend", "newer", "--json")
    assert asked.code == 3, asked.stderr
    assert "update tsuku-llm" in str(asked.document["error"])


def test_S13_if_no_variant_is_understood_the_release_before_is_taken(
    shop: FolderShop, tmp_path: Path
) -> None:
    newer = json.loads(json.dumps(shop.variant(shop.stand_in("b2"))))
    unknown_key(newer)
    shop.publish("b2", {"cpu": newer})
    user = shop.user(tmp_path / "home")
    assert user.run("repository", "refresh", NAME).code == 0
    done = user.run("install", "--json")
    assert done.code == 0, done.stderr
    assert done.document["data"]["release"] == "b1"
    assert "b1 is the newest that fits this machine, not b2" in done.stderr


def test_S13_every_command_works_despite_an_unreadable_release(
    shop: FolderShop, tmp_path: Path
) -> None:
    user = with_unreadable(shop, tmp_path / "home", "newer_format")
    for words in COMMANDS:
        done = user.run(*words, "--json")
        assert done.code == 0, (words, done.stderr)
    listed = user.run("list", "--available", "--json").document["data"]["releases"]
    assert [(each["release"], each["readable"]) for each in listed] == [("b2", False), ("b1", True)]
    assert "cannot be read" in user.run("list", "--available").stdout


def test_S13_if_no_release_can_be_read_the_first_error_is_told(
    shop: FolderShop, tmp_path: Path
) -> None:
    del shop.simulator.targets.targets["releases/b1.json"]
    user = with_unreadable(shop, tmp_path / "home", "newer_format")
    # A setting can be written without them: no release is needed to know the backends.
    assert user.run("config", "set", "llm.backend", "cpu").code == 0
    for words in (("install",), ("explain",)):
        done = user.run(*words, "--json")
        assert (done.code, done.document["error"]["code"]) == (5, "bad-manifest"), done.stderr
        assert "b2" in done.document["error"]["message"]


def test_S13_a_release_that_is_not_understood_can_still_be_revoked(
    shop: FolderShop, tmp_path: Path
) -> None:
    user = shop.user(tmp_path / "home")
    assert user.run("repository", "refresh", NAME).code == 0
    assert user.run("install").code == 0
    (name,) = (path for path in shop.simulator.targets.targets if path.endswith("b1.json"))
    target = shop.simulator.targets.targets[name]
    document = json.loads(shop.simulator.files[f"targets/{target.get_prefixed_paths()[0]}"])
    document |= {"revoked": True, "format": 2}
    shop.simulator.add_target(name, json.dumps(document).encode(), target.custom)
    shop.simulator.bump()
    shop.write()
    assert user.run("repository", "refresh", NAME).code == 0
    (listed,) = user.run("list", "--available", "--json").document["data"]["releases"]
    (reason,) = listed["passed_over"]
    assert (reason["release"], reason["slug"], listed["readable"]) == ("b1", "revoked", False)
    done = user.run("serve", "--json")
    assert (done.code, done.document["error"]["code"]) == (5, "revoked"), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's")
@pytest.mark.parametrize("line", ["update", "update --check", "install"])
def test_C04_a_disk_error_does_not_make_an_old_release_the_newest(
    shop: FolderShop, tmp_path: Path, line: str
) -> None:
    """The file of b2 is intact and signed: only the disk fails, and perhaps not the next time."""
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    shop.publish("b2", {"cpu": shop.variant(shop.stand_in("b2"))})
    assert user.run("repository", "refresh", NAME).code == 0
    (file,) = (user.data / "metadata").rglob("*.b2.json")
    inject = ("-e", "inject=read,pread64:error=EIO", "-P", str(file))
    trace = tmp_path / "trace"
    strace = (require_tool("strace"), "-f", "-qq", "-o", str(trace), *inject)
    words = (*line.split(), "--offline") if line == "install" else line.split()
    done = run_program(*words, env=user.env, command=(*strace, *COMMAND))
    assert "EIO" in trace.read_text()
    assert done.code == 6, done.stderr
    assert "error[store]" in done.stderr
    assert user.run(*words).code == 0
