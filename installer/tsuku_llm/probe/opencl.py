"""OpenCL: the devices of every platform. Numbers: cl.h."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tsuku_llm.machine.hardware import Api, ApiState, Gpu, GpuKind, Problem
from tsuku_llm.machine.host import ABSENT, DriverAnswer
from tsuku_llm.probe.facts import answers

TYPE_CPU, TYPE_GPU = 2, 4
CODES = {0: "CL_SUCCESS", -1: "CL_DEVICE_NOT_FOUND", -1001: "CL_PLATFORM_NOT_FOUND_KHR"}
NO_PLATFORM = -1001


def parse(by_question: Mapping[str, DriverAnswer]) -> Api:
    """Read the API ``opencl``; devices are numbered across all platforms."""
    answer = by_question.get("opencl", ABSENT)
    state = answers.state(answer, "clGetPlatformIDs")
    lines = answers.calls(answer, "device") if state is ApiState.OK else ()
    gpus = tuple(_gpu(index, line) for index, line in enumerate(lines))
    problem = None
    if all(gpu.kind is GpuKind.SOFTWARE for gpu in gpus):
        problem = answers.broken(answer, "an OpenCL driver")
        if not problem and answers.code(answer, "clGetPlatformIDs") == NO_PLATFORM:
            problem = Problem(
                "opencl-loader-without-icd",
                "the OpenCL loader is installed, but no OpenCL driver",
                "install the OpenCL driver of this machine's GPU",
            )
    return Api(
        name="opencl",
        state=state,
        library=answers.library(answer),
        version=_version(answer) if gpus else None,
        gpus=gpus,
        evidence=answers.evidence(answer, CODES),
        problem=problem,
    )


def _version(answer: DriverAnswer) -> str | None:
    """Return the version of the newest platform: 3.0 from "OpenCL 3.0 PoCL 3.1"."""
    found = [_number(line.get("version")) for line in answers.calls(answer, "platform")]
    known = [version for version in found if version]
    return max(known, key=lambda text: [int(part) for part in text.split(".")], default=None)


def _number(text: object) -> str | None:
    return answers.dotted(text.removeprefix("OpenCL ")) if isinstance(text, str) else None


def _gpu(index: int, line: Mapping[str, Any]) -> Gpu:
    return Gpu(
        api="opencl",
        index=index,
        name=answers.words(line.get("name")) or "OpenCL device",
        kind=_kind(answers.integer(line.get("type")), answers.integer(line.get("unified"))),
        memory=answers.positive(line.get("memory")),
        vendor_id=answers.integer(line.get("vendor")),
        api_version=_number(line.get("version")),
        driver=answers.words(line.get("driver")),
        uuid=answers.words(line.get("uuid")),
    )


def _kind(bits: int | None, unified: int | None) -> GpuKind:
    if bits is None:
        return GpuKind.OTHER
    if bits & TYPE_GPU:
        return GpuKind.INTEGRATED if unified else GpuKind.DISCRETE
    return GpuKind.SOFTWARE if bits & TYPE_CPU else GpuKind.OTHER
