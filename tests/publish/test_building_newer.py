"""What a base takes from newer suites: which rows, and a small real base on demand."""

import os
from itertools import combinations, permutations
from pathlib import Path

import pytest
from support.tools import missing, require_tool

from tsuku_llm.ground.errors import NoSpace, UsageError
from tsuku_publish.building.bases import WantedBase, make_base, wanted_base
from tsuku_publish.building.matrix import BaseSystem, NewerTools, load_matrix
from tsuku_publish.building.newer import add_newer, newer_tools
from tsuku_publish.building.place import Base
from tsuku_publish.building.running import run_logged
from tsuku_publish.errors import BuildFailed, PublishError

MATRIX = load_matrix()
REAL = os.environ.get("TSUKU_LLM_BASES") == "1"
WORDS = [word for system in MATRIX.bases.values() for word in system.builds()]


def chosen(word: str, base: str = "debian-11") -> list[str]:
    rows = newer_tools(word, base, MATRIX.bases[base])
    return [f"{row.backend} {row.toolkit} {row.suite}" for row in rows]


@pytest.mark.parametrize(
    ("word", "rows"),
    [
        ("cpu", []),
        ("vulkan", ["vulkan  trixie"]),
        ("vulkan-company", ["vulkan  trixie"]),
        ("CUDA", ["cuda 12.4 trixie"]),
        ("cuda-12.4", ["cuda 12.4 trixie"]),
        ("cuda-11.8", ["cuda 11.8 bookworm"]),
        ("cuda-11.8+vulkan", ["cuda 11.8 bookworm", "vulkan  trixie"]),
        ("cpu+vulkan", ["vulkan  trixie"]),
    ],
)
def test_a_variant_takes_the_row_of_its_toolkit(word: str, rows: list[str]) -> None:
    assert chosen(word) == rows


def test_the_newest_toolkit_is_one_of_numbers_and_not_of_letters() -> None:
    rows = tuple(NewerTools("cuda", "s", toolkit) for toolkit in ("9.2", "12.10", "12.4"))
    for order in permutations(rows):
        system = BaseSystem("old", "", (), newer=order)
        assert [row.toolkit for row in newer_tools("cuda", "old", system)] == ["12.10"]


@pytest.mark.parametrize("word", ["cuda-12.8", "rocm", "cpu+metal", "vulkan+cuda-9.0"])
def test_what_no_row_builds_is_refused_with_what_can_be_built(word: str) -> None:
    with pytest.raises(UsageError, match="cannot be built in the base debian-11") as error:
        chosen(word)
    assert error.value.facts == ("it can build: cpu, vulkan, cuda-12.4, cuda-11.8",)


def test_no_suite_is_asked_for_what_another_one_brings(tmp_path: Path) -> None:
    pairs = ["+".join(pair) for pair in combinations(WORDS, 2) if "cuda" not in pair[0]]
    roots = set()
    for word in [*WORDS, *pairs]:
        made = wanted_base("debian-11", word, MATRIX, tmp_path, "linux-amd64")
        brought = {name for row in made.newer for name in row.programs + row.packages}
        assert not brought & {*made.installed}, word
        assert {name for row in made.newer for name in row.needs} <= {*made.installed}
        assert {"g++", "clang-16"} <= {*made.installed}
        assert all("/" in name for name in {*made.packages} - {*made.installed})
        roots.add(made.root)
    alone = {word for word in pairs if word.startswith("cpu+")}
    assert len(roots) == len(WORDS) + len(pairs) - len(alone), "each line has its own root"


def test_a_receipt_names_the_suite_of_what_is_newer(tmp_path: Path) -> None:
    for place, name in (("var", "gcc-10"), ("opt/trixie/var", "glslc"), ("opt/other", "x")):
        status = tmp_path / place / "lib/dpkg/status"
        status.parent.mkdir(parents=True)
        status.write_text(f"Package: {name}\nStatus: install ok installed\nVersion: 1-2\n\n")
    assert [*Base(tmp_path).packages()] == [("gcc-10", "1-2"), ("glslc/trixie", "1-2")]


def test_compilers_of_this_machine_do_not_reach_a_base_that_has_its_own(tmp_path: Path) -> None:
    ours = {"CC": "gcc-13", "CUDAHOSTCXX": "/opt/gcc/bin/g++", "CCACHE_DISABLE": "1"}
    own = Base(tmp_path, MATRIX.bases["debian-11"].environment).environment(ours)
    assert (own["CC"], own["CCACHE_DISABLE"]) == ("clang-16", "1")
    assert "CUDAHOSTCXX" not in own
    folder = Base(tmp_path).environment(ours)
    assert (folder["CC"], folder["CUDAHOSTCXX"]) == ("gcc-13", "/opt/gcc/bin/g++")


@pytest.mark.parametrize(
    ("said", "error", "shown"),
    [
        ("You don't have enough free space in /var/cache/apt/archives/.", NoSpace, "no space"),
        ("Unable to locate package glslc", BuildFailed, "Unable to locate package glslc"),
    ],
)
def test_apts_own_words_say_why_it_failed(
    tmp_path: Path, said: str, error: type[Exception], shown: str
) -> None:
    script = 'echo "Get:1 nothing was not found"; echo "E: $0"; exit 100'
    log = tmp_path / "log"
    with pytest.raises(error) as raised:
        run_logged(
            ["sh", "-c", script, said],
            doing="adding tools",
            log=log,
            folder=tmp_path,
            environ={**os.environ},
        )
    assert shown in f"{raised.value} {getattr(raised.value, 'facts', '')}"


# --- a small real base -----------------------------------------------------------------------


@pytest.mark.skipif(not REAL, reason="downloads 100 MB: TSUKU_LLM_BASES=1 asks for it")
def test_a_real_base_runs_newer_programs_and_keeps_its_own_libraries(tmp_path: Path) -> None:
    for tool in ("debootstrap", "bwrap"):
        require_tool(tool)
    if os.geteuid() != 0:
        missing("root's right to make a base")
    newer = (NewerTools("vulkan", "trixie", programs=("cmake",), packages=("spirv-headers",)),)
    system = BaseSystem("bullseye", "", ("cpu",), newer=newer)
    wanted = WantedBase("small", tmp_path / "bases/small", system, ("hostname",), newer)
    lines: list[str] = []
    make_base(wanted, os.environ, lines.append)
    base = Base(wanted.root)
    environ = base.environment({})
    assert base.glibc() == "2.31"
    # CMake starts itself again, by the path at which it takes itself to be.
    script = wanted.root / "opt/again.cmake"
    script.write_text("execute_process(COMMAND ${CMAKE_COMMAND} -E echo said again)\n")
    assert base.answer(["cmake", "-P", "/opt/again.cmake"], environ) == "said again\n"
    # The program itself has a newer glibc, and the base's loader refuses it.
    assert base.answer(["/opt/trixie/usr/bin/cmake.bin", "--version"], environ) == ""
    assert (wanted.root / "usr/include/spirv/unified1/spirv.hpp").is_file()
    packages = dict(base.packages())
    assert packages["libc6/trixie"].startswith("2.41")
    assert packages["libc6"].startswith("2.31")

    kept, log = tmp_path / "bases/packages", tmp_path / "log"
    path = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "LC_ALL": "C"}

    def added(suite: str, package: str) -> None:
        tools = NewerTools("vulkan", suite, packages=(package,))
        add_newer(tools, wanted.root, kept, log, path)

    sources = wanted.root / "etc/apt/sources.list"
    reachable = sources.read_text()
    failures = [
        (reachable, "no-such-suite", "hello", "no-such-suite Release' does not have"),
        (reachable, "trixie", "no-such-package", "locate package no-such-package"),
        ("deb http://127.0.0.1:9/ bullseye main\n", "trixie", "hello", "to 127.0.0.1:9"),
    ]
    for text, suite, package, said in failures:
        sources.write_text(text)
        with pytest.raises(BuildFailed, match=f"adding tools of {suite}") as failed:
            added(suite, package)
        assert any(said in fact for fact in failed.value.facts), failed.value.facts
    sources.write_text(reachable)
    with pytest.raises(PublishError, match=r"of trixie needs glibc 2\.3\d, and .* has 2\.31"):
        added("trixie", "libzstd1")
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
