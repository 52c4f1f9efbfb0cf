"""What a machine has: ``probe(host)`` asks its drivers and returns ``Hardware``.

Only an API that initialises counts. A file on disk or a device on the PCI bus explains a result to
people; it is never a reason to skip a question.
"""

from __future__ import annotations

import functools

from tsuku_llm.machine.local_host import ChildProgram
from tsuku_llm.probe.facts import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tsuku_llm.machine.hardware import Hardware
    from tsuku_llm.machine.host import Host

LONGEST_WORD = 40
"""Letters of an unknown system's or processor's name that are shown; a recording may have any."""
SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "windows"}
# Systems spell the same processor differently (Windows: AMD64, macOS: arm64, Linux: aarch64).
MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

# Cheap and reliable APIs come first, and OpenCL last: its drivers load the most foreign code.
# All are asked in one child, because drivers share libraries that are slow to load (Mesa and
# PoCL both use LLVM).
DRIVERS = ("cuda", "nvml", "vulkan", "level_zero", "hip", "opencl")
QUESTIONS = {
    "linux": ("libc", "libraries", "pci", *DRIVERS),
    "darwin": ("macos", "metal"),
    "windows": ("windows", "libraries", *DRIVERS),
}


def probe(host: Host, limit: float = 20.0) -> Hardware:
    """Ask each question of this system once; a driver may take ``limit`` seconds to answer.

    The default is that of the setting ``llm.probe_timeout``.
    """
    wait = host.ask(program(host), questions(host), limit)
    # Import the parsers only now: the child asks the drivers in the meantime.
    from tsuku_llm.probe.assemble import assemble

    return assemble(host, os_name(host), arch_name(host), wait())


def questions(host: Host) -> tuple[str, ...]:
    """Return the questions to ask on this operating system, in order."""
    return QUESTIONS.get(os_name(host), ())


def platform_key(host: Host) -> str:
    """Return the manifest's name for this platform, such as ``linux-amd64``.

    It asks no driver.
    """
    return f"{os_name(host)}-{arch_name(host)}"


def os_name(host: Host) -> str:
    """Return the manifest's word for the operating system, or Python's own if it has no other.

    Python says ``linux`` on Android before version 3.13, and ``freebsd14`` with its number.
    """
    system = str(host.system().get("os"))[:LONGEST_WORD]
    if system == "linux" and host.environment("TERMUX_VERSION") and not host.system().get("libc"):
        return "android"
    return SYSTEMS.get(system) or system.rstrip("0123456789")


def arch_name(host: Host) -> str:
    """Return the manifest's word for the processor, or the machine's own in lower case."""
    machine = str(host.system().get("machine")).lower()[:LONGEST_WORD]
    return MACHINES.get(machine, machine)


def program(host: Host) -> ChildProgram:
    """Describe the child's program and environment; in WSL, Windows' driver libraries come first.

    Without that, a distribution's own libcuda hides the one of Windows (ollama/ollama#1898).
    """
    first = environment.WSL_LIBRARIES if environment.is_wsl(host) else None
    return ChildProgram(
        folder=__path__[0],
        module="worker.main",
        environment=functools.partial(environment.child_environment, first_library_folder=first),
    )
