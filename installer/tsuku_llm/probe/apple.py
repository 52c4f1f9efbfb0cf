"""macOS: its version, the processor, and the devices of Metal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tsuku_llm.machine.hardware import Api, ApiState, Gpu, GpuKind
from tsuku_llm.machine.host import ABSENT, DriverAnswer
from tsuku_llm.probe.facts import answers

VERSION_FILE = "/System/Library/CoreServices/SystemVersion.plist"
_PRODUCT = re.compile(r"<key>ProductVersion</key>\s*<string>(\d{1,3}(?:\.\d{1,3}){0,2})</string>")
_COMPATIBLE = "10.16"  # what programs built for old systems are told since macOS 11
_FIRST_OF_YEARS = 25  # Darwin 25 is macOS 26; Darwin 20 to 24 are macOS 11 to 15
_FIRST_OF_ELEVEN = 20
# Each arm64 feature has a sysctl name; the value 1 means present.
_FEATURE = "hw.optional.arm.FEAT_"
X86_NAMES = {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "avx1.0": "avx",
    "lahf": "lahf_lm",
    "lzcnt": "abm",
}


def parse(by_question: Mapping[str, DriverAnswer]) -> Api:
    """Read the API ``metal``."""
    answer = by_question.get("metal", ABSENT)
    state = answers.state(answer, "MTLCopyAllDevices")
    lines = answers.calls(answer, "device") if state is ApiState.OK else ()
    return Api(
        name="metal",
        state=state,
        library=answers.library(answer),
        gpus=tuple(_gpu(line) for line in lines),
        evidence=answers.evidence(answer),
        problem=answers.broken(answer, "Metal"),
    )


def _gpu(line: Mapping[str, Any]) -> Gpu:
    name = answers.words(line.get("name")) or "Metal device"
    families = line.get("families")
    return Gpu(
        api="metal",
        index=answers.integer(line.get("index")) or 0,
        name=name,
        kind=_kind(name, unified=line.get("unified"), low_power=line.get("low_power")),
        memory=answers.positive(line.get("memory")),
        driver=", ".join(map(str, families)) or None if isinstance(families, list) else None,
    )


def _kind(name: str, *, unified: object, low_power: object) -> GpuKind:
    # The GPU that macOS offers to virtual machines.
    if "paravirtual" in name.lower():
        return GpuKind.VIRTUAL
    return GpuKind.INTEGRATED if unified or low_power else GpuKind.DISCRETE


def parse_version(answer: DriverAnswer, file: str | None, release: object) -> str | None:
    """Return the version of macOS, from the kernel's release if the system hides its own.

    ``file`` is the text of ``VERSION_FILE``.
    """
    match = _PRODUCT.search(file or "")
    told = match[1] if match else answers.dotted(_value(answer, "kern.osproductversion"))
    if told and not told.startswith(_COMPATIBLE):
        return told
    kernel = answers.dotted(release)
    major = int(kernel.partition(".")[0]) if kernel else 0
    if major >= _FIRST_OF_YEARS:
        return str(major + 1)
    return str(major - 9) if major >= _FIRST_OF_ELEVEN else told


def parse_cpu(answer: DriverAnswer) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Return vendor, name, and features in Linux's words."""
    texts = [
        _value(answer, f"machdep.cpu.{kind}")
        for kind in ("features", "leaf7_features", "extfeatures")
    ]
    words = " ".join(text for text in texts if isinstance(text, str)).lower().split()
    arm = [
        str(line["call"]).removeprefix(_FEATURE).lower()
        for line in answer.lines
        if str(line.get("call")).startswith(_FEATURE) and line.get("value") == 1
    ]
    vendor = answers.words(_value(answer, "machdep.cpu.vendor"))
    name = answers.words(_value(answer, "machdep.cpu.brand_string"))
    return vendor, name, tuple(sorted({X86_NAMES.get(word, word) for word in words + arm}))


def _value(answer: DriverAnswer, name: str) -> object:
    return answers.value(answer, name, "value")
