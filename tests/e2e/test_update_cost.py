"""An update fetches what changed: archives whose files are installed are linked, not fetched."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.builds import Packed, pack_tar
from support.release_server import ReleaseServer, User


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


def test_a_receipt_from_before_the_lists_of_archives_is_read(
    shop: ReleaseServer, holder: User, unlisted: dict[str, Any]
) -> None:
    path = library(holder, "b1").parents[1] / "receipt.json"
    receipt = json.loads(path.read_text("utf-8"))
    assert [len(each.pop("files")) for each in receipt["artifacts"]] == [0, 1]
    for each in receipt["artifacts"]:
        del each["links"]
    path.write_text(json.dumps(receipt), "utf-8")
    found = updated(shop, holder, unlisted)
    assert sorted(found) == ["b2-build.tar.gz", "runtime-1.tar.gz"]
