"""A repository of one's own, packed by the program: an update asks for what changed."""

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.builds import NO_DEVICE_STEPS, REAL_SERVER, pack_tar, real_build, stand_in
from support.program import PUBLISHER, environment, run_program
from support.release_server import ReleaseServer, User
from support.repository import release_document

MIB = 1 << 20
LIBRARIES = {
    "libggml-cuda.so.0.20": random.Random(1).randbytes(3 * MIB),  # noqa: S311
    "libllama.so.0.1": random.Random(2).randbytes(2 * MIB),  # noqa: S311
    "libsmall.so": b"small",
    "empty": b"",
}


def build(folder: Path, changed: Mapping[str, bytes] | None = None, cuda: str = "0.20") -> Path:
    """A stand-in for the server, with libraries, links to them, and a tool."""
    tree = stand_in(folder, devices=NO_DEVICE_STEPS, version=("out version: 1",)).tree
    for name, data in {**LIBRARIES, **(changed or {})}.items():
        (tree / name.replace("0.20", cuda)).write_bytes(data)
    (tree / "libggml-cuda.so").symlink_to("libggml-cuda.so.0")
    (tree / "libggml-cuda.so.0").symlink_to(f"libggml-cuda.so.{cuda}")
    (tree / "tools").mkdir()
    shutil.copy2(tree / "llama-server", tree / "tools" / "llama-cli")
    return tree


def publish(shop: ReleaseServer, tag: str, tree: Path) -> list[str]:
    """Pack a build with the program, sign the release file, serve it; the archives' names."""
    platform = {
        "default": "cpu",
        "preference": {"portable": ["cpu"], "native": ["cpu"]},
        "variants": {"cpu": {"backend": "cpu", "server": "llama-server", "requires": {}}},
    }
    file = shop.nginx.root.parent / f"{tag}.json"
    file.write_text(json.dumps(release_document(tag, platforms={"linux-amd64": platform})), "utf-8")
    archives = str(shop.nginx.root / "archives")
    place = ("--into", archives, "--url", f"{shop.nginx.url}/archives/")
    words = ("pack", str(tree), str(file), "--variant", "cpu", *place, "--json")
    env = environment(shop.nginx.root.parent / "publisher")
    done = run_program(*words, env=env, command=PUBLISHER)
    assert done.code == 0, done.stderr
    shop.simulator.publish(json.loads(file.read_text("utf-8")))
    shop.write()
    return [Path(archive["file"]).name for archive in done.document["data"]["archives"]]


@pytest.fixture
def owner(shop: ReleaseServer, tmp_path: Path) -> User:
    publish(shop, "b1", build(tmp_path / "b1"))
    user = shop.user(tmp_path / "home")
    done = user.run("install")
    assert done.code == 0, done.stderr
    return user


def updated(shop: ReleaseServer, owner: User, tag: str) -> list[str]:
    """What an update asks the server for, whole requests in their order."""
    before = len(shop.downloads())
    done = owner.run("update")
    assert done.code == 0, done.stderr
    assert tag in owner.run("which").stdout
    assert owner.run("verify").code == 0
    return [line.path.rpartition("/")[2] for line in shop.downloads()[before:]]


def tree_of(owner: User, tag: str) -> Path:
    (found,) = (owner.data / "versions").glob(f"{tag}-*/tree")
    return found


def test_only_the_changed_archive_is_downloaded(
    shop: ReleaseServer, owner: User, tmp_path: Path
) -> None:
    """The links of an archive that is not fetched are there as well, and programs are."""
    archives = publish(shop, "b2", build(tmp_path / "b2", {"libllama.so.0.1": b"new" * MIB}))
    (library,) = (name for name in archives if name.startswith("libllama"))
    told = owner.run("update", "--check", "--json").document["data"]
    assert told["download"] == (shop.nginx.root / "archives" / library).stat().st_size
    assert updated(shop, owner, "b2") == [library]
    old, new = tree_of(owner, "b1"), tree_of(owner, "b2")
    assert (new / "libllama.so.0.1").read_bytes() == b"new" * MIB
    assert (new / "libggml-cuda.so").readlink() == Path("libggml-cuda.so.0")
    assert (new / "libggml-cuda.so").samefile(old / "libggml-cuda.so.0.20")
    assert (new / "tools" / "llama-cli").stat().st_mode & 0o777 == 0o555


def test_a_renamed_library_is_not_downloaded(
    shop: ReleaseServer, owner: User, tmp_path: Path
) -> None:
    """Its archive has another digest; its bytes are installed, and its new links are made."""
    publish(shop, "b2", build(tmp_path / "b2", cuda="0.21"))
    assert updated(shop, owner, "b2") == []
    new = tree_of(owner, "b2")
    assert (new / "libggml-cuda.so.0").readlink() == Path("libggml-cuda.so.0.21")
    assert (new / "libggml-cuda.so").read_bytes() == LIBRARIES["libggml-cuda.so.0.20"]
    assert not (new / "libggml-cuda.so.0.20").exists()


def test_the_same_build_under_another_release_costs_nothing(
    shop: ReleaseServer, owner: User, tmp_path: Path
) -> None:
    publish(shop, "b2", build(tmp_path / "b2"))
    assert updated(shop, owner, "b2") == []


def test_X01_a_tampered_source_of_links_is_fetched_again(
    shop: ReleaseServer, owner: User, tmp_path: Path
) -> None:
    source = tree_of(owner, "b1") / "libggml-cuda.so.0.20"
    source.write_bytes(b"X" * source.stat().st_size)
    archives = publish(shop, "b2", build(tmp_path / "b2"))
    before = len(shop.downloads())
    assert owner.run("update").code == 0
    asked = {line.path.rpartition("/")[2] for line in shop.downloads()[before:]}
    assert asked == {name for name in archives if name.startswith("libggml-cuda")}
    new = tree_of(owner, "b2")
    assert (new / "libggml-cuda.so").read_bytes() == LIBRARIES["libggml-cuda.so.0.20"]
    assert owner.run("verify", "b2").code == 0


@pytest.mark.index
def test_only_the_patched_library_of_the_real_build_is_downloaded(
    shop: ReleaseServer, tmp_path: Path
) -> None:
    """Upstream's form, a tarball with links; the build that follows is a folder."""
    binaries = (real_build(tmp_path / "wheel") / REAL_SERVER).parent
    upstream = pack_tar(binaries, tmp_path / "llama.tar.gz", root="llama-b1").path
    publish(shop, "b1", upstream)
    user = shop.user(tmp_path / "home")
    done = user.run("install")
    assert done.code == 0, done.stderr
    patched = tmp_path / "patched"
    shutil.copytree(tree_of(user, "b1"), patched, symlinks=True)
    (common,) = patched.glob("libllama-common.so.*.*.*")
    with common.open("ab") as library:
        library.write(b"patched")
    archives = publish(shop, "b2", patched)
    assert len(archives) == 7
    (changed,) = (name for name in archives if name.startswith(common.name))
    assert updated(shop, user, "b2") == [changed]
