"""Companions that are packages of the index: signed with a build, fetched by pip, taken in part."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.builds import NO_DEVICE_STEPS, Packed, pack_tar, stand_in
from support.folder_shop import FolderShop, Notes
from support.package_index import PackageIndex
from support.tools import require_tool

from tsuku_llm.ground.errors import Declined, DigestMismatch
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.install.update import update
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.session import Session
from tsuku_operator.mirror.mirror import mirror
from tsuku_operator.mirror.mirror_choice import Narrowing
from tsuku_publish.archives.contents import load_contents
from tsuku_publish.release_files.documents import artifact
from tsuku_publish.upstream.makers import load_makers

DATA = Path(__file__).parents[2] / "ci/release"
LIBRARY = b"the maker's library" * 4000


class Maker:
    """A maker with a package: one library that a build needs, and what it does not need."""

    def __init__(self, folder: Path) -> None:
        self.index = PackageIndex(folder)
        self.wheel = folder / "maker_rt-1-py3-none-any.whl"
        lib = "maker_rt-1.data/data/lib"
        with zipfile.ZipFile(self.wheel, "w") as wheel:
            wheel.writestr(f"{lib}/libmaker.so.9", LIBRARY)
            wheel.writestr(f"{lib}/libmaker-jit.so", bytes(300_000))
            wheel.writestr("maker_rt-1.dist-info/METADATA", "Name: maker-rt\nVersion: 1\n")
            wheel.writestr("maker_rt-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr("maker_rt-1.dist-info/RECORD", "")
        data = self.wheel.read_bytes()
        self.entry: dict[str, Any] = {
            "url": "pkg:pypi/maker-rt@1?file_name=maker_rt-1-py3-none-any.whl",
            "sha256": sha256(data).hexdigest(),
            "size": len(data),
            "format": "wheel",
            "root": lib,
            "files": [
                {
                    "path": "libmaker.so.9",
                    "size": len(LIBRARY),
                    "sha256": sha256(LIBRARY).hexdigest(),
                }
            ],
        }


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "index")


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop(tmp_path / "shop")


def publish(shop: FolderShop, tag: str, *entries: Mapping[str, Any]) -> int:
    """Sign a release whose build needs these packages; the size of the build itself."""
    packed = shop.packed(f"{tag}-cpu")
    variant = shop.variant(packed)
    variant["artifacts"] += entries
    shop.publish(tag, {"cpu": variant})
    return packed.size


def at(shop: FolderShop, home: Path, index: Mapping[str, str], **changes: object) -> Session:
    """A user who takes builds from the folder, and packages from that index."""
    session = shop.session(home, mirror=(shop.mirror, "origin"), **changes)
    environ = {**session.machine.environ, **index}
    return session._replace(machine=session.machine._replace(environ=environ))


def test_a_package_comes_with_its_build_and_only_the_signed_files_of_it(
    shop: FolderShop, maker: Maker, tmp_path: Path
) -> None:
    size = publish(shop, "b1", maker.entry)
    questions: list[str] = []
    session = at(
        shop,
        tmp_path / "home",
        maker.index.environ,
        can_ask=True,
        ask=lambda text: bool(questions.append(text)) or True,
        ask_above=0,
    )
    plan = install(session, dry_run=True)
    assert plan.download == size + maker.entry["size"]
    done = install(session).installed
    assert done is not None
    (question,) = questions
    assert f"{(size + maker.entry['size']) / 1e6:,.1f} MB" in question
    assert (done.tree / "libmaker.so.9").read_bytes() == LIBRARY
    assert (done.tree / "libmaker.so.9").parent == (done.tree / done.receipt.server).parent
    assert not list(done.tree.rglob("*jit*"))
    session.store.check(done, full=True)


def test_a_no_fetches_neither(shop: FolderShop, maker: Maker, tmp_path: Path) -> None:
    publish(shop, "b1", maker.entry)
    session = at(
        shop,
        tmp_path / "home",
        maker.index.environ,
        can_ask=True,
        ask=lambda _: False,
        ask_above=0,
    )
    with pytest.raises(Declined):
        install(session)
    assert session.reader.installed() == ()


def test_a_package_is_fetched_once_for_all_builds(
    shop: FolderShop, maker: Maker, tmp_path: Path
) -> None:
    publish(shop, "b1", maker.entry)
    session = at(shop, tmp_path / "home", maker.index.environ)
    first = install(session).installed
    # Nothing can bring it a second time.
    maker.wheel.unlink()
    size = publish(shop, "b2", maker.entry)
    refresh(session)
    assert install(session, dry_run=True).download == size
    report = update(session)
    active = session.reader.active()
    assert active is not None
    assert first is not None
    assert (report.outcome, active.receipt.release) == ("installed", "b2")
    assert (active.tree / "libmaker.so.9").samefile(first.tree / "libmaker.so.9")


def test_another_package_of_that_name_is_refused(
    shop: FolderShop, maker: Maker, tmp_path: Path
) -> None:
    publish(shop, "b1", maker.entry)
    with zipfile.ZipFile(maker.wheel, "a") as wheel:
        wheel.writestr("maker_rt-1.data/data/lib/libmaker.so.10", b"planted")
    session = at(shop, tmp_path / "home", maker.index.environ)
    with pytest.raises(DigestMismatch, match="another file under the name maker-rt 1"):
        install(session)
    assert session.reader.installed() == ()


def test_a_mirror_has_the_packages_of_its_builds(
    shop: FolderShop, maker: Maker, tmp_path: Path
) -> None:
    publish(shop, "b1", maker.entry)
    mirror(at(shop, tmp_path / "operator", maker.index.environ), tmp_path / "copy", Narrowing())
    maker.wheel.unlink()
    closed = shop.session(tmp_path / "closed", mirror=((tmp_path / "copy").as_uri(),))
    done = install(closed).installed
    assert done is not None
    assert (done.tree / "libmaker.so.9").read_bytes() == LIBRARY


# --- the recorded packages of makers, as the index has them -------------------------------------

_SYSTEM = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
_LOADER = "/lib64/ld-linux-x86-64.so.2"


def linked(folder: Path, shop: FolderShop, libraries: tuple[str, ...]) -> Packed:
    """A build with a library that is linked as upstream's: RUNPATH $ORIGIN, and those it needs."""
    require_tool("gcc")
    folder.mkdir()
    build = stand_in(folder / "build", devices=NO_DEVICE_STEPS)
    gcc = ("gcc", "-shared", "-x", "c", os.devnull)
    for name in libraries:
        command = (*gcc, "-o", str(folder / name), f"-Wl,-soname,{name}")
        subprocess.run(command, check=True)
    needed = (f"-l:{name}" for name in libraries)
    flags = ("-Wl,--no-as-needed,--enable-new-dtags,-rpath,$ORIGIN", f"-L{folder}")
    plugin = build.tree / "libggml-maker.so"
    subprocess.run((*gcc, "-o", str(plugin), *flags, *needed), check=True)
    return pack_tar(build.tree, shop.root / "archives/build.tar.gz", root="llama-b1")


def not_found(tree: Path, root: Path) -> str:
    """The first library that is missing in a root with the C library and the tree alone."""
    shutil.copytree(tree, root / "tree", symlinks=True)
    for name in (Path(_LOADER), *(Path("/lib/x86_64-linux-gnu", each) for each in _SYSTEM)):
        to = root / name.relative_to("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name.resolve(), to)
    enter = ("unshare", "--user", "--map-root-user", "--root", str(root))
    ran = subprocess.run(
        (*enter, _LOADER, "--list", "/tree/libggml-maker.so"),
        env={"LD_LIBRARY_PATH": "/tree", "PATH": os.environ["PATH"]},  # as a start sets it
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode == 0:
        return ""
    found = re.search(r"loading shared libraries: (\S+): cannot open", ran.stderr)
    assert found, ran.stderr
    return found[1]


@pytest.mark.index
@pytest.mark.skipif(sys.platform != "linux", reason="the packages are for Linux")
@pytest.mark.parametrize(
    ("set_name", "projects", "libraries", "without"),
    [
        ("oneapi", ("umf", "tcmlib"), ("libumf.so.1",), "libhwloc.so.15"),
        (
            "cuda-12",
            ("nvidia-cuda-runtime-cu12",),
            ("libcudart.so.12",),
            "libcudart.so.12",
        ),
    ],
)
def test_a_bare_root_is_whole_with_the_recorded_packages_and_not_without_one(
    shop: FolderShop,
    tmp_path: Path,
    set_name: str,
    projects: tuple[str, ...],
    libraries: tuple[str, ...],
    without: str,
) -> None:
    """The small ones of each set; docs/releases.md has the result of all, which have 1.2 GB."""
    contents = load_contents(DATA / "facts/archives")
    entries = [
        artifact(each.asset, "wheel", each.root, contents[each.sha256])
        for each in load_makers(DATA)[set_name][0].packages
        if each.project in projects
    ]
    packed = linked(tmp_path / "linked", shop, libraries)
    for tag, brought in (("b1", entries), ("b2", entries[:-1])):
        variant = shop.variant(packed)
        variant["artifacts"] += brought
        shop.publish(tag, {"cpu": variant})
        here = {name: value for name, value in os.environ.items() if not name.startswith("TSUKU_")}
        session = at(shop, tmp_path / f"home-{tag}", here, note=Notes())
        done = install(session, release=tag).installed
        assert done is not None
        missing = not_found(done.tree, tmp_path / f"root-{tag}")
        assert missing == ("" if brought == entries else without)
