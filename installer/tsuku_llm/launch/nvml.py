"""The use of NVIDIA GPUs' memory by each process, asked in a child process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.launch.child import ask
from tsuku_llm.launch.planning import LaunchPlan

_LIMIT = 10.0
"""Seconds for an answer: a library whose kernel module hangs never answers."""

SIGNS = ("/dev/nvidiactl", "/dev/dxg")
"""Device nodes of NVIDIA's driver, natively and in WSL. Without one, do not ask."""

# The child has no site-packages (-I, -S), so it cannot import our package: the worker is
# imported as a single module from this folder.
_START = (
    "import importlib, sys; sys.path.append(sys.argv[1]); "
    "importlib.import_module('nvml_worker').main()"
)


class GpuMemory(NamedTuple):
    """The memory of all NVIDIA devices, in bytes; ``processes`` by process id.

    In a container the ids are the host's, or ``processes`` is empty.
    """

    total: int
    used: int
    processes: Mapping[int, int]
    driver: str


def gpu_memory(env: Mapping[str, str], *, signs: Sequence[str] = SIGNS) -> GpuMemory | None:
    """Ask now; None without the driver or an answer. ``env`` is the server's environment."""
    if sys.platform != "win32" and not any(map(os.path.exists, signs)):
        return None
    folder = str(Path(__file__).parent)
    argv = (sys.executable, "-I", "-S", "-E", "-c", _START, folder)
    try:
        answer = ask(LaunchPlan(argv, Path(os.sep), env, "cuda"), _LIMIT)
    except OSError:
        return None
    return parse_memory(answer.stdout)


def parse_memory(text: str) -> GpuMemory | None:
    """Parse the last line of the output, as drivers print too; None for anything else."""
    try:
        document = json.loads(text.strip().rpartition("\n")[2])
        devices = [device for device in document["devices"] if device]
        processes: dict[int, int] = {}
        for device in devices:
            for pid, used in device["processes"].items():
                processes[int(pid)] = processes.get(int(pid), 0) + int(used)
        if not devices:
            return None
        total = sum(int(device["total"]) for device in devices)
        used = sum(int(device["used"]) for device in devices)
        return GpuMemory(total, used, processes, str(document["driver"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
