"""Windows: the Visual C++ runtime, the processor, the memory and the display adapters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tsuku_llm.hardware import Evidence, Problem
from tsuku_llm.host import ABSENT, DriverAnswer
from tsuku_llm.probe import reply

NOT_INSTALLED = "0"
_RUNTIMES = {"amd64": "X64", "arm64": "ARM64"}
_RUNTIME_DLLS = 3
# Features that IsProcessorFeaturePresent does not report, but that every processor with AVX2
# (or, in the second list, SSE 4.2) has.
_WITH_AVX2 = ("popcnt", "lahf_lm", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave")
_WITH_SSE42 = ("popcnt", "lahf_lm")
_VENDOR = re.compile(r"ven_([0-9a-f]{4})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Raw:
    """The worker's answer."""

    windows: DriverAnswer = ABSENT


def collect(answers: Mapping[str, DriverAnswer]) -> Raw:
    """Take the worker's answer."""
    return Raw(answers.get("windows", ABSENT))


def parse_vcruntime(raw: Raw, arch: str) -> str | None:
    """Return the version of the Visual C++ 2015+ runtime; "0" if a DLL is surely missing.

    The registry tells the version. Without its key, the DLLs in the system's folder tell only
    whether a part is missing.
    """
    for line in reply.calls(raw.windows, "runtime"):
        version = line.get("Version")
        if line.get("machine") == _RUNTIMES.get(arch) and isinstance(version, str):
            return reply.dotted(version.lstrip("v"))
    files = reply.calls(raw.windows, "dll")
    missing = len(files) == _RUNTIME_DLLS and any(line.get("present") is False for line in files)
    return NOT_INSTALLED if missing else None


def parse_cpu(raw: Raw) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Return vendor, name, and features in Linux's words."""
    told = reply.value(raw.windows, "features", "value")
    features = {name for name in told if isinstance(name, str)} if isinstance(told, list) else set()
    if "sse4_2" in features:
        features.update(_WITH_SSE42)
    if "avx2" in features:
        features.update(_WITH_AVX2)
    vendor = reply.words(reply.value(raw.windows, "processor", "VendorIdentifier"))
    name = reply.words(reply.value(raw.windows, "processor", "ProcessorNameString"))
    return vendor, name, tuple(sorted(features))


def parse_memory(raw: Raw) -> int | None:
    """Return bytes of memory."""
    return reply.positive(reply.value(raw.windows, "memory", "value"))


def parse_vendors(raw: Raw) -> tuple[int, ...]:
    """Return the PCI vendors of the display adapters that have a driver."""
    ids = [line.get("MatchingDeviceId") for line in reply.calls(raw.windows, "adapter")]
    matches = [_VENDOR.search(text) for text in ids if isinstance(text, str)]
    return tuple(int(match[1], 16) for match in matches if match)


def evidence(raw: Raw) -> tuple[Evidence, ...]:
    """List the display adapters, as Windows names them."""
    return tuple(
        Evidence(
            reply.words(line.get("DriverDesc")) or "display adapter",
            " ".join(
                text
                for key in ("MatchingDeviceId", "DriverVersion")
                if (text := reply.words(line.get(key)))
            ),
        )
        for line in reply.calls(raw.windows, "adapter")
    )


def problems(vcruntime: str | None) -> tuple[Problem, ...]:
    """Return the problems that concern the whole machine."""
    if vcruntime != NOT_INSTALLED:
        return ()
    return (
        Problem(
            "vcruntime-missing",
            "the Visual C++ runtime, which every build needs, is not installed",
            "winget install Microsoft.VCRedist.2015+.x64 (on ARM: .arm64)",
        ),
    )
