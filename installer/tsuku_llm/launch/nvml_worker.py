"""The child that asks NVIDIA's management library how the GPUs' memory is used.

A driver's library may crash or hang, so it is never loaded into the process that watches a
server. The child prints one line of JSON on stdout, or nothing without the library. It
imports nothing from this package, as the child has no site-packages.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

_SIZE = 96
_MOST = 256
"""Processes that are listed for each device."""

# NVML_VALUE_NOT_AVAILABLE: Windows' own memory manager (WDDM) gives no numbers.
_NOT_KNOWN = (1 << 64) - 1
_LISTS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")


class _MemoryInfo(ctypes.Structure):
    # nvmlMemory_t of nvml.h

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _ProcessInfo(ctypes.Structure):
    # nvmlProcessInfo_t of nvml.h, as the functions of version 2 and 3 fill it

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    )


def main() -> None:
    """Print the devices with their memory, and each process's share of it."""
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        nvml = ctypes.CDLL(name)
    except OSError:
        return
    count = ctypes.c_uint()
    # Every function returns 0 for success.
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return
    driver = ctypes.create_string_buffer(_SIZE)
    nvml.nvmlSystemGetDriverVersion(driver, _SIZE)
    devices = [_device(nvml, index) for index in range(count.value)]
    document = {"driver": driver.value.decode("utf-8", "replace"), "devices": devices}
    os.write(1, json.dumps(document).encode("ascii") + b"\n")


def _device(nvml: ctypes.CDLL, index: int) -> dict[str, Any]:
    handle, memory = ctypes.c_void_p(), _MemoryInfo()
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return {}
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return {}
    # A process may be in both lists, with the same memory: count it once.
    users = dict(pair for name in _LISTS for pair in _users(nvml, name, handle))
    return {"total": memory.total, "used": memory.used, "processes": users}


def _users(nvml: ctypes.CDLL, name: str, handle: ctypes.c_void_p) -> Iterator[tuple[int, int]]:
    # Older drivers have only version 2, with the same structure.
    ask = getattr(nvml, name, None) or getattr(nvml, name.replace("_v3", "_v2"), None)
    count, users = ctypes.c_uint(_MOST), (_ProcessInfo * _MOST)()
    if ask is None or ask(handle, ctypes.byref(count), users):
        return
    for user in users[: count.value]:
        if user.used != _NOT_KNOWN:
            yield user.pid, user.used
