"""Windows: the Visual C++ runtime, the processor, the memory and the display adapters."""

from __future__ import annotations

import re

from tsuku_llm.machine.hardware import Evidence, Problem
from tsuku_llm.machine.host import DriverAnswer
from tsuku_llm.machine.packages import command_for, family_of
from tsuku_llm.probe.facts import answers

NOT_INSTALLED = "0"
_RUNTIMES = {"amd64": "X64", "arm64": "ARM64"}
_RUNTIME_DLLS = 3
# Features that IsProcessorFeaturePresent does not report, but that every processor with AVX2
# (or, in the second list, SSE 4.2) has.
_WITH_AVX2 = ("popcnt", "lahf_lm", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave")
_WITH_SSE42 = ("popcnt", "lahf_lm")
_VENDOR = re.compile(r"ven_([0-9a-f]{4})", re.IGNORECASE)


def parse_vcruntime(answer: DriverAnswer, arch: str) -> str | None:
    """Return the version of the Visual C++ 2015+ runtime; "0" if a DLL is surely missing.

    The registry tells the version. Without its key, the DLLs in the system's folder tell only
    whether a part is missing.
    """
    for line in answers.calls(answer, "runtime"):
        version = line.get("Version")
        if line.get("machine") == _RUNTIMES.get(arch) and isinstance(version, str):
            return answers.dotted(version.lstrip("v"))
    files = answers.calls(answer, "dll")
    missing = len(files) == _RUNTIME_DLLS and any(line.get("present") is False for line in files)
    return NOT_INSTALLED if missing else None


def parse_cpu(answer: DriverAnswer) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Return vendor, name, and features in Linux's words."""
    told = answers.value(answer, "features", "value")
    features = {name for name in told if isinstance(name, str)} if isinstance(told, list) else set()
    if "sse4_2" in features:
        features.update(_WITH_SSE42)
    if "avx2" in features:
        features.update(_WITH_AVX2)
    vendor = answers.words(answers.value(answer, "processor", "VendorIdentifier"))
    name = answers.words(answers.value(answer, "processor", "ProcessorNameString"))
    return vendor, name, tuple(sorted(features))


def parse_vendors(answer: DriverAnswer) -> tuple[int, ...]:
    """Return the PCI vendors of the display adapters that have a driver."""
    ids = [line.get("MatchingDeviceId") for line in answers.calls(answer, "adapter")]
    matches = [_VENDOR.search(text) for text in ids if isinstance(text, str)]
    return tuple(int(match[1], 16) for match in matches if match)


def evidence(answer: DriverAnswer) -> tuple[Evidence, ...]:
    """List the display adapters, as Windows names them."""
    return tuple(
        Evidence(
            answers.words(line.get("DriverDesc")) or "display adapter",
            " ".join(
                text
                for key in ("MatchingDeviceId", "DriverVersion")
                if (text := answers.words(line.get(key)))
            ),
        )
        for line in answers.calls(answer, "adapter")
    )


_RUNTIME_BY_HAND = "install Microsoft's Visual C++ runtime (2015 or later)"


def problems(vcruntime: str | None, arch: str) -> tuple[Problem, ...]:
    """Return the problems that concern the whole machine."""
    if vcruntime != NOT_INSTALLED:
        return ()
    return (
        Problem(
            "vcruntime-missing",
            "the Visual C++ runtime, which every build needs, is not installed",
            command_for((f"vcruntime-{arch}",), family_of("windows")) or _RUNTIME_BY_HAND,
        ),
    )
