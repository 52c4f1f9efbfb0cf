"""Makers' packages in the data of a publisher: rules that name them, records, release files."""

import json
import re
import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.builds import compile_library, compile_stand_in, pack_tar
from support.release_data import DATA, answer_for, copied_data

from tsuku_llm.catalog.manifest import require_release
from tsuku_publish.archives.contents import load_contents
from tsuku_publish.errors import PublishError
from tsuku_publish.release_files import plan, releases
from tsuku_publish.release_files.documents import UnknownLibraries
from tsuku_publish.release_files.refresh import Refresh
from tsuku_publish.upstream.classify import load_rules
from tsuku_publish.upstream.facts import Facts
from tsuku_publish.upstream.makers import MakerSet, load_makers, packages_for

TAG = "b99001"
CPU = f"llama-{TAG}-bin-ubuntu-x64.tar.gz"
WHEEL = "maker_rt-1-py3-none-any.whl"
ROOT = "maker_rt-1.data/data/lib"
RULE = 'asset = "llama-{tag}-bin-ubuntu-x64.tar.gz"\n'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Data whose rule for the CPU's build on Linux names a set of packages."""
    folder = copied_data(tmp_path / "data")
    rules = folder / "rules.toml"
    text = rules.read_text("utf-8").replace('makers = "oneapi"\n', "")
    assert text.count(RULE) == 1
    rules.write_text(text.replace(RULE, f'{RULE}makers = "maker-1"\n'), "utf-8")
    return folder


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A build that needs a library of a maker, and the maker's wheel with more than that."""
    folder, build = tmp_path / "files", tmp_path / "build"
    folder.mkdir()
    build.mkdir()
    library = compile_library(tmp_path / "libmaker.so.9", "int maker(void) { return 1; }")
    compile_stand_in(build / "llama-server")
    needing = f"-Wl,--no-as-needed,{library}"
    compile_library(build / "libggml-base.so", "int base(void) { return 2; }", needing)
    pack_tar(build, folder / CPU, root=f"llama-{TAG}")
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.write(library, f"{ROOT}/libmaker.so.9")
        wheel.writestr(f"{ROOT}/libmaker-jit.so", b"not an ELF file, and not needed")
        wheel.writestr("maker_rt-1.dist-info/METADATA", "Name: maker-rt\n")
    return folder


def makers(files: Path, since: str = "b1", **changes: object) -> str:
    """The text of ``makers.toml`` about that wheel."""
    content = (files / WHEEL).read_bytes()
    fields: dict[str, object] = {
        "project": "maker-rt",
        "version": "1",
        "file": WHEEL,
        "sha256": sha256(content).hexdigest(),
        "size": len(content),
        "root": ROOT,
        "take": ["libmaker.so.9"],
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in {**fields, **changes}.items()]
    head = ["[[maker-1]]", f'since = "{since}"', 'license = "its own"', 'source = "its page"']
    return "\n".join([*head, "[[maker-1.packages]]", *lines, ""])


def recorded(data: Path, files: Path) -> None:
    refresh = Refresh(data, {}, lambda _: None)
    packed = pack_tar(files.parent / "build", files / CPU, root=f"llama-{TAG}")
    refresh.record(TAG, answer_for(TAG, [packed]), None)
    refresh.read_archives(TAG, files)
    facts = Facts(data / "facts")
    facts.excuse(TAG, "unattested", "Not the subject here.")
    facts.save()


def release_of(data: Path) -> Any:
    whole = replace(plan.load_plan(DATA), channels={"nightly": (TAG,)})
    (made,) = releases.release_files(whole, data)
    return json.loads(made.data)


def test_a_package_is_signed_with_the_build_by_digest_and_only_in_part(
    data: Path, files: Path
) -> None:
    (data / "makers.toml").write_text(makers(files), "utf-8")
    recorded(data, files)
    document = release_of(data)
    variant = document["platforms"]["linux-amd64"]["variants"]["cpu"]
    build, package = variant["artifacts"]
    assert build["url"].endswith(CPU)
    assert package["url"] == f"pkg:pypi/maker-rt@1?file_name={WHEEL}"
    assert package["sha256"] == sha256((files / WHEEL).read_bytes()).hexdigest()
    assert (package["format"], package["root"]) == ("wheel", ROOT)
    assert [each["path"] for each in package["files"]] == ["libmaker.so.9"]
    require_release(document)


def test_without_the_package_the_build_is_not_whole(data: Path, files: Path) -> None:
    (data / "makers.toml").write_text(makers(files), "utf-8")
    recorded(data, files)
    rules = data / "rules.toml"
    rules.write_text(rules.read_text("utf-8").replace('makers = "maker-1"\n', ""), "utf-8")
    with pytest.raises(UnknownLibraries, match=r"libmaker\.so\.9"):
        release_of(data)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"take": []}, "length >= 1"),
        ({"take": ["libmaker.so.9", "libmaker.so.9"]}, "libmaker.so.9 is taken of"),
        ({"sha256": "x"}, "sha256"),
        ({"tkae": ["x"]}, "tkae"),
    ],
)
def test_wrong_packages_stop_the_tool(
    data: Path, files: Path, changes: dict[str, object], said: str
) -> None:
    (data / "makers.toml").write_text(makers(files, **changes), "utf-8")
    with pytest.raises(PublishError, match=said):
        load_makers(data)


def test_a_library_that_the_package_does_not_have_stops_the_tool(data: Path, files: Path) -> None:
    (data / "makers.toml").write_text(makers(files, take=["libmaker.so.8"]), "utf-8")
    with pytest.raises(PublishError, match=rf"{WHEEL} has no libmaker\.so\.8"):
        recorded(data, files)


def test_a_rule_that_names_no_set_is_not_used(data: Path) -> None:
    (data / "makers.toml").unlink(missing_ok=True)
    (wrong,) = load_rules(data).wrong
    assert "makers.toml has no [maker-1]" in wrong.reason


def test_the_tag_decides_which_version_of_a_toolkit_it_is(data: Path, files: Path) -> None:
    """Each version has other sonames: a build of an older tag cannot use a newer one's."""
    older, newer = makers(files), makers(files, since="b99002", take=["libmaker-jit.so"])
    (data / "makers.toml").write_text(f"{newer}\n{older}", "utf-8")
    rules = load_rules(data)
    (rule,) = (each for each in rules.builds if each.makers)
    tags = ("b1", TAG, "b99002", "b100000")
    taken = [[each.take[0] for each in rules.packages(rule, tag)] for tag in tags]
    assert taken == [["libmaker.so.9"]] * 2 + [["libmaker-jit.so"]] * 2
    (data / "makers.toml").write_text(newer, "utf-8")
    assert load_rules(data).packages(rule, TAG) == ()
    (data / "makers.toml").write_text(f"{older}\n{older}", "utf-8")
    with pytest.raises(PublishError, match="two sets of maker-1 are for the same tags"):
        load_makers(data)


# --- the sets of this project -------------------------------------------------------------------

_OF_SYSTEMS = {
    "libOpenCL.so.1",  # the driver's loader: oneDNN and oneMKL of 2025.3 need it, 2026.1 can use it
    *("ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0"),
    *("libgcc_s.so.1", "librt.so.1", "libstdc++.so.6", "libz.so.1"),
}


SETS = [(name, each) for name, sets in load_makers(DATA).items() for each in sets]


@pytest.mark.parametrize(
    "packed", [each for _, each in SETS], ids=[f"{n}-{s.since}" for n, s in SETS]
)
def test_a_recorded_set_needs_nothing_but_the_system(packed: MakerSet) -> None:
    """Of every library that is taken, every library that it needs, as measured on its bytes."""
    contents = load_contents(DATA / "facts/archives")
    packages = packed.packages
    records = [contents[each.sha256] for each in packages]
    brought = {library for each in records for library in each.brings}
    needed = {library for each in records for library in each.libraries}
    assert brought == {library for each in packages for library in each.take}
    assert needed - brought <= _OF_SYSTEMS
    for package, record in zip(packages, records, strict=True):
        assert record.listing["size"] == package.size


WINDOWS = {
    r"/sycl(\d+)\.dll": "libsycl.so",
    r"/mkl_sycl_blas\.(\d+)\.dll": "libmkl_sycl_blas.so",
    r"/mkl_core\.(\d+)\.dll": "libmkl_core.so",
}
"""What upstream copies beside its SYCL build for Windows, and the same library on Linux."""


@pytest.mark.parametrize(
    "path", sorted((DATA / "facts/sources").glob("b*.json")), ids=lambda p: p.stem
)
def test_a_set_has_the_versions_that_upstream_packs_for_windows(path: Path) -> None:
    """Both systems are built with one version of oneAPI, as the recorded sources say."""
    text = path.read_text("utf-8")
    wanted = {
        f"{library}.{found[1]}"
        for pattern, library in WINDOWS.items()
        if (found := re.search(pattern, text))
    }
    packages = packages_for(load_makers(DATA)["oneapi"], path.stem)
    assert len(wanted) == len(WINDOWS)
    assert wanted <= {library for each in packages for library in each.take}
