"""Ask a machine what it has: ``probe(host)`` gives ``Hardware``.

Only an API that initialises counts. What lies on disk or hangs on the bus is evidence
for people, never a reason to skip a question.
"""

from __future__ import annotations

import functools
import os

from tsuku_llm.local import Program
from tsuku_llm.probe import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tsuku_llm.hardware import Hardware
    from tsuku_llm.host import Host

LIMIT = 5.0  # seconds for one API
SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "windows"}
MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

# The cheap and the reliable first, and OpenCL last, as its drivers bring the most foreign
# code. In one child, as they share what takes longest to load: Mesa and PoCL their LLVM.
DRIVERS = ("cuda", "nvml", "vulkan", "level_zero", "hip", "opencl")
QUESTIONS = {
    "linux": ("libc", "pci", *DRIVERS),
    "darwin": ("macos", "metal"),
    "windows": ("windows", *DRIVERS),
}


def probe(host: Host, limit: float = LIMIT) -> Hardware:
    """Ask this system's questions, each once; a driver costs ``limit`` seconds at most."""
    wait = host.ask(program(host), questions(host), limit)
    # Loaded while the drivers are being asked.
    from tsuku_llm.probe.conclusion import conclude  # noqa: PLC0415

    return conclude(host, os_name(host), arch_name(host), wait())


def questions(host: Host) -> tuple[str, ...]:
    """What to ask on this operating system, in this order."""
    return QUESTIONS.get(os_name(host), ())


def platform_key(host: Host) -> str:
    """The manifest's name for this platform, such as ``linux-amd64``; asks no driver."""
    return f"{os_name(host)}-{arch_name(host)}"


def os_name(host: Host) -> str:
    """The manifest's word for the operating system."""
    system = str(host.system().get("os"))
    return SYSTEMS.get(system, system)


def arch_name(host: Host) -> str:
    """The manifest's word for the processor, else the machine's own."""
    machine = str(host.system().get("machine")).lower()
    return MACHINES.get(machine, machine)


def program(host: Host) -> Program:
    """The child's program and environment; in WSL its own driver libraries come first.

    A distribution's libcuda shadows them otherwise (ollama/ollama#1898).
    """
    first = environment.WSL_LIBRARIES if environment.is_wsl(host) else None
    return Program(
        folder=os.path.dirname(__file__),  # noqa: PTH120
        module="worker.main",
        environment=functools.partial(environment.child_environment, first_library_folder=first),
    )
