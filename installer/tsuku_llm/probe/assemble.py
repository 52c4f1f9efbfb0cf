"""The answers of a machine combined into ``Hardware``, one function per operating system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tsuku_llm.machine.hardware import Api, Hardware
from tsuku_llm.machine.host import ABSENT, DriverAnswer, Host
from tsuku_llm.machine.kernel_drivers import BusCard
from tsuku_llm.machine.packages import family_of
from tsuku_llm.probe import (
    amd,
    apple,
    cpu,
    intel,
    libc,
    nvidia,
    opencl,
    visible,
    vulkan,
    windows,
)
from tsuku_llm.probe.facts import answers, machine

NIX_LD = "/run/current-system/sw/share/nix-ld/lib/ld.so"
"""The loader that nix-ld uses where ``$NIX_LD`` is not set, as in a service."""


def assemble(host: Host, os: str, arch: str, by_question: Mapping[str, DriverAnswer]) -> Hardware:
    """Combine the answers of one machine; ``host`` is asked for a few files that explain them.

    For an unknown operating system only ``os`` and ``arch`` are filled in.
    """
    # macOS and Windows import their own parsers when needed: a Linux probe need not load them.
    systems = {"linux": _linux, "darwin": _darwin, "windows": _windows}
    system = systems.get(os)
    return system(host, arch, by_question) if system else Hardware(os, arch, simulated=host.name)


def _linux(host: Host, arch: str, by_question: Mapping[str, DriverAnswer]) -> Hardware:
    kind = machine.collect(host, by_question)
    system = by_question.get("libc", ABSENT)
    return Hardware(
        os="linux",
        arch=arch,
        os_version=parse_os_release(host.read_text("/etc/os-release")),
        libc=replace(
            libc.parse(system, host.system().get("libc")),
            refuses=libc.refusal(
                system,
                host.system(),
                kind.place.systems,
                nix_ld=bool(host.environment("NIX_LD")) or host.access(NIX_LD) is not None,
            ),
        ),
        libstdcxx=libc.newest_symbol(system, "libstdc++.so.6", "GLIBCXX_"),
        libraries=libc.parse_libraries(by_question.get("libraries", ABSENT)),
        cpu=cpu.parse_cpuinfo(host.read_text(cpu.CPUINFO), arch),
        memory=cpu.parse_memory(host.read_text(cpu.MEMINFO), host.read_text(cpu.CGROUP)),
        apis=_apis(host, by_question, kind),
        problems=answers.not_asked(by_question)
        + machine.problems(kind)
        + nvidia.left_out(host, by_question, kind),
        evidence=machine.evidence(kind),
        simulated=host.name,
        packages=kind.packages,
        place=kind.place,
    )


def _darwin(host: Host, arch: str, by_question: Mapping[str, DriverAnswer]) -> Hardware:
    answer = by_question.get("macos", ABSENT)
    release = host.system().get("release")
    return Hardware(
        os="darwin",
        arch=arch,
        os_version=apple.parse_version(answer, host.read_text(apple.VERSION_FILE), release),
        cpu=cpu.processor(arch, *apple.parse_cpu(answer)),
        memory=answers.positive(answers.value(answer, "hw.memsize", "value")),
        apis=(apple.parse(by_question),),
        problems=answers.not_asked(by_question),
        simulated=host.name,
        packages=family_of("darwin"),
    )


def _windows(host: Host, arch: str, by_question: Mapping[str, DriverAnswer]) -> Hardware:
    answer = by_question.get("windows", ABSENT)
    vcruntime = windows.parse_vcruntime(answer, arch)
    adapters = tuple(
        # Windows names display adapters with a vendor, but without a slot or a kernel module.
        BusCard("", vendor, None, None)
        for vendor in windows.parse_vendors(answer)
    )
    return Hardware(
        os="windows",
        arch=arch,
        os_version=answers.dotted(host.system().get("release")),
        vcruntime=vcruntime,
        libraries=libc.parse_libraries(by_question.get("libraries", ABSENT)),
        cpu=cpu.processor(arch, *windows.parse_cpu(answer)),
        memory=answers.positive(answers.value(answer, "memory", "value")),
        apis=_apis(host, by_question, machine.MachineKind(os="windows", pci=adapters)),
        problems=answers.not_asked(by_question) + windows.problems(vcruntime, arch),
        evidence=windows.evidence(answer),
        simulated=host.name,
        packages=family_of("windows"),
    )


def _apis(
    host: Host, by_question: Mapping[str, DriverAnswer], kind: machine.MachineKind
) -> tuple[Api, ...]:
    level_zero, cl = intel.parse(by_question, kind), opencl.parse(by_question)
    apis = (
        nvidia.parse(nvidia.collect(host, by_question), kind),
        amd.parse(amd.collect(host, by_question), kind),
        level_zero,
        vulkan.parse(vulkan.collect(host, by_question), kind),
        cl,
        intel.openvino(level_zero, cl, by_question),
    )
    set_here = ((name, host.environment(name)) for name in visible.VARIABLES)
    return visible.mark_hidden(apis, {name: value for name, value in set_here if value is not None})


def parse_os_release(text: str | None) -> str | None:
    """Return PRETTY_NAME of os-release, the system's own name."""
    for line in (text or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return answers.words(line.partition("=")[2].strip().strip("\"'"))
    return None
