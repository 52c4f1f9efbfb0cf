"""Ask a machine what it has: ``probe(host)`` gives ``Hardware``.

Only an API that initialises counts. What lies on disk or hangs on the bus is evidence
for people, never a reason to skip a question.
"""

from __future__ import annotations

import functools
from pathlib import Path

from tsuku_llm.hardware import Hardware
from tsuku_llm.host import Host, Program
from tsuku_llm.probe import amd, cpu, environment, intel, libc, nvidia, opencl, reply, vulkan
from tsuku_llm.probe import surroundings as around

LIMIT = 5.0  # seconds for one API
SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "windows"}
MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def probe(host: Host, limit: float = LIMIT) -> Hardware:
    """Ask this system's questions, each once; a driver costs ``limit`` seconds at most."""
    return _linux(host, _arch(host), limit)


def platform_key(host: Host) -> str:
    """The manifest's name for this platform, such as ``linux-amd64``; asks no driver."""
    return f"{_os(host)}-{_arch(host)}"


def _os(host: Host) -> str:
    system = str(host.system().get("os"))
    return SYSTEMS.get(system, system)


def _arch(host: Host) -> str:
    machine = str(host.system().get("machine")).lower()
    return MACHINES.get(machine, machine)


def _linux(host: Host, arch: str, limit: float) -> Hardware:
    answers = host.ask(program(host), LINUX_QUESTIONS, limit)
    where = around.collect(host, answers)
    libraries = libc.collect(host, answers)
    processor, memory = cpu.collect_linux(host, arch)
    intel_raw = intel.collect(answers)
    level_zero = intel.parse(intel_raw)
    cl = opencl.parse(opencl.collect(answers))
    return Hardware(
        os="linux",
        arch=arch,
        os_version=os_name(host.read_text("/etc/os-release")),
        libc=libc.parse(libraries),
        libstdcxx=libc.parse_libstdcxx(libraries),
        cpu=processor,
        memory=memory,
        apis=(
            nvidia.parse(nvidia.collect(host, answers), where),
            amd.parse(amd.collect(host, answers)),
            level_zero,
            vulkan.parse(vulkan.collect(host, answers), where),
            cl,
            intel.openvino(level_zero, cl, intel_raw),
        ),
        problems=around.problems(where),
        simulated=host.name,
    )


# The cheap and the reliable first; OpenCL last, as its drivers bring the most foreign code.
LINUX_QUESTIONS = (
    *libc.QUESTIONS,
    *around.QUESTIONS,
    *nvidia.QUESTIONS,
    *vulkan.QUESTIONS,
    *intel.QUESTIONS,
    *amd.QUESTIONS,
    *opencl.QUESTIONS,
)


def program(host: Host) -> Program:
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
