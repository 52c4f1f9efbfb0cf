"""What NVIDIA's management library counts, asked in a child that loads a stub of it."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stub_drivers import StubDrivers

from tsuku_llm.launch.nvml import GpuMemory, gpu_memory, parse_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stub is Linux's")

GIB = 1 << 30


@pytest.fixture
def stub(tmp_path: Path) -> dict[str, str]:
    """The environment of a server on a machine with the stub."""
    folder = StubDrivers(tmp_path).library("nvml").parent
    return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(folder)}


def ask(environ: dict[str, str]) -> GpuMemory | None:
    return gpu_memory(environ, signs=("/dev/null",))


def test_the_memory_of_the_devices_and_of_each_process(stub: dict[str, str]) -> None:
    found = ask({**stub, "STUB_nvml_pid": "77", "STUB_nvml_used": str(5 * GIB)})
    assert found == GpuMemory(128 * GIB, 5 * GIB, {77: 5 * GIB}, "580.159.04")


def test_two_devices_are_added_up(stub: dict[str, str]) -> None:
    settings = {"STUB_nvml_count": "2", "STUB_nvml_pid": "77", "STUB_nvml_used": str(GIB)}
    assert ask({**stub, **settings}) == GpuMemory(256 * GIB, 2 * GIB, {77: 2 * GIB}, "580.159.04")


@pytest.mark.parametrize(
    "settings",
    [
        {"STUB_nvmlInit_v2": "9"},
        {"STUB_nvmlInit_v2": "crash"},
        {"STUB_nvmlInit_v2": "noise", "STUB_nvmlDeviceGetMemoryInfo": "crash"},
        {"STUB_nvmlDeviceGetMemoryInfo": "3"},
        {"STUB_nvmlDeviceGetHandleByIndex_v2": "15"},
        {"STUB_nvml_count": "0"},
        {"LD_LIBRARY_PATH": "/nowhere"},
    ],
)
def test_a_library_that_fails_or_crashes_is_no_answer(
    settings: dict[str, str], stub: dict[str, str]
) -> None:
    assert ask({**stub, **settings}) is None


def test_a_list_of_processes_that_is_refused_is_empty(stub: dict[str, str]) -> None:
    refused = {"STUB_nvmlDeviceGetComputeRunningProcesses_v3": "3", "STUB_nvml_used": "7"}
    assert ask({**stub, **refused}) == GpuMemory(128 * GIB, 7, {}, "580.159.04")


def test_without_a_device_node_nothing_is_asked(stub: dict[str, str]) -> None:
    assert gpu_memory(stub, signs=("/nowhere",)) is None


def test_a_driver_that_prints_does_not_hide_the_answer(stub: dict[str, str]) -> None:
    assert ask({**stub, "STUB_nvmlInit_v2": "noise"}) == GpuMemory(128 * GIB, 0, {}, "580.159.04")


@given(st.text())
def test_any_text_is_an_answer_or_none(text: str) -> None:
    assert parse_memory(text) is None


@pytest.mark.parametrize(
    "text", ["{}", "[]", "null", '{"devices": [], "driver": ""}', '{"devices": [1], "driver": ""}']
)
def test_a_document_of_another_shape_is_none(text: str) -> None:
    assert parse_memory(text) is None
