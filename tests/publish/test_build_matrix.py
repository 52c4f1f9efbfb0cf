"""What can be built, as data: recipes, tools, CUDA lines, and the tables of docs/building.md."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.machines import OLD_FLOOR, cuda, linux_variants, machine, release, variant
from support.program import SUDO
from support.tools import require_tool

from ci.served import OwnBuild, load_data
from tsuku_llm.catalog.manifest import Release, parse_release
from tsuku_llm.choose.selection import Request, select
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.machine.backends import TABLE
from tsuku_llm.trust import VerifiedBytes
from tsuku_publish.building.matrix import BuildMatrix, load_matrix, numbers
from tsuku_publish.building.place import ToolPlace
from tsuku_publish.building.recipe import (
    BuildWishes,
    Recipe,
    backends_of,
    device_code,
    recipe,
    switches_of,
    wanted,
)
from tsuku_publish.building.toolchain import FoundTool, Toolchain, detect
from tsuku_publish.errors import MissingTools

ROOT = Path(__file__).parents[2]
MATRIX = load_matrix()
NEWEST = "b11541"
"""The release of upstream that the repository embeds with all its variants."""


def tools(platform: str = "linux-amd64", **versions: str) -> Toolchain:
    """A toolchain with these tools, by name and version."""
    names = {"cmake": "3.25.1", "ninja": "1.11", **versions}
    found = tuple(
        FoundTool(name, name, Path("/bin", name), version, "") for name, version in names.items()
    )
    return Toolchain(found, (), None, platform)


def planned(word: str, toolchain: Toolchain | None = None, **wishes: Any) -> Recipe:
    return recipe(word, MATRIX, toolchain or tools(), BuildWishes(**wishes), {})


# --- recipes ---------------------------------------------------------------------------------


def test_every_build_has_upstreams_flags() -> None:
    for word in ("cpu", "vulkan", "opencl"):
        made = planned(word).definitions
        assert made["CMAKE_INSTALL_RPATH"] == "$ORIGIN"
        on = ("GGML_BACKEND_DL", "GGML_CPU_ALL_VARIANTS", "GGML_RPC", "LLAMA_BUILD_SERVER")
        assert {made[name] for name in on} == {"ON"}
        assert made["GGML_NATIVE"] == "OFF"


@pytest.mark.parametrize(
    ("word", "backends"),
    [
        ("cpu", ("cpu",)),
        ("CUDA", ("cuda",)),
        ("cuda+vulkan", ("cuda", "vulkan")),
        ("cpu+vulkan", ("vulkan",)),
        ("cuda-12.4+vulkan", ("cuda", "vulkan")),
    ],
)
def test_a_word_names_backends(word: str, backends: tuple[str, ...]) -> None:
    assert backends_of(word, MATRIX) == backends


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({}, ""),
        ({"GGML_CUDA": "1"}, "cuda"),
        ({"GGML_CUDA": "2", "GGML_HIP": "0.0", "GGML_VULKAN": "NOTFOUND"}, "cuda"),
        ({"GGML_CUDA": "ON", "GGML_VULKAN": "true"}, "cuda+vulkan"),
        ({"GGML_CUDA": "0", "GGML_HIP": "1"}, "rocm"),
    ],
)
def test_the_environment_names_a_variant(environ: dict[str, str], word: str) -> None:
    assert wanted(environ) == word


def test_a_named_variant_outranks_the_environment() -> None:
    environ = {"GGML_VULKAN": "1", "GGML_CUDA": "1", "GGML_LTO": "ON", "GGML_BACKEND_PATH": "/x"}
    switches = switches_of(environ, frozenset({"GGML_LTO", "GGML_VULKAN"}))
    made = recipe("cuda", MATRIX, tools(nvcc="12.4"), BuildWishes(), switches)
    assert made.definitions["GGML_LTO"] == "ON"
    assert "GGML_VULKAN" not in made.definitions
    assert made.notes == (
        "GGML_CUDA=1 agrees with the variant",
        "GGML_LTO=ON is passed on to CMake",
        "GGML_VULKAN=1 is left out: the variant was named",
    )


@pytest.mark.parametrize(
    ("word", "versions", "name"),
    [
        ("cuda", {"nvcc": "12.4"}, "cuda-12.4"),
        ("cuda-12.4", {"nvcc": "12.4.131"}, "cuda-12.4"),
        ("vulkan+cuda", {"nvcc": "11.8"}, "vulkan+cuda-11.8"),
        ("rocm", {"hipcc": "10.0.3"}, "rocm-10.0"),
        ("cuda", {}, "cuda"),
        ("cpu+vulkan", {}, "vulkan"),
        ("sycl-fp16", {}, "sycl-fp16"),
    ],
)
def test_a_variant_has_the_version_of_its_toolkit(
    word: str, versions: dict[str, str], name: str
) -> None:
    assert planned(word, tools(**versions)).variant == name


@pytest.mark.parametrize(
    ("word", "platform", "wishes", "said"),
    [
        ("cuda-11.8", "linux-amd64", {}, "cuda-11.8 cannot be built with this toolkit"),
        ("metal", "linux-amd64", {}, "metal cannot be built on linux-amd64"),
        ("cpu", "linux-arm64", {"baseline": "x86-64-v3"}, "--baseline is not for linux-arm64"),
        ("cuda", "linux-amd64", {"cuda_architectures": ("3.7",)}, "no code for cards of .* 3.7"),
        ("cuda", "linux-amd64", {"cuda_architectures": ("native",)}, "no CUDA architecture"),
        ("rocm", "linux-amd64", {"gfx": ("1030",)}, "no AMD GPU"),
    ],
)
def test_what_cannot_be_built_is_refused(
    word: str, platform: str, wishes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        planned(word, tools(platform, nvcc="12.4"), **wishes)


def test_architectures_are_as_asked_or_those_of_the_toolkit() -> None:
    asked = planned("cuda", tools(nvcc="12.4"), cuda_architectures=("8.6", "90-real", "12.0a-real"))
    assert asked.definitions["CMAKE_CUDA_ARCHITECTURES"] == "86;90-real;120a-real"
    assert device_code(asked.cuda_architectures) == (("8.6", "9.0", "12.0a"), ("8.6",))
    default = planned("cuda", tools(nvcc="12.4")).definitions["CMAKE_CUDA_ARCHITECTURES"]
    assert default.split(";") == [*lines()["12.0"]]


def test_a_higher_baseline_is_written_into_the_files() -> None:
    made = planned("cpu", baseline="x86-64-v3")
    assert (made.flags, made.link_flags) == (("-march=x86-64-v3",), ("-Wl,-z,x86-64-v3",))
    assert planned("cpu").flags == ("-march=x86-64",)


# --- tools -----------------------------------------------------------------------------------


def stub(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def system(tmp_path: Path, name: str) -> Path:
    (tmp_path / "etc").mkdir(parents=True, exist_ok=True)
    (tmp_path / "etc/os-release").write_text(f"ID={name}\n")
    return tmp_path


def test_a_toolkit_is_found_by_variable_path_and_usual_place(tmp_path: Path) -> None:
    root = system(tmp_path, "debian")
    says = 'echo "Cuda compilation tools, release {0}, V{0}.131"'
    usual = stub(root / "usr/local/cuda/bin/nvcc", says.format("12.4"))
    on_path = stub(root / "bin/nvcc", says.format("12.8"))
    told = stub(root / "opt/11/bin/nvcc", says.format("11.8"))
    places: list[tuple[dict[str, str], Path, str]] = [
        ({"PATH": ""}, usual, "12.4"),
        ({"PATH": str(root / "bin")}, on_path, "12.8"),
        ({"PATH": str(root / "bin"), "CUDA_PATH": str(root / "opt/11")}, told, "11.8"),
        ({"PATH": str(root / "bin"), "CUDACXX": str(told)}, told, "11.8"),
    ]
    for environ, path, version in places:
        found = detect(MATRIX, ("cuda",), environ, place=ToolPlace(root)).get("nvcc")
        assert found
        assert (found.path, found.version) == (path, version)


def test_a_compiler_that_a_variable_names_has_no_stand_in(tmp_path: Path) -> None:
    root = system(tmp_path, "debian")
    for name in ("cc", "gcc-13"):
        stub(root / "bin" / name, "echo 13.1.0")
    path = str(root / "bin")
    found = detect(
        MATRIX, ("cpu",), {"PATH": path, "CC": "gcc-13 -m64"}, place=ToolPlace(root)
    ).get("cc")
    assert found
    assert found.path == root / "bin/gcc-13"
    none = detect(MATRIX, ("cpu",), {"PATH": path, "CC": "gcc-99"}, place=ToolPlace(root))
    assert "not found with CC=gcc-99" in [tool.reason for tool in none.lacking]


def test_cmake_gets_the_toolkit_that_names_the_variant() -> None:
    made = planned("cuda", tools(nvcc="12.4"))
    assert made.definitions["CMAKE_CUDA_COMPILER"] == "/bin/nvcc"


def test_headers_are_found_with_their_version(tmp_path: Path) -> None:
    root = system(tmp_path, "fedora")
    headers = root / "usr/include/vulkan"
    headers.mkdir(parents=True)
    (headers / "vulkan.hpp").write_text("")
    text = (
        "// Version of this file\n#define VK_HEADER_VERSION {}\n\n"
        "#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, 3, VK_HEADER_VERSION)\n"
    )
    (headers / "vulkan_core.h").write_text(text.format(272))
    found = detect(MATRIX, ("vulkan",), {"PATH": ""}, place=ToolPlace(root))
    assert {tool.name: tool.version for tool in found.tools} == {"vulkan-headers": "1.3.272"}
    assert {tool.name for tool in found.lacking} >= {"glslc", "vulkan-loader", "spirv-headers"}
    # As Debian 12 has them: its package would bring the same again.
    (headers / "vulkan_core.h").write_text(text.format(239))
    found = detect(MATRIX, ("vulkan",), {"PATH": ""}, place=ToolPlace(root))
    (old,) = (tool for tool in found.lacking if tool.name == "vulkan-headers")
    assert "vulkan.hpp is 1.3.239, and 1.3.272 is needed" in old.reason
    assert "VULKAN_SDK" in old.advice
    assert "vulkan-headers" not in (found.install or "")


@pytest.mark.parametrize(
    ("name", "command", "glslc"),
    [
        (
            "debian",
            f"{SUDO}apt install cmake make gcc g++ glslc libvulkan-dev spirv-headers",
            "glslc",
        ),
        (
            "arch",
            f"{SUDO}pacman -S cmake make gcc shaderc vulkan-headers vulkan-icd-loader",
            "shaderc",
        ),
        ("plan9", None, "glslc (Debian), glslc (Fedora)"),
    ],
)
def test_what_is_missing_is_named_with_the_systems_packages(
    tmp_path: Path, name: str, command: str | None, glslc: str
) -> None:
    found = detect(MATRIX, ("vulkan",), {"PATH": ""}, place=ToolPlace(system(tmp_path, name)))
    assert (found.install or "").startswith(command or "")
    assert (found.install is None) == (command is None)
    with pytest.raises(MissingTools) as error:
        found.require_complete()
    assert any(glslc in fact for fact in error.value.facts if "glslc" in fact)
    assert not any("ccache" in fact for fact in error.value.facts), "nothing needs it"


def test_a_tool_that_is_too_old_counts_as_missing(tmp_path: Path) -> None:
    stub(tmp_path / "bin/cmake", "echo cmake version 3.16.3")
    found = detect(MATRIX, ("cpu",), {"PATH": str(tmp_path / "bin")}, place=ToolPlace(tmp_path))
    (cmake,) = (tool for tool in found.lacking if tool.name == "cmake")
    assert cmake.reason == f"{tmp_path}/bin/cmake is 3.16.3, and 3.18 is needed"
    # As Debian 11 has it: enough for the processor, too old for the shaders.
    stub(tmp_path / "bin/cmake", "echo cmake version 3.18.4")
    old = {
        backend: tool.reason.rpartition("and ")[2]
        for backend in ("cpu", "cuda", "vulkan", "rocm")
        for tool in detect(
            MATRIX, (backend,), {"PATH": str(tmp_path / "bin")}, place=ToolPlace(tmp_path)
        ).lacking
        if tool.name == "cmake"
    }
    assert old == {"vulkan": "3.20 is needed", "rocm": "3.21 is needed"}


def test_make_is_enough_where_there_is_no_ninja(tmp_path: Path) -> None:
    require_tool("sh")
    for name in ("cmake", "make", "cc", "c++"):
        stub(tmp_path / "bin" / name, "echo 4.3")
    found = detect(MATRIX, ("cpu",), {"PATH": str(tmp_path / "bin")}, place=ToolPlace(tmp_path))
    assert not found.lacking
    assert recipe("cpu", MATRIX, found, BuildWishes(), {}).generator == "Unix Makefiles"


# --- the data --------------------------------------------------------------------------------


def test_the_data_hold_together() -> None:
    named = {tool for row in MATRIX.backends.values() for tool in row.tools}
    assert named <= MATRIX.tools.keys()
    assert MATRIX.backends.keys() == {row.name for row in TABLE}
    for each in MATRIX.variants:
        assert backends_of(each.name, MATRIX) == each.backends
        assert not each.toolkit or MATRIX.cuda_line(each.toolkit)
    for base in MATRIX.bases.values():
        assert {*base.backends, *(row.backend for row in base.newer)} <= MATRIX.backends.keys()
        assert all(MATRIX.cuda_line(row.toolkit) for row in base.newer if row.toolkit)
    for line in MATRIX.cuda:
        for name in device_code(line.architectures)[0]:
            assert numbers(name.rstrip("a")) >= (5, 0), "llama.cpp has no code for Kepler"
            # b11434 with 9.0 and CUDA 11.8: cudaGridDependencySynchronize is undefined.
            assert numbers(name.rstrip("a")) < (9, 0) or numbers(line.toolkit) >= (12, 0)


def lines() -> dict[str, tuple[str, ...]]:
    return {line.toolkit: line.architectures for line in MATRIX.cuda}


def with_lines(*toolkits: str) -> Release:
    """Upstream's release, and CUDA variants of these toolkits built on an older system."""
    variants = linux_variants()
    for toolkit in toolkits:
        line = MATRIX.cuda_line(toolkit)
        assert line
        sass, ptx = device_code(line.architectures)
        needs = {"toolkit": toolkit, "sass": [*sass], "ptx": [*ptx]}
        variants[f"cuda-{toolkit}"] = variant("cuda", {**OLD_FLOOR, "cuda": needs})
    return release(variants)


@pytest.mark.parametrize(
    ("card", "capability", "driver", "chosen"),
    [
        ("A100", "8.0", "12.4", "cuda-12.4"),
        ("GTX 1080 Ti", "6.1", "12.2", "cuda-12.4"),
        ("RTX 3090", "8.6", "11.8", "cuda-11.8"),
        ("RTX 3090", "8.6", "11.4", "cuda-11.8"),
        ("V100", "7.0", "11.0", "cuda-11.8"),
        ("V100", "7.0", "11.4", "cuda-11.8"),
        ("GTX Titan X", "5.2", "12.0", "cuda-12.4"),
        ("GB10", "12.1", "12.6", "cuda-12.4"),  # from PTX for 9.0
        ("B200", "10.0", "12.8", "cuda-12.8"),  # the same
        ("GTX 750 Ti", "5.0", "12.1", "cuda-12.4"),
        ("H200", "9.0", "12.2", "cuda-12.4"),
        ("H200", "9.0", "11.8", "cuda-11.8"),  # from PTX for 8.9
        ("H200", "9.0", "11.7", "cpu"),
        ("RTX 5090", "12.0", "12.8", "cuda-12.8"),
        ("K80", "3.7", "11.4", "cpu"),
        ("RTX 3090", "8.6", "10.2", "cpu"),
    ],
)
def test_older_drivers_and_cards_get_a_cuda_build(
    card: str, capability: str, driver: str, chosen: str
) -> None:
    api = cuda(capability, driver)
    api = replace(api, gpus=(replace(api.gpus[0], name=card),))
    found = select(with_lines("12.4", "11.8"), machine(api), Request())
    assert found.selected
    assert found.selected.variant.name == chosen
    if chosen in {"cuda-11.8", "cuda-12.4"}:
        upstreams = select(release(), machine(api), Request())
        assert upstreams.selected
        assert upstreams.selected.variant.name == "cpu", "upstream's own builds do not serve it"


# --- the tables of the documentation ---------------------------------------------------------


def table_of_lines(matrix: BuildMatrix) -> str:
    rows = [
        (
            f"{line.toolkit} and later",
            ", ".join(device_code(line.architectures)[0]),
            ", ".join(device_code(line.architectures)[1]),
            line.drivers,
            line.purpose,
        )
        for line in matrix.cuda
    ]
    head = ("toolkit", "machine code for", "PTX", "oldest driver (Linux)", "serves")
    return as_table(head, rows)


def table_of_variants(matrix: BuildMatrix, upstream: Release, made: Iterable[OwnBuild]) -> str:
    rows = []
    for each in matrix.variants:
        ours = [
            f"`{build.name}`" + (" (measured)" if build.known.startswith("measured") else "")
            for build in made
            if build.name.startswith(f"{each.name}-")
        ]
        places = [set(matrix.backends[name].platforms) for name in each.backends]
        places += [{*each.platforms}] if each.platforms else []
        own = [tool for name in each.backends for tool in matrix.backends[name].tools]
        shipped = [
            name
            for name, platform in sorted(upstream.platforms.items())
            if any(
                found.name == each.name
                or ("-" not in each.name and found.backend == "+".join(each.backends))
                for found in platform.variants
            )
        ]
        rows.append(
            (
                f"`{each.name}`",
                each.purpose,
                ", ".join(sorted(set.intersection(*places))),
                ", ".join(matrix.tools[tool].title for tool in own) or "nothing more",
                ", ".join(shipped) or "-",
                ", ".join(ours) or "-",
            )
        )
    head = ("variant", "for", "built on", "besides CMake and a compiler", "upstream ships", "ours")
    return as_table(head, rows)


def table_of_bases(matrix: BuildMatrix) -> str:
    rows = [
        (
            f"`{name}`",
            ", ".join(f"`{each}`" for each in base.builds()),
            base.purpose,
            ", ".join(f"`{each}`" for each in base.packages) or "nothing more",
        )
        for name, base in matrix.bases.items()
    ]
    builds = ", ".join(f"`{each}`" for each in matrix.zig.backends)
    brought = f"zig {matrix.zig.version}"
    rows += [
        (f"`{name}`", builds, each.purpose, brought) for name, each in matrix.zig.bases.items()
    ]
    return as_table(("base", "builds", "gives", "besides the tools of each build"), rows)


def table_of_newer(matrix: BuildMatrix) -> str:
    rows = [
        (
            f"`{name}`",
            f"`{variant}`",
            f"`{row.suite}`",
            ", ".join(f"`{each}`" for each in row.programs) or "-",
            ", ".join(f"`{each}`" for each in row.packages) or "-",
        )
        for name, base in matrix.bases.items()
        for variant, row in zip(base.builds()[len(base.backends) :], base.newer, strict=True)
    ]
    return as_table(("base", "for", "from", "programs", "packages"), rows)


def as_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    rule = tuple("---" for _ in head)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def shown(mark: str) -> str:
    text = (ROOT / "docs/building.md").read_text("utf-8")
    found = re.search(rf"<!-- {mark}: [^\n]*-->\n\n((?:\|[^\n]*\n)+)", text)
    return found[1].rstrip() if found else ""


def newest() -> Release:
    (path,) = (ROOT / "manifests" / "targets").rglob(f"*.{NEWEST}.json")
    return parse_release(VerifiedBytes(path.read_bytes()))


def test_the_documented_tables_are_those_of_the_data() -> None:
    drawn = table_of_lines(MATRIX)
    assert shown("cuda lines") == drawn, f"\n{drawn}"
    drawn = table_of_bases(MATRIX)
    assert shown("bases") == drawn, f"\n{drawn}"
    drawn = table_of_newer(MATRIX)
    assert shown("newer") == drawn, f"\n{drawn}"
    drawn = table_of_variants(MATRIX, newest(), load_data().build)
    assert shown("matrix") == drawn, f"\n{drawn}"
