"""The main memory that is free: the system's, or what a container's limit leaves of it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from tsuku_llm.ground.foreign import kernel_text
from tsuku_llm.launch.memory.fit import FreeMemory

if sys.platform == "win32":
    import ctypes

_NAME = "main memory"
_MEMINFO = "/proc/meminfo"
_LIMIT = "/sys/fs/cgroup/memory.max"
_USE = "/sys/fs/cgroup/memory.stat"


def main_memory() -> FreeMemory:
    """Ask the system for its memory; what it does not tell stays unknown."""
    if sys.platform == "win32":
        return _of_windows()
    found = parse_main_memory(_read(_MEMINFO), _read(_LIMIT), _read(_USE))
    if found.total is None:
        # macOS knows its pages, and not which are free.
        with suppress(ValueError, OSError):
            return found._replace(total=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return found


def _of_windows() -> FreeMemory:
    if sys.platform == "win32":
        # MEMORYSTATUSEX: 8 numbers, of which the first is its size. Then all bytes, and the free.
        status = (ctypes.c_uint64 * 8)(64)
        if ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status)):
            return FreeMemory(_NAME, status[2], status[1])
    return FreeMemory(_NAME, None, None)


def parse_main_memory(meminfo: str, limit: str, use: str) -> FreeMemory:
    """Parse ``/proc/meminfo``, and ``memory.max`` and ``memory.stat`` of a control group.

    Files that the kernel has cached count as free: it drops them when memory is needed.
    """
    fields = _fields(meminfo.replace(":", " "))
    total, free = fields.get("MemTotal"), fields.get("MemAvailable")
    # meminfo is in kibibytes.
    total = None if total is None else total * 1024
    free = None if free is None else free * 1024
    if limit.strip().isdecimal():
        most = int(limit)
        left = max(0, most - _fields(use).get("anon", 0))
        total = most if total is None else min(total, most)
        free = left if free is None else min(free, left)
    return FreeMemory(_NAME, free, total)


def _fields(text: str) -> dict[str, int]:
    """Return the lines that are a name and a number, and perhaps a unit."""
    words = [line.split() for line in text.splitlines()]
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()}


def _read(path: str) -> str:
    with suppress(OSError):
        return kernel_text(path)
    return ""
