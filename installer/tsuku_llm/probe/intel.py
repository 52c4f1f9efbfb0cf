"""Intel: Level Zero, and the devices that OpenVINO will find through it and through OpenCL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tsuku_llm.machine.backends import INTEL
from tsuku_llm.machine.fixes import Need
from tsuku_llm.machine.hardware import Api, ApiState, Evidence, Gpu, GpuKind, Problem
from tsuku_llm.machine.host import ABSENT, DriverAnswer
from tsuku_llm.probe.facts import answers
from tsuku_llm.probe.facts.machine import MachineKind

TYPE_GPU, TYPE_NPU = 1, 5
FLAG_INTEGRATED = 1
CODES = {
    0: "ZE_RESULT_SUCCESS",
    0x78000001: "ZE_RESULT_ERROR_UNINITIALIZED",
    0x70020000: "ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE",
    0x70000001: "ZE_RESULT_ERROR_DEVICE_LOST",
}


def parse(by_question: Mapping[str, DriverAnswer], machine: MachineKind) -> Api:
    """Read the API ``level_zero``: only its GPUs, as SYCL uses no other device."""
    answer = by_question.get("level_zero", ABSENT)
    state = answers.state(answer, "zeInit", "zeDriverGet")
    lines = _of_type(answer, TYPE_GPU) if state is ApiState.OK else ()
    return Api(
        name="level_zero",
        state=state,
        library=answers.library(answer),
        version=_version(answers.value(answer, "zeDriverGetApiVersion", "version")),
        gpus=tuple(_gpu(index, line) for index, line in enumerate(lines)),
        evidence=answers.evidence(answer, CODES),
        problem=answers.broken(answer, "Intel's Level Zero driver") or _lacking(answer, machine),
    )


def _lacking(answer: DriverAnswer, machine: MachineKind) -> Problem | None:
    """Return the problem of a loader that has no driver to load: intel/compute-runtime#832."""
    if answers.value(answer, "runtime", "found") is not False or not machine.has_pci(INTEL):
        return None
    text = "the Level Zero loader is installed, and Intel's compute runtime, its driver, is not"
    return Problem("intel-runtime-missing", text, machine.fix(Need.INTEL_RUNTIME))


def openvino(level_zero: Api, opencl: Api, by_question: Mapping[str, DriverAnswer]) -> Api:
    """List Intel's GPUs as OpenCL does, which OpenVINO uses, and the NPUs of Level Zero.

    The build contains the OpenVINO runtime, so there is no library to ask.
    """
    gpus = [gpu for gpu in opencl.hardware_gpus if gpu.vendor_id == INTEL]
    answer = by_question.get("level_zero", ABSENT)
    npus = _of_type(answer, TYPE_NPU) if level_zero.state is ApiState.OK else ()
    # An NPU is part of the processor, also if Level Zero does not say so.
    gpus += [replace(_gpu(0, line), kind=GpuKind.INTEGRATED) for line in npus]
    found = tuple(replace(gpu, api="openvino", index=index) for index, gpu in enumerate(gpus))
    return Api(
        name="openvino",
        state=ApiState.OK if found else ApiState.ABSENT,
        gpus=found,
        evidence=(Evidence("Intel devices of OpenCL and Level Zero", str(len(found))),),
    )


def _of_type(answer: DriverAnswer, number: int) -> tuple[Mapping[str, Any], ...]:
    lines = answers.calls(answer, "device")
    return tuple(line for line in lines if answers.integer(line.get("type")) == number)


def _version(number: object) -> str | None:
    value = answers.positive(number)
    return f"{value >> 16}.{value & 0xFFFF}" if value else None


def _gpu(index: int, line: Mapping[str, Any]) -> Gpu:
    integrated = (answers.integer(line.get("flags")) or 0) & FLAG_INTEGRATED
    return Gpu(
        api="level_zero",
        index=index,
        name=answers.words(line.get("name")) or "Intel device",
        kind=GpuKind.INTEGRATED if integrated else GpuKind.DISCRETE,
        memory=_memory(line.get("memories")),
        vendor_id=answers.integer(line.get("vendor")),
        device_id=answers.integer(line.get("device")),
        uuid=answers.words(line.get("uuid")),
    )


def _memory(sizes: object) -> int | None:
    if not isinstance(sizes, list):
        return None
    return sum(size for size in map(answers.positive, sizes) if size) or None
