"""The use of NVIDIA GPUs by each process, their memory and their work, asked in a child process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
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


# The number of the first pid namespace (PROC_PID_INIT_INO of the kernel's proc_ns.h).
_FIRST_NAMESPACE = "pid:[4026531836]"


class GpuMemory(NamedTuple):
    """The memory of all NVIDIA devices, in bytes; ``processes`` by process id.

    A process has None there if the driver does not tell its memory. In a container the ids are
    the host's, or ``processes`` is empty. ``complete``: every process is there, under the id that
    it has here. ``working`` are the processes for which the engines
    worked since the time that was asked for; others may have worked too shortly to be seen.
    """

    total: int
    used: int
    processes: Mapping[int, int | None]
    driver: str
    complete: bool = False
    working: frozenset[int] = frozenset()

    def of(self, pids: Collection[int]) -> int | None:
        """Return the memory of processes; None if it is not known."""
        found = [self.processes[pid] for pid in pids if pid in self.processes]
        known = [size for size in found if size is not None]
        if known:
            return sum(known)
        # A process that is missing in a complete list has no memory there.
        return 0 if self.complete and not found else None


def gpu_memory(
    env: Mapping[str, str], *, since: int = 0, signs: Sequence[str] = SIGNS
) -> GpuMemory | None:
    """Ask now; None without the driver or an answer. ``env`` is the server's environment.

    ``since`` is for ``working``: microseconds since 1970, 0 if that is not asked.
    """
    if sys.platform != "win32" and not any(map(os.path.exists, signs)):
        return None
    folder = str(Path(__file__).parent)
    argv = (sys.executable, "-I", "-S", "-E", "-c", _START, folder, str(since))
    try:
        answer = ask(LaunchPlan(argv, Path(os.sep), env, "cuda"), _LIMIT)
    except OSError:
        return None
    found = parse_memory(answer.stdout)
    if found is None:
        return None
    return found._replace(complete=found.complete and _knows_our_ids())


def _knows_our_ids() -> bool:
    """Tell whether NVIDIA's process ids are ours: not in a container, and not in WSL."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return False
    return namespace == _FIRST_NAMESPACE and not os.path.exists("/dev/dxg")  # noqa: PTH110


def parse_memory(text: str) -> GpuMemory | None:
    """Parse the last line of the output, as drivers print too; None for anything else."""
    try:
        document = json.loads(text.strip().rpartition("\n")[2])
        devices = [device for device in document["devices"] if device]
        processes: dict[int, int | None] = {}
        working: set[int] = set()
        for device in devices:
            for pid, used in device["processes"].items():
                before = processes.get(int(pid))
                processes[int(pid)] = before if used is None else (before or 0) + int(used)
            working.update(map(int, device["working"]))
        if not devices:
            return None
        total = sum(int(device["total"]) for device in devices)
        used = sum(int(device["used"]) for device in devices)
        complete = all(device["complete"] for device in devices)
        return GpuMemory(
            total, used, processes, str(document["driver"]), complete, frozenset(working)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
