"""The answers of a machine combined into ``Hardware``, one function per operating system."""

from __future__ import annotations

from collections.abc import Mapping

from tsuku_llm.hardware import Api, Cpu, Hardware
from tsuku_llm.host import DriverAnswer, Host
from tsuku_llm.probe import (
    amd,
    cpu,
    intel,
    libc,
    nvidia,
    opencl,
    reply,
    surroundings,
    vulkan,
)

Answered = Mapping[str, DriverAnswer]


def conclude(host: Host, os: str, arch: str, answers: Answered) -> Hardware:
    """Combine the answers of one machine; ``host`` is asked for a few files that explain them.

    For an unknown operating system only ``os`` and ``arch`` are filled in.
    """
    # macOS and Windows import their own parsers when needed: a Linux probe need not load them.
    systems = {"linux": _linux, "darwin": _darwin, "windows": _windows}
    system = systems.get(os)
    return system(host, arch, answers) if system else Hardware(os, arch, simulated=host.name)


def _linux(host: Host, arch: str, answers: Answered) -> Hardware:
    around = surroundings.collect(host, answers)
    libraries = libc.collect(host, answers)
    processor, memory = cpu.collect_linux(host, arch)
    return Hardware(
        os="linux",
        arch=arch,
        os_version=parse_os_release(host.read_text("/etc/os-release")),
        libc=libc.parse(libraries),
        libstdcxx=libc.parse_libstdcxx(libraries),
        cpu=processor,
        memory=memory,
        apis=_apis(host, answers, around),
        problems=surroundings.problems(around),
        evidence=surroundings.evidence(around),
        simulated=host.name,
    )


def _darwin(host: Host, arch: str, answers: Answered) -> Hardware:
    from tsuku_llm.probe import apple  # noqa: PLC0415

    raw = apple.collect(host, answers)
    return Hardware(
        os="darwin",
        arch=arch,
        os_version=apple.parse_version(raw),
        cpu=_cpu(arch, *apple.parse_cpu(raw)),
        memory=apple.parse_memory(raw),
        apis=(apple.parse(raw),),
        simulated=host.name,
    )


def _windows(host: Host, arch: str, answers: Answered) -> Hardware:
    from tsuku_llm.probe import windows  # noqa: PLC0415

    raw = windows.collect(answers)
    vcruntime = windows.parse_vcruntime(raw, arch)
    adapters = tuple(
        # Windows names display adapters with a vendor, but without a slot or a kernel module.
        surroundings.PciDevice(None, vendor, None, None)
        for vendor in windows.parse_vendors(raw)
    )
    return Hardware(
        os="windows",
        arch=arch,
        os_version=reply.dotted(host.system().get("release")),
        vcruntime=vcruntime,
        cpu=_cpu(arch, *windows.parse_cpu(raw)),
        memory=windows.parse_memory(raw),
        apis=_apis(host, answers, surroundings.Surroundings(os="windows", pci=adapters)),
        problems=windows.problems(vcruntime),
        evidence=windows.evidence(raw),
        simulated=host.name,
    )


def _apis(host: Host, answers: Answered, around: surroundings.Surroundings) -> tuple[Api, ...]:
    intel_raw = intel.collect(answers)
    level_zero, cl = intel.parse(intel_raw), opencl.parse(opencl.collect(answers))
    return (
        nvidia.parse(nvidia.collect(host, answers), around),
        amd.parse(amd.collect(host, answers), around),
        level_zero,
        vulkan.parse(vulkan.collect(host, answers), around),
        cl,
        intel.openvino(level_zero, cl, intel_raw),
    )


def _cpu(arch: str, vendor: str | None, name: str | None, features: tuple[str, ...]) -> Cpu:
    known = arch == "amd64" and features
    return Cpu(vendor, name, features, cpu.x86_level(frozenset(features)) if known else None)


def parse_os_release(text: str | None) -> str | None:
    """Return PRETTY_NAME of os-release, the system's own name."""
    for line in (text or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return reply.words(line.partition("=")[2].strip().strip("\"'"))
    return None
