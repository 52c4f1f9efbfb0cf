"""The processor, its instruction sets, and the machine's memory.

Levels: the x86-64 psABI, "Micro-Architecture Levels", in /proc/cpuinfo's names.
"""

from __future__ import annotations

from collections.abc import Iterable

from tsuku_llm.machine.hardware import Cpu
from tsuku_llm.probe.facts import answers

CPUINFO, MEMINFO, CGROUP = "/proc/cpuinfo", "/proc/meminfo", "/sys/fs/cgroup/memory.max"
_MOST_DIGITS = 20
# x86-64-v2, v3 and v4; v1 needs nothing. Each level also needs those before it.
LEVELS = (
    frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}),
    frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
    frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
)


def parse_cpuinfo(text: str | None, arch: str) -> Cpu:
    """Read the first processor of /proc/cpuinfo."""
    fields = _fields((text or "").partition("\n\n")[0])
    # x86 kernels write "flags", arm64 kernels "Features".
    features = (fields.get("flags") or fields.get("Features") or "").split()
    vendor = answers.words(fields.get("vendor_id") or fields.get("CPU implementer"))
    return processor(arch, vendor, answers.words(fields.get("model name")), features)


def processor(arch: str, vendor: str | None, name: str | None, features: Iterable[str]) -> Cpu:
    """Return a processor with these features, in Linux's words, and with its x86-64 level.

    That is the highest level (1 to 4) whose instruction sets, and all lower ones, are present.
    """
    known = frozenset(features)
    level = 1
    for needed in LEVELS:
        if not needed <= known:
            break
        level += 1
    return Cpu(vendor, name, tuple(sorted(known)), level if arch == "amd64" and known else None)


def parse_memory(meminfo: str | None, limit: str | None) -> int | None:
    """Return bytes of memory: the machine's, or this control group's limit if that is lower."""
    total = _count(_fields(meminfo or "").get("MemTotal", "").removesuffix("kB"))
    if total is None:
        return None
    # A control group without a limit says "max", which is no number.
    limited = _count(limit or "")
    return total * 1024 if limited is None else min(total * 1024, limited)


def _count(text: str) -> int | None:
    """Read a decimal number; None for anything else, and for more digits than 64 bits have."""
    digits = text.strip()
    if len(digits) > _MOST_DIGITS or not digits.isascii() or not digits.isdecimal():
        return None
    return int(digits)


def _fields(text: str) -> dict[str, str]:
    pairs = [line.partition(":") for line in text.splitlines()]
    return {name.strip(): value.strip() for name, _, value in pairs}
