"""Rows S41 and S42: archives without a signed list, with folders of any name."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.archives import Tar, Zip, artifact_for, file_entry, tar_gz, zipped
from support.builds import NO_DEVICE_STEPS, Packed, stand_in, upstream_windows_build
from support.folder_shop import FolderShop
from support.serving import serving

from tsuku_llm.archive.placing import Aside, as_it_is, place
from tsuku_llm.archive.unpack import unpack
from tsuku_llm.ground.errors import UnsafeArchive
from tsuku_llm.ground.tree_entry import TreeEntry

SERVER = {"llama-server": b"server", "libllama.so": b"lib"}
RUNTIME = {"libcudart.so.13": b"cuda"}


def aside(
    folder: Path, files: Mapping[str, bytes], root: str = "llama-b1", kind: str = "tar.gz"
) -> Aside:
    """An archive of these files, unpacked as an install does it."""
    if kind == "tar.gz":
        data = tar_gz([Tar(name=name, data=data, mode=0o755) for name, data in files.items()])
    else:
        data = zipped([Zip(name=name, data=data) for name, data in files.items()])
    artifact = artifact_for(data, kind, root)
    return Aside(artifact, folder, unpack(io.BytesIO(data), as_it_is(artifact), folder))


def below(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{name}": data for name, data in files.items()}


def placed(
    tmp_path: Path,
    *archives: Mapping[str, bytes],
    server: str = "llama-server",
    kind: str = "tar.gz",
) -> tuple[str, dict[str, bytes]]:
    """The server's path, and the files of the tree; nothing else may have changed."""
    asides = [
        aside(tmp_path / f"aside-{number}", files, kind=kind)
        for number, files in enumerate(archives)
    ]
    tree = tmp_path / "tree"
    found, items = place(asides, tree, server, {})
    there = {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in tree.rglob("*")
        if path.is_file()
    }
    assert sorted(item.path for item in items) == sorted(there)
    return found, there


LAYOUTS = {
    "as_assumed": (below("llama-b1", SERVER), "llama-server"),
    "another_name": (below("build-2026-10", SERVER), "llama-server"),
    "no_top_folder": (SERVER, "llama-server"),
    "build_bin": (below("build/bin", SERVER), "bin/llama-server"),
    "build_bin_below_the_top": (below("llama-b1/build/bin", SERVER), "build/bin/llama-server"),
    "bin_and_lib": (
        {"x/bin/llama-server": b"server", "x/lib/libllama.so": b"lib"},
        "bin/llama-server",
    ),
    "two_top_folders": ({**below("a", SERVER), "docs/README": b"read"}, "a/llama-server"),
    "a_file_beside_the_top": ({**below("a", SERVER), "LICENSE": b"MIT"}, "a/llama-server"),
}


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
@pytest.mark.parametrize("case", LAYOUTS)
def test_S41_the_server_is_found_by_its_name(tmp_path: Path, case: str, kind: str) -> None:
    files, expected = LAYOUTS[case]
    found, there = placed(tmp_path, files, kind=kind)
    assert found == expected
    assert there[found] == b"server"
    assert sorted(there.values()) == sorted(files.values())


@pytest.mark.parametrize(
    "companion",
    [RUNTIME, below("cudart", RUNTIME), below("cudart/bin/x64", RUNTIME)],
    ids=["flat", "in_a_folder", "deep"],
)
@pytest.mark.parametrize("layout", ["as_assumed", "build_bin", "bin_and_lib"])
def test_S41_a_companion_is_unpacked_next_to_the_server(
    tmp_path: Path, layout: str, companion: Mapping[str, bytes]
) -> None:
    files, expected = LAYOUTS[layout]
    for order in ((files, companion), (companion, files)):
        found, there = placed(tmp_path / str(len(list(tmp_path.iterdir()))), *order)
        assert found == expected
        assert there[str(Path(expected).with_name("libcudart.so.13"))] == b"cuda"


def test_S41_the_same_server_in_two_archives_counts_once(tmp_path: Path) -> None:
    found, there = placed(tmp_path, below("a", SERVER), below("b", {**SERVER, **RUNTIME}))
    assert (found, len(there)) == ("llama-server", 3)


def test_S41_a_windows_server_is_found_by_its_name(tmp_path: Path) -> None:
    files = {"Release/llama-server.exe": b"server", "Release/ggml.dll": b"dll"}
    found, there = placed(tmp_path, files, server="llama-server.exe", kind="zip")
    assert (found, sorted(there)) == ("llama-server.exe", ["ggml.dll", "llama-server.exe"])


def test_S41_links_move_with_their_files(tmp_path: Path) -> None:
    data = tar_gz([
        Tar(name="top/llama-server", data=b"server"),
        Tar(name="top/libllama.so.0", data=b"lib"),
        Tar(name="top/libllama.so", kind=b"2", target="libllama.so.0"),
    ])  # fmt: skip
    artifact = artifact_for(data, "tar.gz", "llama-b1")
    items = unpack(io.BytesIO(data), as_it_is(artifact), tmp_path / "aside")
    place([Aside(artifact, tmp_path / "aside", items)], tmp_path / "tree", "llama-server", {})
    assert (tmp_path / "tree/libllama.so").read_bytes() == b"lib"
    assert (tmp_path / "tree/libllama.so").readlink() == Path("libllama.so.0")


REFUSED = {
    "S42_no_server": (below("llama-b1", {"llama-cli": b"cli", "libllama.so": b"lib"}),),
    "S42_another_name_of_it": (below("llama-b1", {"llama-server-2": b"server"}),),
    "S42_two_servers": ({"bin/llama-server": b"1", "old/llama-server": b"2"},),
    "S42_two_servers_one_as_assumed": (
        below("llama-b1", {"llama-server": b"1", "old/llama-server": b"2"}),
    ),
    "S42_a_server_in_each_archive": (
        below("a", SERVER), below("b", {**SERVER, "llama-server": b"another"}),
    ),
    "S42_nothing": ({},),
    "S42_other_bytes_of_one_name": (
        below("a", {**SERVER, "LICENSE": b"MIT"}), below("b", {**RUNTIME, "LICENSE": b"BSD"}),
    ),
    "S42_names_that_meet_in_the_tree": (
        below("a", {**SERVER, "libX.so": b"1"}), below("b", {"libx.so": b"2"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_S42_anything_else_is_refused_with_what_was_found(tmp_path: Path, case: str) -> None:
    with pytest.raises(UnsafeArchive) as caught:
        placed(tmp_path, *REFUSED[case])
    error = caught.value
    assert error.exit_code == 5
    assert not (tmp_path / "tree").exists(), "refused before anything is moved"
    assert error.facts
    if "server" in case:
        assert "expected: one llama-server" in error.facts[0]
        assert "found: " in error.facts[1]


def test_S42_a_link_through_the_top_folder_s_name_is_refused(tmp_path: Path) -> None:
    """It stays inside the archive, and would lead out of the tree."""
    data = tar_gz([
        Tar(name="top/llama-server", data=b"server"),
        Tar(name="top/l", kind=b"2", target="../top/llama-server"),
    ])  # fmt: skip
    artifact = artifact_for(data, "tar.gz", "llama-b1")
    items = unpack(io.BytesIO(data), as_it_is(artifact), tmp_path / "aside")
    with pytest.raises(UnsafeArchive, match="points outside"):
        place([Aside(artifact, tmp_path / "aside", items)], tmp_path / "tree", "llama-server", {})


def test_S41_a_companion_of_a_listed_build_is_unpacked_next_to_its_server(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    data = tar_gz([Tar(name="top/bin/llama-server", data=b"server")])
    listed = artifact_for(data, "tar.gz", "top", files=(file_entry("bin/llama-server", b"server"),))
    present: dict[str, TreeEntry] = {
        item.path: item for item in unpack(io.BytesIO(data), listed, tree)
    }
    companion = aside(tmp_path / "aside", below("cudart", RUNTIME))
    found, items = place([companion], tree, "bin/llama-server", present)
    assert found == "bin/llama-server"
    assert [item.path for item in items] == ["bin/libcudart.so.13"]


# --- whole installs -------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop(tmp_path / "shop")


def pack(shop: FolderShop, name: str, files: Mapping[str, bytes], root: str) -> Packed:
    """An archive in the shop; ``root`` is what the release file assumes."""
    data = tar_gz([Tar(name=path, data=data, mode=0o755) for path, data in files.items()])
    path = shop.root / "archives" / f"{name}.tar.gz"
    path.write_bytes(data)
    return Packed(path, hashlib.sha256(data).hexdigest(), len(data), "tar.gz", root)


def build_files(folder: Path) -> dict[str, bytes]:
    tree = stand_in(folder, devices=NO_DEVICE_STEPS).tree
    return {path.name: path.read_bytes() for path in tree.iterdir()}


@pytest.mark.parametrize("folder", ["elsewhere", "llama-b1/build/bin"])
def test_S41_an_install_uses_the_server_that_it_found(
    shop: FolderShop, tmp_path: Path, folder: str
) -> None:
    files = build_files(tmp_path / "build")
    packed = pack(shop, "b1", below(folder, files), "llama-b1")
    companion = pack(shop, "rt", below("any/where", RUNTIME), "cudart-b1")
    shop.publish("b1", {"cpu": shop.variant(packed, companion)})
    user = shop.user(tmp_path / "home")
    assert user.run("repository", "refresh", "test").code == 0
    done = user.run("install", "--json")
    assert done.code == 0, done.stderr
    server = Path(user.run("which").stdout.strip())
    assert server.read_bytes() == files["llama-server"]
    assert (server.parent / "libcudart.so.13").read_bytes() == b"cuda"
    (version,) = user.versions()
    receipt = json.loads((user.data / "versions" / version / "receipt.json").read_text("utf-8"))
    assert server == user.data / "versions" / version / "tree" / receipt["server"]
    assert not (user.data / "versions" / version / "aside").exists()
    assert user.leftovers() == []
    assert user.run("verify").code == 0
    with serving(user) as (_, port):
        assert port


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_S41_a_server_that_is_not_marked_as_executable_is_started(
    shop: FolderShop, tmp_path: Path, kind: str
) -> None:
    """As archives are that were made on Windows."""
    files = below("top", build_files(tmp_path / "build"))
    if kind == "zip":
        data = zipped([Zip(name=path, data=data, system=0, mode=0) for path, data in files.items()])
    else:
        data = tar_gz([Tar(name=path, data=data) for path, data in files.items()])
    path = shop.root / "archives" / f"b1.{kind}"
    path.write_bytes(data)
    packed = Packed(path, hashlib.sha256(data).hexdigest(), len(data), kind, "top")
    shop.publish("b1", {"cpu": shop.variant(packed)})
    user = shop.user(tmp_path / "home")
    assert user.run("repository", "refresh", "test").code == 0
    done = user.run("install", "--json")
    assert done.code == 0, done.stderr
    assert user.run("verify").code == 0
    with serving(user) as (_, port):
        assert port


@pytest.mark.parametrize("case", ["none", "two"])
def test_S42_a_refused_layout_leaves_nothing(shop: FolderShop, tmp_path: Path, case: str) -> None:
    files = build_files(tmp_path / "build")
    server = files.pop("llama-server")
    servers = {"two": {"a/llama-server": server, "b/llama-server": server}, "none": {}}[case]
    packed = pack(shop, "b1", {**below("top", files), **servers}, "llama-b1")
    shop.publish("b1", {"cpu": shop.variant(packed)})
    user = shop.user(tmp_path / "home")
    assert user.run("repository", "refresh", "test").code == 0
    done = user.run("install", "--json")
    assert (done.code, done.document["error"]["code"]) == (5, "unsafe-archive")
    assert "expected: one llama-server" in str(done.document["error"]["facts"])
    assert user.versions() == []
    assert user.leftovers() == []


# --- a real archive of upstream's -----------------------------------------------------------


@pytest.fixture(scope="module")
def real_zip() -> bytes:
    """Upstream's own Windows build b10605."""
    return upstream_windows_build()


@pytest.mark.index
@pytest.mark.parametrize("folder", ["", "build/bin/", "llama-b10605/"])
def test_S41_upstream_s_windows_build(tmp_path: Path, real_zip: bytes, folder: str) -> None:
    """As it is, and repacked into folders."""
    data = real_zip
    if folder:
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
            for entry in old.infolist():
                new.writestr(folder + entry.filename, old.read(entry))
        data = out.getvalue()
    artifact = artifact_for(data, "zip")
    items = unpack(io.BytesIO(data), as_it_is(artifact), tmp_path / "aside")
    runtime = aside(tmp_path / "runtime", {"cudart/cudart64_13.dll": b"cuda"}, kind="zip")
    archives = [Aside(artifact, tmp_path / "aside", items), runtime]
    server, brought = place(archives, tmp_path / "tree", "llama-server.exe", {})
    assert server == {"build/bin/": "bin/llama-server.exe"}.get(folder, "llama-server.exe")
    assert (tmp_path / "tree" / server).read_bytes()[:2] == b"MZ"
    assert (tmp_path / "tree" / server).with_name("cudart64_13.dll").exists()
    assert len(brought) == len(items) + 1
