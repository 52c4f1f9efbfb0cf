"""Ask a machine what it has: ``probe(host)`` gives ``Hardware``.

Only an API that initialises counts. What lies on disk or hangs on the bus is evidence
for people, never a reason to skip a question.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from tsuku_llm.hardware import Api, Cpu, Hardware
from tsuku_llm.host import Answer, Host, Program
from tsuku_llm.probe import (
    amd,
    apple,
    cpu,
    environment,
    intel,
    libc,
    nvidia,
    opencl,
    reply,
    vulkan,
    windows,
)
from tsuku_llm.probe import surroundings as around

LIMIT = 5.0  # seconds for one API
SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "windows"}
MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

# The cheap and the reliable first; OpenCL last, as its drivers bring the most foreign code.
DRIVER_QUESTIONS = (
    *nvidia.QUESTIONS,
    *vulkan.QUESTIONS,
    *intel.QUESTIONS,
    *amd.QUESTIONS,
    *opencl.QUESTIONS,
)
QUESTIONS = {
    "linux": (*libc.QUESTIONS, *around.QUESTIONS, *DRIVER_QUESTIONS),
    "darwin": apple.QUESTIONS,
    "windows": (*windows.QUESTIONS, *DRIVER_QUESTIONS),
}


def probe(host: Host, limit: float = LIMIT) -> Hardware:
    """Ask this system's questions, each once; a driver costs ``limit`` seconds at most."""
    systems = {"linux": _linux, "darwin": _darwin, "windows": _windows}
    system = systems.get(_os(host))
    if system is None:
        return Hardware(os=_os(host), arch=_arch(host), simulated=host.name)
    return system(host, limit)


def platform_key(host: Host) -> str:
    """The manifest's name for this platform, such as ``linux-amd64``; asks no driver."""
    return f"{_os(host)}-{_arch(host)}"


def _os(host: Host) -> str:
    system = str(host.system().get("os"))
    return SYSTEMS.get(system, system)


def _arch(host: Host) -> str:
    machine = str(host.system().get("machine")).lower()
    return MACHINES.get(machine, machine)


def _linux(host: Host, limit: float) -> Hardware:
    answers = host.ask(_program(host), QUESTIONS["linux"], limit)
    where = around.collect(host, answers)
    libraries = libc.collect(host, answers)
    processor, memory = cpu.collect_linux(host, _arch(host))
    return Hardware(
        os="linux",
        arch=_arch(host),
        os_version=os_name(host.read_text("/etc/os-release")),
        libc=libc.parse(libraries),
        libstdcxx=libc.parse_libstdcxx(libraries),
        cpu=processor,
        memory=memory,
        apis=_apis(host, answers, where),
        problems=around.problems(where),
        evidence=around.evidence(where),
        simulated=host.name,
    )


def _darwin(host: Host, limit: float) -> Hardware:
    answers = host.ask(_program(host), QUESTIONS["darwin"], limit)
    raw = apple.collect(host, answers)
    return Hardware(
        os="darwin",
        arch=_arch(host),
        os_version=apple.parse_version(raw),
        cpu=_cpu(host, *apple.parse_cpu(raw)),
        memory=apple.parse_memory(raw),
        apis=(apple.parse(raw),),
        simulated=host.name,
    )


def _windows(host: Host, limit: float) -> Hardware:
    answers = host.ask(_program(host), QUESTIONS["windows"], limit)
    raw = windows.collect(answers)
    adapters = tuple(
        around.PciDevice(None, vendor, None, None) for vendor in windows.parse_vendors(raw)
    )
    where = around.Surroundings(os="windows", pci=adapters)
    vcruntime = windows.parse_vcruntime(raw, _arch(host))
    return Hardware(
        os="windows",
        arch=_arch(host),
        os_version=reply.dotted(host.system().get("release")),
        vcruntime=vcruntime,
        cpu=_cpu(host, *windows.parse_cpu(raw)),
        memory=windows.parse_memory(raw),
        apis=_apis(host, answers, where),
        problems=windows.problems(vcruntime),
        evidence=windows.evidence(raw),
        simulated=host.name,
    )


def _apis(host: Host, answers: Mapping[str, Answer], where: around.Surroundings) -> tuple[Api, ...]:
    intel_raw = intel.collect(answers)
    level_zero, cl = intel.parse(intel_raw), opencl.parse(opencl.collect(answers))
    return (
        nvidia.parse(nvidia.collect(host, answers), where),
        amd.parse(amd.collect(host, answers)),
        level_zero,
        vulkan.parse(vulkan.collect(host, answers), where),
        cl,
        intel.openvino(level_zero, cl, intel_raw),
    )


def _cpu(host: Host, vendor: str | None, name: str | None, features: tuple[str, ...]) -> Cpu:
    known = _arch(host) == "amd64" and features
    return Cpu(vendor, name, features, cpu.x86_level(frozenset(features)) if known else None)


def _program(host: Host) -> Program:
    """The child's program and environment; in WSL its own driver libraries come first.

    A distribution's libcuda shadows them otherwise (ollama/ollama#1898).
    """
    first = around.WSL_LIBRARIES if around.is_wsl(host) else None
    return Program(
        folder=Path(__file__).parent,
        module="worker.main",
        environment=functools.partial(environment.child_environment, first_library_folder=first),
    )


def os_name(release: str | None) -> str | None:
    """The system's own name, from os-release."""
    for line in (release or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return reply.words(line.partition("=")[2].strip().strip("\"'"))
    return None
