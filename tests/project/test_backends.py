"""The table of backends: complete rows, and no other module that knows a backend by name."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_layers import MODULES, Module

from tsuku_llm.launch.plan.fingerprint import driver_fingerprint
from tsuku_llm.machine.backends import (
    NAMES,
    POLICIES,
    REQUESTS,
    TABLE,
    WORDS,
    BackendFacts,
    backend_of_api,
    facts_of,
    meaning,
)

GPU_ROWS = [row for row in TABLE if row.name != "cpu"]

MAY_NAME = {
    "choose.fitting": {"cuda", "rocm", "vulkan", "opencl"},
    "choose.chain.judging": {"cuda"},
    "choose.chain.ways": {"cuda", "vulkan"},
    "launch.gpu.gpu_use": {"cuda", "rocm"},
    "launch.gpu.nvml": {"cuda"},
    "steps.install.from_source": {"cuda", "rocm"},
}
"""The modules that name a backend, beside its own parser and worker in ``probe``.

``fitting`` has a rule for each requirement that only one backend has. ``choose.chain.ways`` knows
that NVIDIA's kernel module serves CUDA and Vulkan, and has the fix for one requirement.
``choose.chain.judging`` says that nouveau has no CUDA. ``launch.gpu.gpu_use`` knows that ggml's
code for ROCm complains in the words of CUDA. ``launch.gpu.nvml`` starts a child with the
environment of a CUDA build. ``steps.install.from_source`` knows how a compiler names cards.
"""


def names_in(module: Module) -> set[str]:
    """The names of backends and of their driver APIs among a module's literals."""
    known = {row.name for row in GPU_ROWS} | {row.api for row in GPU_ROWS}
    return {
        node.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known
    }


def test_the_rows_are_the_names_of_the_manifest_in_the_same_order() -> None:
    assert tuple(row.name for row in TABLE) == NAMES


@pytest.mark.parametrize("row", GPU_ROWS, ids=lambda row: row.name)
def test_a_gpu_row_is_complete(row: BackendFacts) -> None:
    assert facts_of(row.name) is row
    assert backend_of_api(row.api) is row
    assert row.api_label
    assert row.api_fix
    assert row.vendors
    assert row.device_prefixes
    assert all(prefix == prefix.casefold() for prefix in row.device_prefixes)
    assert row.plugin
    assert row.first_look
    assert row.hiding_variables or row.name == "metal"


def test_no_two_rows_share_a_prefix_a_plugin_or_a_library() -> None:
    prefixes = [prefix for row in TABLE for prefix in row.device_prefixes]
    plugins = [row.plugin for row in TABLE]
    libraries = [name for row in TABLE for name in (*row.packages, *row.library_fixes)]
    for found in (prefixes, plugins, libraries):
        assert len(set(found)) == len(found)


def test_no_word_has_two_meanings() -> None:
    known = [*REQUESTS, *POLICIES, *WORDS]
    assert len(set(known)) == len(known)
    assert [word for word in known if word != word.lower()] == []
    assert {meaning(word) for word in WORDS} <= set(NAMES)
    assert all(meaning(word) == word for word in REQUESTS)


def test_a_backend_from_a_newer_version_has_no_facts() -> None:
    unknown = facts_of("tomorrow")
    assert (unknown.name, unknown.plugin) == ("tomorrow", "tomorrow")
    assert not unknown.api
    assert not unknown.device_prefixes
    assert not unknown.hiding_variables


@pytest.mark.skipif(sys.platform != "linux", reason="only there is a fingerprint")
@pytest.mark.parametrize("row", GPU_ROWS, ids=lambda row: row.name)
def test_a_variable_that_hides_devices_changes_the_fingerprint(row: BackendFacts) -> None:
    for name in row.hiding_variables:
        assert f"{name}=x" in (driver_fingerprint({name: "x"}) or ())


def test_no_other_module_names_a_backend() -> None:
    found = {
        name: names_in(module)
        for name, module in MODULES.items()
        if module.unit != "probe" and name != "machine.backends" and names_in(module)
    }
    assert found == MAY_NAME


def test_one_source_of_the_probe_names_each_api() -> None:
    """Besides the list of questions, and OpenVINO, which is found through two other APIs."""
    sources = {
        name: names_in(module)
        for name, module in MODULES.items()
        if name.startswith("probe.") and names_in(module)
    }
    for row in GPU_ROWS:
        homes = [name for name, found in sources.items() if row.api in found]
        assert len(homes) == 1, (row.api, homes)


def test_a_new_row_is_all_that_the_other_modules_need() -> None:
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, tests / "support" / "added_backend.py"],
        env={**os.environ, "PYTHONPATH": str(tests)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "every part knows the new backend\n", done.stderr
