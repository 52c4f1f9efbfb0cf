"""An update fetches what changed: archives whose files are installed are linked, not fetched."""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.builds import NO_DEVICE_STEPS, Packed, pack_tar, pack_zip, stand_in
from support.program import run_program
from support.release_server import NAME, ReleaseServer, User

from tsuku_llm.cli.terminal.text import size


def listed(shop: ReleaseServer, packed: Packed, tree: Path) -> dict[str, Any]:
    """The entry of an archive, with the files that it brings."""
    files = [
        {
            "path": path.name,
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "executable": bool(path.stat().st_mode & 0o111) or ".so" not in path.name,
        }
        for path in sorted(tree.iterdir())
    ]
    return {**packed.artifact(shop.url(packed)), "files": files}


def runtime(shop: ReleaseServer, name: str, content: bytes = b"a runtime" * 5000) -> dict[str, Any]:
    """A companion archive; the name is that of the archive alone."""
    tree = shop.nginx.root.parent / "builds" / name
    tree.mkdir(parents=True)
    (tree / "libruntime.so.1").write_bytes(content)
    archive = shop.nginx.root / "archives" / f"{name}.tar.gz"
    return listed(shop, pack_tar(tree, archive, root=name), tree)


def publish(shop: ReleaseServer, tag: str, companion: Mapping[str, Any]) -> None:
    build = shop.stand_in(f"{tag}-build", version=(f"out version: {tag}",))
    variant = shop.variant(build)
    variant["artifacts"].append(companion)
    shop.publish(tag, {"cpu": variant})


@pytest.fixture
def owner(shop: ReleaseServer, tmp_path: Path) -> User:
    publish(shop, "b1", runtime(shop, "runtime-1"))
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    return user


def fetched(shop: ReleaseServer, since: int) -> list[str]:
    return [line.path.rpartition("/")[2] for line in shop.downloads()[since:]]


def updated(shop: ReleaseServer, owner: User, companion: Mapping[str, Any]) -> list[str]:
    """What an update to b2 fetches; what is installed then is whole."""
    before = len(shop.downloads())
    publish(shop, "b2", companion)
    done = owner.run("update")
    assert done.code == 0, done.stderr
    assert "b2" in owner.run("which").stdout
    verdict = owner.run("verify", "--json", "b2")
    assert verdict.code == 0, verdict.stdout
    return fetched(shop, before)


def library(owner: User, tag: str) -> Path:
    (found,) = (owner.data / "versions").glob(f"{tag}-*/tree/libruntime.so.1")
    return found


def test_an_archive_with_installed_files_is_not_downloaded(
    shop: ReleaseServer, owner: User
) -> None:
    assert updated(shop, owner, runtime(shop, "runtime-2")) == ["b2-build.tar.gz"]
    assert library(owner, "b1").samefile(library(owner, "b2"))
    receipt = json.loads((library(owner, "b2").parents[1] / "receipt.json").read_text("utf-8"))
    assert "libruntime.so.1" in json.dumps(receipt["files"])
    assert owner.run("verify").code == 0, "the old version is whole as well"


def test_a_changed_file_is_downloaded(shop: ReleaseServer, owner: User) -> None:
    found = updated(shop, owner, runtime(shop, "runtime-2", b"another" * 9))
    assert sorted(found) == ["b2-build.tar.gz", "runtime-2.tar.gz"]
    assert library(owner, "b2").read_bytes() == b"another" * 9


def test_X01_a_source_that_was_tampered_with_is_not_taken(shop: ReleaseServer, owner: User) -> None:
    source = library(owner, "b1")
    source.write_bytes(b"X" * source.stat().st_size)
    found = updated(shop, owner, runtime(shop, "runtime-2"))
    assert sorted(found) == ["b2-build.tar.gz", "runtime-2.tar.gz"]
    assert library(owner, "b2").read_bytes() == b"a runtime" * 5000


def test_an_archive_without_a_list_of_files_is_downloaded(shop: ReleaseServer, owner: User) -> None:
    companion = runtime(shop, "runtime-2")
    del companion["files"]
    assert sorted(updated(shop, owner, companion)) == ["b2-build.tar.gz", "runtime-2.tar.gz"]


@pytest.fixture
def unlisted(shop: ReleaseServer) -> dict[str, Any]:
    """As CUDA's runtime for Windows: several releases of upstream name the same archive."""
    companion = runtime(shop, "runtime-1")
    del companion["files"]
    return companion


@pytest.fixture
def holder(shop: ReleaseServer, tmp_path: Path, unlisted: dict[str, Any]) -> User:
    publish(shop, "b1", unlisted)
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    return user


def test_the_same_archive_without_a_list_of_files_is_downloaded_once(
    shop: ReleaseServer, holder: User, unlisted: dict[str, Any]
) -> None:
    assert updated(shop, holder, unlisted) == ["b2-build.tar.gz"]
    assert library(holder, "b1").samefile(library(holder, "b2"))
    assert holder.run("verify").code == 0, "the old version is whole as well"
    # And again: the new receipt also knows what the archive has.
    assert holder.run("uninstall", "b1").code == 0
    before = len(shop.downloads())
    publish(shop, "b3", unlisted)
    planned = holder.run("update", "--check", "--json").document["data"]["download"]
    assert holder.run("update").code == 0
    assert fetched(shop, before) == ["b3-build.tar.gz"]
    assert planned == sum(line.sent for line in shop.downloads()[before:])


def test_X01_of_an_archive_without_a_list_nothing_that_was_tampered_with_is_taken(
    shop: ReleaseServer, holder: User, unlisted: dict[str, Any]
) -> None:
    source = library(holder, "b1")
    source.write_bytes(b"X" * source.stat().st_size)
    found = updated(shop, holder, unlisted)
    assert sorted(found) == ["b2-build.tar.gz", "runtime-1.tar.gz"]
    assert library(holder, "b2").read_bytes() == b"a runtime" * 5000


# --- any archive, in any version, however damaged ----------------------------------------------


def sent(shop: ReleaseServer, since: int) -> int:
    return sum(line.sent for line in shop.downloads()[since:])


def planned(owner: User, *more: str) -> int:
    """The bytes that a dry run of an install foretells, by the newest metadata."""
    assert owner.run("repository", "refresh", NAME).code == 0
    dry = owner.run("install", "--dry-run", "--json", *more)
    assert dry.code == 0, dry.stderr
    foretold: int = dry.document["data"]["download"]
    return foretold


def test_the_same_build_under_another_tag_is_not_downloaded(
    shop: ReleaseServer, tmp_path: Path
) -> None:
    """As upstream's v0.5.0 is b11146: the same archives have two names."""
    variant = shop.variant(shop.stand_in("b1-build"), shop.companion("runtime"))
    shop.publish("b1", {"cpu": variant})
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    before = len(shop.downloads())
    shop.publish("b2", {"cpu": variant})
    assert planned(user) == 0
    assert user.run("update").code == 0
    assert fetched(shop, before) == []
    assert "b2" in user.run("which").stdout
    for tag in ("b1", "b2"):
        verdict = user.run("verify", "--json", tag)
        assert verdict.code == 0, verdict.stdout
        # What a version shares with another one keeps the modes of both.
        (server,) = (user.data / "versions").glob(f"{tag}-*/tree/llama-server")
        assert server.stat().st_mode & 0o777 == 0o555
        assert server.stat().st_nlink == 2


def test_two_variants_of_one_archive_download_it_once(shop: ReleaseServer, tmp_path: Path) -> None:
    """As upstream's archive for Apple silicon, which is the build for Metal and the processor's."""
    build = shop.stand_in("b1-build")
    variants = {name: shop.variant(build) for name in ("cpu", "cpu-other")}
    shop.publish("b1", variants)
    user = shop.user(tmp_path / "home")
    assert user.run("install", "--backend", "cpu").code == 0
    assert planned(user, "--backend", "cpu-other") == 0
    assert user.run("install", "--backend", "cpu-other").code == 0
    assert [line.path.rpartition("/")[2] for line in shop.downloads()] == ["b1-build.tar.gz"]


def test_the_order_of_archives_does_not_matter(shop: ReleaseServer, tmp_path: Path) -> None:
    companion = shop.companion("runtime")
    shop.publish("b1", {"cpu": shop.variant(companion, shop.stand_in("b1-build"))})
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    before = len(shop.downloads())
    shop.publish("b2", {"cpu": shop.variant(companion, shop.stand_in("b2-build"))})
    assert user.run("update").code == 0
    assert fetched(shop, before) == ["b2-build.tar.gz"]


def zipped(shop: ReleaseServer, tag: str) -> dict[str, Any]:
    """A build as those for Windows are packed: no file in it is marked as executable."""
    tree = stand_in(shop.nginx.root.parent / "builds" / "zipped", devices=NO_DEVICE_STEPS).tree
    (tree / "llama-server").chmod(0o644)
    packed = pack_zip(tree, shop.nginx.root / "archives" / f"{tag}.zip")
    return shop.variant(packed)


def test_a_server_that_its_archive_does_not_mark_is_taken(
    shop: ReleaseServer, tmp_path: Path
) -> None:
    variant = zipped(shop, "b1")
    shop.publish("b1", {"cpu": variant})
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    before = len(shop.downloads())
    shop.publish("b2", {"cpu": variant})
    assert user.run("update").code == 0
    assert fetched(shop, before) == []
    assert user.run("verify", "b1").code == user.run("verify", "b2").code == 0


def flip(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"X" * path.stat().st_size)


def remove(path: Path) -> None:
    path.parent.chmod(0o755)
    path.unlink()


def replace_by_link(path: Path) -> None:
    """Another file with the same bytes is not part of a build either."""
    other = path.parents[3] / "elsewhere"
    other.write_bytes(path.read_bytes())
    remove(path)
    path.symlink_to(other)


@pytest.mark.parametrize("damage", [flip, remove, replace_by_link])
def test_X01_a_plan_and_an_update_agree_about_a_damaged_source(
    shop: ReleaseServer,
    holder: User,
    unlisted: dict[str, Any],
    damage: Callable[[Path], None],
) -> None:
    damage(library(holder, "b1"))
    before = len(shop.downloads())
    publish(shop, "b2", unlisted)
    foretold = planned(holder)
    assert holder.run("update", "--check", "--json").document["data"]["download"] == foretold
    assert holder.run("update").code == 0
    assert sorted(fetched(shop, before)) == ["b2-build.tar.gz", "runtime-1.tar.gz"]
    assert sent(shop, before) == foretold
    assert library(holder, "b2").read_bytes() == b"a runtime" * 5000


def test_another_version_stands_in_for_a_damaged_one(
    shop: ReleaseServer, holder: User, unlisted: dict[str, Any]
) -> None:
    publish(shop, "b2", unlisted)
    assert holder.run("update").code == 0
    for damaged, new in (("b1", "b3"), ("b2", "b4")):
        # Files of their own, as after a copy of the store: only one is damaged.
        one = library(holder, damaged)
        content = one.read_bytes()
        remove(one)
        one.write_bytes(b"X" * len(content))
        before = len(shop.downloads())
        publish(shop, new, unlisted)
        assert holder.run("update").code == 0
        assert fetched(shop, before) == [f"{new}-build.tar.gz"]
        assert library(holder, new).read_bytes() == content
        one.write_bytes(content)


def test_a_dry_run_says_what_is_fetched(
    shop: ReleaseServer, holder: User, unlisted: dict[str, Any]
) -> None:
    publish(shop, "b2", unlisted)
    before = len(shop.downloads())
    foretold = planned(holder)
    said = holder.run("install", "--dry-run").stdout
    # A repair takes only what is signed: the receipts say nothing of archives then.
    forced = planned(holder, "--force")
    assert f"{size(foretold)} to download of {size(forced)}" in said
    assert holder.run("install").code == 0
    assert sent(shop, before) == foretold
    before = len(shop.downloads())
    assert planned(holder) == 0
    assert planned(holder, "--force") == forced
    assert holder.run("install", "--force").code == 0
    assert sent(shop, before) == forced > foretold


# A file system without hard links, or a file that has as many as it may: link(2) ends with EPERM or
# EMLINK. Python's audit event comes right before that call.
WITHOUT_LINKS = """
import errno, os, runpy, sys
def refuse(event, arguments):
    if event == "os.link":
        raise OSError(getattr(errno, os.environ["LINKS_END_WITH"]), "no link")
sys.addaudithook(refuse)
sys.argv[0] = "tsuku-llm"
runpy.run_module("tsuku_llm", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(("number", "lists"), [("EPERM", True), ("EMLINK", False)])
def test_without_hard_links_files_are_copied(
    shop: ReleaseServer, tmp_path: Path, number: str, lists: bool
) -> None:
    companion = runtime(shop, "runtime-1")
    if not lists:
        del companion["files"]
    publish(shop, "b1", companion)
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    before = len(shop.downloads())
    publish(shop, "b2", companion)
    env = {**user.env, "LINKS_END_WITH": number}
    done = run_program("update", env=env, command=(sys.executable, "-c", WITHOUT_LINKS))
    assert done.code == 0, done.stderr
    assert fetched(shop, before) == ["b2-build.tar.gz"]
    assert library(user, "b2").read_bytes() == library(user, "b1").read_bytes()
    assert not library(user, "b2").samefile(library(user, "b1"))
    assert user.run("verify", "b1").code == user.run("verify", "b2").code == 0


def test_S20_prunes_beside_an_update_change_nothing_but_what_is_fetched(
    shop: ReleaseServer, tmp_path: Path
) -> None:
    """The version that has the files may go at any moment: they are linked, or fetched."""
    companion = shop.companion("runtime")
    build = {tag: shop.stand_in(f"{tag}-build") for tag in ("b1", "b2", "b3", "b4")}
    shop.publish("b1", {"cpu": shop.variant(build["b1"], companion)})
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    for tag in ("b2", "b3", "b4"):
        shop.publish(tag, {"cpu": shop.variant(build[tag], companion)})
        with ThreadPoolExecutor(1) as pool:
            updating = pool.submit(user.run, "update")
            while not updating.done():
                pruned = user.run("prune")
                assert pruned.code == 0, pruned.stderr
            assert updating.result().code == 0, updating.result().stderr
        assert user.run("verify", tag).code == 0
        assert user.leftovers() == []
