"""The answer of upstream's llama-fit-params, in the words of its source (common/fit.cpp)."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.launch.memory.fit_tool import (
    ask_fit_tool,
    correction_of,
    parse_cache,
    tool_arguments,
)
from tsuku_llm.launch.memory.memory_options import memory_options
from tsuku_llm.launch.memory.need import MemoryNeed
from tsuku_llm.launch.plan.planning import Build

MIB = 1 << 20
TABLE = "Vulkan0 15317 1024 124 \nHost 1002 6 24 \n"
NEED = MemoryNeed(layers=(100, 300), cache=(10, 30), output=50, other=50, compute=7, shared=40)


def test_the_table_is_read() -> None:
    assert parse_cache(TABLE) == 1030 * MIB


@pytest.mark.parametrize(
    "text",
    [
        "",
        # Without --fit-print, and of versions that do not know it.
        "-c 4096 -ngl 33\n",
        "Vulkan0 15317 1024 124 \n",
        "Host 1002 0\n",
        "error: invalid argument: --fit-print\n",
    ],
)
def test_anything_else_is_no_answer(text: str) -> None:
    assert parse_cache(text) is None


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert (parse_cache(text) or 0) >= 0


def test_the_tool_gets_only_arguments_that_it_knows() -> None:
    words = ["-c", "9", "--port", "1", "-ctk", "q8_0", "-cmoe", "-nkvo", "-fa", "off", "-m", "x"]
    told = tool_arguments(memory_options(words, {}), ("CUDA0", "CUDA1"))
    assert "--port" not in told
    assert told[told.index("-c") : told.index("-c") + 2] == ("-c", "9")
    assert {"-nkvo", "--swa-full", "-fa"} & set(told) == {"-nkvo", "-fa"}
    # With a number upstream adds a pattern for each layer: 65,536 of them take minutes.
    assert {"-cmoe", "-ncmoe"} & set(told) == {"-cmoe"}
    assert told[-2:] == ("--device", "CUDA0,CUDA1")


def corrected(need: MemoryNeed, told: int) -> MemoryNeed:
    correction = correction_of(need, told)
    return correction.applied(need) if correction else need


def test_an_answer_near_ours_changes_nothing() -> None:
    assert corrected(NEED, 42) == NEED
    assert correction_of(NEED, None) is None


def test_an_answer_far_from_ours_replaces_the_cache() -> None:
    """The weights are those of the file: the tool leaves out what the CPU's backend packs anew.

    Of Gemma 3 12B in Q4_0, which has 6,314 MiB, b11434 for the CPU says 543.
    """
    found = corrected(NEED, 400)
    assert found.cache == (100, 300)
    assert found._replace(cache=NEED.cache) == NEED


def test_a_correction_also_counts_for_another_context() -> None:
    correction = correction_of(NEED, 400)
    assert correction is not None
    assert correction.applied(NEED._replace(cache=(5, 15))).cache == (50, 150)


def test_the_tool_tells_how_many_layers_have_a_window() -> None:
    """So it also counts for another context, in which a window is a larger part."""
    doubted = NEED._replace(cache=(100, 100), spare=(80, 80), doubt="most")
    correction = correction_of(doubted, 120)
    assert correction is not None
    found = correction.applied(doubted)
    assert (found.cache, found.spare, found.doubt) == ((60, 60), (), "")
    shorter = NEED._replace(cache=(30, 30), spare=(10, 10), doubt="most")
    assert correction.applied(shorter).cache == (25, 25)


def test_a_cache_that_we_know_nothing_of_is_divided_among_the_layers() -> None:
    bare = NEED._replace(cache=(0, 0), doubt="least")
    found = corrected(bare, 800)
    assert (found.cache, found.doubt) == ((400, 400), "")
    # A cache in main memory (-nkvo) is among the other bytes.
    assert correction_of(NEED._replace(cache=(0, 0)), 1024) is None


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"printf '{TABLE}'", 1030 * MIB),
        ("echo 'ggml_vulkan: Found 1 devices'; printf 'Host 1 2 3 \\n'", 2 * MIB),
        (f"printf '{TABLE}'; exit 1", None),
        ('test -z "$LLAMA_ARG_PORT" || printf "Host 1 2 3 "', None),
    ],
)
def test_the_tool_of_a_build_is_asked(script: str, expected: int | None, tmp_path: Path) -> None:
    tool = tmp_path / "llama-fit-params"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    build = Build(tmp_path, tool.name, "vulkan")
    found = ask_fit_tool(build, memory_options(["-m", "x"], {}), (), {"LLAMA_ARG_PORT": "1"})
    assert found == expected


def test_a_tool_that_is_missing_gives_no_answer(tmp_path: Path) -> None:
    build = Build(tmp_path, "none", "cpu")
    assert ask_fit_tool(build, memory_options([], {}), (), {}) is None
