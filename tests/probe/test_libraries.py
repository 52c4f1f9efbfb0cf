"""Shared libraries of the system, as a prebuilt program would find them."""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builds import compile_library
from support.machines import linux_variants, release, variant

from tsuku_llm.choose.selection import Request, Selection, select
from tsuku_llm.machine.host import DriverAnswer
from tsuku_llm.machine.local_host import LocalHost
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.probe import libraries, probe, program
from tsuku_llm.probe.worker.questions.libraries import LINUX

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the loaders are those of Linux")


def asked(folder: Path, *names: str, root: Path | None = None) -> dict[str, str | None]:
    """What a real child is told by this system's loader, which also searches the folder."""
    host = LocalHost(root, {**os.environ, "LD_LIBRARY_PATH": str(folder)})
    question = libraries.question(names)
    return {**libraries.parse(host.ask(program(host), (question,), 30.0)()[question])}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """libouter.so.2 needs libinner.so.4, which is beside it."""
    made = tmp_path / "lib"
    made.mkdir()
    compile_library(made / "libinner.so.4", "int one;", "-nostdlib", "-Wl,-soname,libinner.so.4")
    compile_library(
        made / "libouter.so.2",
        "int two;",
        "-nostdlib",
        "-Wl,--no-as-needed",
        str(made / "libinner.so.4"),
    )
    return made


def test_a_library_that_loads_lacks_nothing(folder: Path) -> None:
    names = ("libinner.so.4", "libouter.so.2", "libc.so.6")
    assert asked(folder, *names) == dict.fromkeys(names)


def test_a_library_that_is_missing_is_named(folder: Path) -> None:
    assert asked(folder, "libnowhere.so.9") == {"libnowhere.so.9": "libnowhere.so.9"}


def test_what_a_library_needs_in_turn_is_named(folder: Path) -> None:
    (folder / "libinner.so.4").unlink()
    assert asked(folder, "libouter.so.2") == {"libouter.so.2": "libinner.so.4"}


@pytest.mark.parametrize("damage", ["cut off", "another processor's", "a link to nothing"])
def test_a_file_that_no_program_could_use_is_missing(folder: Path, damage: str) -> None:
    path = folder / "libinner.so.4"
    data = bytearray(path.read_bytes())
    if damage == "cut off":
        del data[300:]
    else:
        data[18:20] = (22).to_bytes(2, "little")  # s390x
    path.unlink()
    if damage == "a link to nothing":
        path.symlink_to("gone.so")
    else:
        path.write_bytes(data)
    found = asked(folder, "libinner.so.4", "libouter.so.2")
    assert found["libinner.so.4"] == "libinner.so.4"
    assert found["libouter.so.2"]


def test_the_code_of_a_library_does_not_run(folder: Path) -> None:
    """A driver's library may crash or hang when it is loaded."""
    code = "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }"
    compile_library(folder / "libcrash.so.1", code, "-nostdlib")
    assert asked(folder, "libcrash.so.1") == {"libcrash.so.1": None}


def test_the_probe_asks_for_what_upstreams_builds_need() -> None:
    found = probe(LocalHost()).libraries
    assert {*found} == {*LINUX}
    # Python's own search reads the same cache of the system.
    for name in LINUX:
        stem = name.removeprefix("lib").partition(".so")[0]
        if ctypes.util.find_library(stem) == name:
            assert found[name] is None, name


def test_a_system_whose_c_library_is_elsewhere_says_nothing(folder: Path, tmp_path: Path) -> None:
    """NixOS has no library in a usual folder; nix-ld finds them by variables of its own."""
    root = tmp_path / "root"
    (root / "lib64").mkdir(parents=True)
    shutil.copy("/bin/true", root / "lib64" / "ld-linux-x86-64.so.2")
    assert asked(folder, "libnowhere.so.9", root=root) == {}


def test_a_recorded_machine_without_hipblas_gets_vulkan_and_the_package_s_name(
    tmp_path: Path,
) -> None:
    """llama.cpp#26996, #25807: AMD's driver is there, and the libraries of its toolkit are not."""
    recording = json.loads((SNAPSHOTS / "strix-halo-gfx1151.json").read_text("utf-8"))
    needs = {
        "rocm": {"runtime": "10.0", "gfx": ["gfx1151"]},
        "libraries": ["libhipblas.so.3", "librocblas.so.5"],
    }
    offered = release({**linux_variants(), "rocm-10.0": variant("rocm", needs)})
    request = Request("amd", "native")

    def chosen(**paths: str | None) -> Selection:
        lines = [
            {"call": "library", "name": f"lib{stem}.so.{number}", "path": path, "error": None}
            for (stem, path), number in zip(paths.items(), (3, 5), strict=True)
        ]
        recording["answers"]["libraries"] = {"lines": lines, "end": "done"}
        (tmp_path / "machine.json").write_text(json.dumps(recording), "utf-8")
        return select(offered, probe(ReplayHost.load(tmp_path / "machine.json")), request)

    assert chosen(hipblas="/opt/a", rocblas="/opt/b").selected.variant.name == "rocm-10.0"
    without = chosen(hipblas=None, rocblas="/opt/b")
    assert without.selected.variant.name == "vulkan"
    (rocm,) = (each.reason for each in without.rejected if each.variant.name == "rocm-10.0")
    assert (rocm.slug, rocm.text) == (
        "libraries",
        "needs libhipblas.so.3, which this system lacks (package hipblas)",
    )


# --- what loaders say -----------------------------------------------------------------------


def told(error: str | None, path: str | None = "/lib/liba.so.1") -> dict[str, str | None]:
    line = {"call": "library", "name": "liba.so.1", "path": path, "error": error}
    return {**libraries.parse(DriverAnswer((line,), "done"))}


OF_GLIBC = "/lib/liba.so.1: error while loading shared libraries: "


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (
            OF_GLIBC + "libb.so.2: cannot open shared object file: No such file or directory\n",
            "libb.so.2",
        ),
        (
            "Error loading shared library libb.so.2: No such file or directory (needed by /liba)",
            "libb.so.2",
        ),
        (OF_GLIBC + "x: file too short", "liba.so.1"),
        ("/lib/libc.so.6: version `GLIBC_2.99' not found (required by x)", "liba.so.1"),
        ("status 135", "liba.so.1"),
        (None, None),
    ],
)
def test_what_loaders_say(error: str | None, lacks: str | None) -> None:
    assert told(error) == {"liba.so.1": lacks}


def test_a_limit_of_the_system_says_nothing_about_a_library() -> None:
    why = "libb.so.2: cannot open shared object file: Too many open files"
    assert told(OF_GLIBC + why) == {}


def test_windows_says_that_a_module_is_missing() -> None:
    why = "Could not find module 'hipblas.dll' (or one of its dependencies)."
    line = {"call": "library", "name": "hipblas.dll", "path": None, "error": why}
    assert libraries.parse(DriverAnswer((line,), "done")) == {"hipblas.dll": "hipblas.dll"}


JUNK = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["name", "path", "error", "call"]), JUNK)
        | st.fixed_dictionaries({"call": st.just("library"), "name": JUNK, "path": JUNK}),
        max_size=4,
    )
)
def test_any_answer_is_a_list_of_names(lines: list[dict[str, Any]]) -> None:
    for name, lacks in libraries.parse(DriverAnswer(tuple(lines), "done")).items():
        assert name
        assert lacks is None or lacks
