"""``tsuku-publish build --base musl``: zig's compilers, from pip, on this machine."""

import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from support.own_publisher import typed_publisher
from support.program import Result
from support.small_source import EPOCH, FILES, small_source
from support.tools import require_tool

from tsuku_llm.ground.errors import UsageError
from tsuku_publish.building.bases import make_base, opened_base, wanted_base
from tsuku_publish.building.matrix import load_matrix
from tsuku_publish.building.orders import this_platform
from tsuku_publish.building.place import ZigPlace
from tsuku_publish.building.recipe import BuildWishes, recipe, switches_of
from tsuku_publish.building.toolchain import FoundTool, Toolchain
from tsuku_publish.errors import BuildFailed

Program = Callable[..., Result]
MATRIX = load_matrix()
WHEEL = os.environ.get("TSUKU_LLM_ZIG_WHEEL", "")
HERE = pytest.mark.skipif(this_platform() != "linux-amd64", reason="zig's wheel is for linux-amd64")
# As llama.cpp has it: ggml is a project of its own, and its libraries are of the kind that is told.
OWN_GGML = FILES["CMakeLists.txt"].replace(
    "add_library(ggml SHARED", 'project("ggml" C CXX)\nadd_library(ggml'
)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of the developer decides what is built, and pip asks no index."""
    for name in [name for name in os.environ if re.match(r"GGML_|LLAMA_|CMAKE_|CUDA|CC$|CX", name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    (tmp_path / "links").mkdir()


@pytest.fixture
def program(capfd: pytest.CaptureFixture[str]) -> Program:
    return typed_publisher(capfd)


def zig_place(name: str) -> ZigPlace:
    wanted = wanted_base(name, "cpu", MATRIX, Path("/work"), "linux-amd64")
    place = opened_base(wanted, "linux-amd64")
    assert isinstance(place, ZigPlace)
    return place


def small_wheel(folder: Path, version: str) -> str:
    """Write a wheel whose zig prints what it is told; return its digest."""
    about = f"ziglang-{version}.dist-info"
    kind = zipfile.ZipInfo("ziglang/zig")
    kind.external_attr = 0o100755 << 16
    path = folder / f"ziglang-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(kind, '#!/bin/sh\necho "$@"\n')
        metadata = f"Metadata-Version: 2.1\nName: ziglang\nVersion: {version}\n"
        wheel.writestr(f"{about}/METADATA", metadata)
        tag = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{about}/WHEEL", tag)
        wheel.writestr(f"{about}/RECORD", "")
    return sha256(path.read_bytes()).hexdigest()


# --- what is decided -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "platform", "said"),
    [
        ("vulkan", "linux-amd64", "vulkan cannot be built in the base musl"),
        ("cpu+vulkan", "linux-amd64", r"cpu\+vulkan cannot be built in the base musl"),
        ("cpu", "linux-arm64", "the base musl is not for linux-arm64"),
    ],
)
def test_what_zig_does_not_build_is_refused(variant: str, platform: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        wanted_base("musl", variant, MATRIX, Path("/work"), platform)


def test_a_wrong_name_gets_the_nearest_base(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no base and no folder") as error:
        wanted_base("muls", "cpu", MATRIX, tmp_path, "linux-amd64")
    assert error.value.facts == ("bases: debian-11, musl, glibc-2.17",)
    assert "musl" in (error.value.hint or "")


def test_only_ggml_is_shared_and_zigs_own_names_are_used() -> None:
    place = zig_place("musl")
    found = (FoundTool("ninja", "Ninja", Path("/bin/ninja"), "1.11", ""),)
    tools = Toolchain(found, (), None, place=place)
    switches = switches_of(place.given, frozenset({"GGML_OPENMP"}))
    made = recipe("cpu", MATRIX, tools, BuildWishes(), switches)
    assert made.flags == ("-march=x86_64", "-mevex512")
    assert made.link_flags == ("-s", "-dynamic", "-Wl,-z,stack-size=8388608")
    told = {name: made.definitions[name] for name in ("BUILD_SHARED_LIBS", "GGML_OPENMP")}
    assert told == {"BUILD_SHARED_LIBS": "OFF", "GGML_OPENMP": "OFF"}
    (include,) = place.told()
    assert include.startswith("-DCMAKE_PROJECT_ggml_INCLUDE=/work/bases/zig-")


def test_a_level_that_zig_cannot_write_is_refused_before_zig_is_fetched(
    tmp_path: Path, program: Program
) -> None:
    words = ("build", "cpu", "--base", "musl", "--baseline", "x86-64-v3")
    done = program(*words, "--work", tmp_path / "work", "--into", tmp_path / "out")
    assert done.code == 2
    assert "--baseline is not for the base musl" in done.stderr
    assert not (tmp_path / "work").exists()


def test_variables_of_ours_choose_no_other_compiler() -> None:
    ours = {"CC": "gcc-9", "CUDACXX": "nvcc", "CPATH": "/usr/include", "PATH": "/bin"}
    place = zig_place("glibc-2.17")
    given = place.environment(ours)
    assert given.keys() & {"CUDACXX", "CPATH"} == set()
    assert given["PATH"] == "/bin"
    assert place.named(Path(given["CC"])) == "zig-0.15.2/glibc-2.17/cc"
    assert place.named(Path("/usr/bin/cmake")) == "/usr/bin/cmake"


# --- pip -------------------------------------------------------------------------------------


def test_zig_is_fetched_once_and_has_a_compiler_for_each_target(tmp_path: Path) -> None:
    digest = small_wheel(tmp_path / "links", "0.0.1")
    matrix = replace(MATRIX, zig=replace(MATRIX.zig, version="0.0.1", sha256=digest))
    work = tmp_path / "a work"
    lines: list[str] = []
    musl, glibc = (
        wanted_base(name, "cpu", matrix, work, "linux-amd64") for name in ("musl", "glibc-2.17")
    )
    assert not musl.root.is_dir()
    # What a killed run left.
    left = musl.root.with_name(f".{musl.root.name}.new")
    (left / "ziglang").mkdir(parents=True)
    make_base(musl, os.environ, lines.append)
    assert musl.root.is_dir()
    assert glibc.root.is_dir(), "one zig serves both"
    assert len(lines) == 1
    for wanted, target in ((musl, "x86_64-linux-musl"), (glibc, "x86_64-linux-gnu.2.17")):
        place = opened_base(wanted, "linux-amd64")
        for variable, word in (("CC", "cc"), ("CXX", "c++")):
            compiler = place.environment({})[variable]
            assert place.answer([compiler, "-c", "a b"], {}) == f"{word} -target {target} -c a b\n"
    assert sorted(path.name for path in musl.root.parent.iterdir()) == [
        musl.root.name,
        f"{musl.root.name}.log",
    ]


def test_a_wheel_of_another_digest_is_refused(tmp_path: Path) -> None:
    small_wheel(tmp_path / "links", "0.0.1")
    matrix = replace(MATRIX, zig=replace(MATRIX.zig, version="0.0.1"))
    wanted = wanted_base("musl", "cpu", matrix, tmp_path, "linux-amd64")
    with pytest.raises(BuildFailed) as error:
        make_base(wanted, os.environ, lambda _: None)
    assert "DO NOT MATCH THE HASHES" in f"{error.value.facts}"
    assert not wanted.root.is_dir()


@HERE
def test_without_zig_the_base_is_shown_and_pips_words_say_why(
    tmp_path: Path, program: Program
) -> None:
    work = tmp_path / "work"
    shown = program("build", "show", "cpu", "--base", "musl", "--work", work)
    assert shown.code == 0, shown.stderr
    assert "the base musl is not made yet" in shown.stdout
    assert "with ziglang==0.15.2" in shown.stdout
    assert not work.exists()
    source = small_source(tmp_path / "source")
    places = ("--work", work, "--into", tmp_path / "out")
    done = program("build", "cpu", "--base", "musl", "--source", source, *places)
    assert done.code == 1
    assert "error[build-failed]: fetching ziglang==0.15.2 with pip failed" in done.stderr
    assert "No matching distribution" in done.stderr
    assert not (tmp_path / "out").exists()


# --- zig itself ------------------------------------------------------------------------------


@HERE
@pytest.mark.skipif(not WHEEL, reason="zig has 94 MB: TSUKU_LLM_ZIG_WHEEL names its wheel")
def test_real_builds_have_their_c_library_and_the_same_bytes_again(
    tmp_path: Path, program: Program
) -> None:
    for tool in ("cmake", "ninja"):
        require_tool(tool)
    wheel = "ziglang-0.15.2-py3-none-manylinux_2_12_x86_64.whl"
    (tmp_path / "links" / wheel).symlink_to(Path(WHEEL).absolute())
    source = small_source(tmp_path / "source", CMakeLists_txt=OWN_GGML)

    def built(name: str, base: str) -> Path:
        places = ("--work", tmp_path / name, "--into", tmp_path / name / "out")
        done = program("build", "cpu", "--base", base, "--source", source, *places)
        assert done.code == 0, done.stderr
        return tmp_path / name / "out/cpu"

    first = built("a work", "musl")
    receipt = json.loads((first / "receipt.json").read_bytes())
    assert receipt["measured"]["musl"]
    assert receipt["image"]["target"] == "x86_64-linux-musl"
    assert str(tmp_path) not in json.dumps(receipt)
    bill = json.loads((first / "sbom.cdx.json").read_bytes())
    used = {tool["name"]: tool["version"] for tool in bill["metadata"]["tools"]["components"]}
    assert used["zig"] == "0.15.2"
    assert (first / "tree/libggml.so.0.9.1").is_file(), "ggml is shared"
    # Its own cache, and zig by another path.
    (tmp_path / "other/bases").mkdir(parents=True)
    (zig,) = (tmp_path / "a work/bases").glob("zig-0*[!g]")
    shutil.copytree(zig, tmp_path / "other/bases" / zig.name, copy_function=os.link)
    again = built("other", "musl")
    for path in sorted(first.rglob("*")):
        if path.is_file():
            assert (again / path.relative_to(first)).read_bytes() == path.read_bytes(), path.name

    older = built("other", "glibc-2.17")
    measured = json.loads((older / "receipt.json").read_bytes())["measured"]
    assert tuple(map(int, measured["floors"]["glibc"].split("."))) <= (2, 17)
    assert "libstdcxx" not in measured["floors"]
    shown = subprocess.run(
        [older / "tree/llama-server"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("version: ")
