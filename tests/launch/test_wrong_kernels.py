"""The real server, and kernels of it that compute wrongly: each must be noticed before it is used.

The faults are put before the right kernels of the processor's backend, where a wrong kernel of a
GPU would be. ``support/c/wrong_kernels.c`` says what each does.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from support.builds import REAL_SERVER, compile_library, real_build

from tsuku_llm.ground.errors import GateFailed
from tsuku_llm.launch.plan.planning import Build
from tsuku_llm.launch.run.computing import compute

pytestmark = [
    pytest.mark.index,
    pytest.mark.skipif(sys.platform != "linux", reason="the real build is Linux's"),
]

SOURCE = Path(__file__).parents[1] / "support" / "c" / "wrong_kernels.c"
FAULTS = sorted(
    set(re.findall(r'\bis\("([^"]+)"\)', SOURCE.read_text("utf-8")))
    | set(re.findall(r'^(?:DOT|REPACKED)\(\w+, "([^"]+)"', SOURCE.read_text("utf-8"), re.MULTILINE))
)
CPU = ("--device", "none")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_build(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("kernels") / "libwrong.so"
    return compile_library(target, SOURCE.read_text("utf-8"), "-O1", "-ldl", "-lm")


@pytest.mark.parametrize(
    "setting",
    [
        "LLAMA_ARG_FLASH_ATTN=off",
        "LLAMA_ARG_FLASH_ATTN=on",
        "LLAMA_ARG_THREADS=1",
        "LLAMA_ARG_THREADS=3",
        "LLAMA_ARG_UBATCH=64",
        "LLAMA_ARG_N_PARALLEL=1",
        "GGML_CPU_REPACK=0",
    ],
)
def test_a_right_build_is_right_in_each_setting(tree: Path, tmp_path: Path, setting: str) -> None:
    server = wrapped(tmp_path, tree, setting)
    found = compute(Build(tmp_path, server, "cpu", CPU), os.environ, None, tmp_path / "models")
    assert found.not_computed == ""
    assert found.deviation is not None
    assert found.deviation < 0.04


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_that_computes_wrongly_is_noticed(
    tree: Path, kernels: Path, tmp_path: Path, fault: str
) -> None:
    seen = tmp_path / "seen"
    settings = (f"LD_PRELOAD={kernels}", f"FAULT={fault}", f"FAULT_SEEN={seen}")
    server = wrapped(tmp_path, tree, "LLAMA_ARG_THREADS=1", *settings)
    build = Build(tmp_path, server, "cpu", CPU)
    limit = 10.0 if fault == "hang" else None
    refusal = ""
    try:
        compute(build, os.environ, None, tmp_path / "models", limit=limit)
    except GateFailed as error:
        refusal = error.message
    if not seen.exists() and not refusal:
        pytest.skip("this processor's build does not use that kernel")
    assert "does not compute here" in refusal
    assert seen.exists()


def test_there_are_thirty_faults() -> None:
    assert len(FAULTS) >= 30


def wrapped(folder: Path, tree: Path, *settings: str) -> str:
    """Write a server that has these variables: the gate passes none that load libraries."""
    script = folder / "server.sh"
    words = " ".join(settings)
    script.write_text(f'#!/bin/sh\nexec env {words} {tree / REAL_SERVER} "$@"\n', "utf-8")
    script.chmod(0o755)
    return script.name
