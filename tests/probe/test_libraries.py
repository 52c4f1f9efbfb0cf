"""Shared libraries of the system, as a prebuilt program would find them."""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import subprocess
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
from tsuku_llm.probe import libc, probe, program
from tsuku_llm.probe.worker import search
from tsuku_llm.probe.worker.main import system_python
from tsuku_llm.probe.worker.protocol import Channel
from tsuku_llm.probe.worker.questions.libraries import LINUX

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the loaders are those of Linux")


def asked(folder: Path, *names: str, root: Path | None = None) -> dict[str, str | None]:
    """What a real child is told by this system's loader, which also searches the folder."""
    host = LocalHost(root, {**os.environ, "LD_LIBRARY_PATH": str(folder)})
    question = libc.library_question(names)
    return {**libc.parse_libraries(host.ask(program(host), (question,), 30.0)()[question])}


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


# --- a Python that loads otherwise than a server ----------------------------------------------

needs_a_loader = pytest.mark.skipif(
    search.MACHINE not in search.LOADERS, reason="no build is for this processor"
)


def test_both_sides_of_the_pipe_know_the_same_loaders() -> None:
    first = {machine: loaders[0] for machine, loaders in search.LOADERS.items()}
    assert first == libc.LOADERS


def with_loader(root: Path, target: Path | None = None) -> Path:
    """A system whose loader is this file, or one that no process has mapped."""
    loader = Path(f"{root}{search.LOADERS[search.MACHINE][0]}")
    loader.parent.mkdir(parents=True)
    if target is None:
        loader.write_bytes(b"")
    else:
        loader.symlink_to(target)
    return root


def with_python(root: Path, script: str, minor: int = 11) -> Path:
    modules = root / "usr" / "lib" / f"python3.{minor}" / "ctypes"
    modules.mkdir(parents=True)
    (modules / "__init__.py").touch()
    python = root / "usr" / "bin" / f"python3.{minor}"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    python.chmod(0o755)
    return python


@needs_a_loader
def test_drivers_are_asked_by_the_system_s_python_where_this_one_has_another_loader(
    tmp_path: Path,
) -> None:
    """Nix, Guix, Homebrew: their loader does not read the system's cache (NixOS/nixpkgs#46032)."""
    root, mark = with_loader(tmp_path / "root"), tmp_path / "started"
    with_python(root, f'echo started >> "{mark}"; exec "{sys.executable}" "$@"')
    host = LocalHost(root)
    answer = host.ask(program(host), ("libc",), 30.0)()["libc"]
    # Once: this stand-in has the wrong loader as well.
    assert (mark.read_text("utf-8"), answer.end) == ("started\n", "done")
    assert any(line.get("call") == "loader" for line in answer.lines)


@needs_a_loader
def test_the_newest_whole_python_of_the_system_is_taken(tmp_path: Path) -> None:
    root = with_loader(tmp_path)
    assert system_python(str(root)) is None
    with_python(root, "exit 1", 9)
    whole = with_python(root, "exit 1", 12)
    (with_python(root, "exit 1", 13).parents[1] / "lib/python3.13/ctypes/__init__.py").unlink()
    (root / "usr/bin/python3.14").write_text("no modules", "utf-8")
    assert system_python(str(root)) == str(whole)


@needs_a_loader
def test_a_python_with_the_system_s_loader_does(tmp_path: Path) -> None:
    mapped = Path("/proc/self/maps").read_text("utf-8")
    loader = next(word for word in mapped.split() if word.rpartition("/")[2].startswith("ld"))
    root = with_loader(tmp_path, Path(loader))
    with_python(root, "exit 1")
    assert system_python(str(root)) is None


def opened(root: Path, name: str) -> list[dict[str, Any]]:
    reading, writing = os.pipe()
    Channel(writing, "q", str(root)).open([name])
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return [json.loads(line) for line in pipe if '"call"' in line]


@needs_a_loader
def test_a_library_that_only_the_system_s_loader_finds_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "usr" / "lib" / "libonlythere.so.1"
    path.parent.mkdir(parents=True)
    compile_library(path, "int one;", "-nostdlib")
    (answer,) = opened(tmp_path, "libonlythere.so.1")
    assert answer["library"] == str(path)
    assert opened(tmp_path, "libonlythere.so.2")[0]["library"] is None


@needs_a_loader
def test_a_library_of_this_python_alone_is_not_the_server_s(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment of conda has a Vulkan loader of its own, through its RPATH."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    code = (
        "import sys; sys.base_prefix, module = sys.argv[1:3]; sys.path.insert(0, module)\n"
        "from worker.protocol import Channel\n"
        "Channel(1, 'q', sys.argv[3]).open(['libinner.so.4'])"
    )
    package = str(Path(search.__file__).parents[1])
    command = [sys.executable, "-c", code, str(folder), package, str(tmp_path / "root")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["library"], "this Python's own" in answer["errors"][0]) == (None, True)


@needs_a_loader
def test_a_library_that_nix_ld_adds_is_found(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with_loader(root, Path("/nix/store/abc-nix-ld-2.0.6/libexec/nix-ld"))
    inside = root / "run/libraries"
    inside.mkdir(parents=True)
    shutil.copy(folder / "libinner.so.4", inside)
    environ = os.environ | {"NIX_LD_LIBRARY_PATH": "/run/libraries"}
    found = subprocess.run(
        [sys.executable, "-c", FIND, str(root)],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "/run/libraries/libinner.so.4"


FIND = """
import sys
from tsuku_llm.probe.worker import search
print(search.find(sys.argv[1], "libinner.so.4")[0])
"""


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
    return {**libc.parse_libraries(DriverAnswer((line,), "done"))}


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
    assert libc.parse_libraries(DriverAnswer((line,), "done")) == {"hipblas.dll": "hipblas.dll"}


JUNK = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["name", "path", "error", "call"]), JUNK)
        | st.fixed_dictionaries({"call": st.just("library"), "name": JUNK, "path": JUNK}),
        max_size=4,
    )
)
def test_any_answer_is_a_list_of_names(lines: list[dict[str, Any]]) -> None:
    for name, lacks in libc.parse_libraries(DriverAnswer(tuple(lines), "done")).items():
        assert name
        assert lacks is None or lacks
