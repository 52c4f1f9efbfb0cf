"""The child that asks NVIDIA's management library which processes use the GPUs.

A driver's library may crash or hang, so it is never loaded into the process that watches a
server. The child prints one line of JSON on stdout, or nothing without the library. It
imports nothing from this package, as the child has no site-packages.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

_SIZE = 96
_MOST = 256
"""Processes that are listed for each device."""

# NVML_VALUE_NOT_AVAILABLE: Windows' own memory manager (WDDM) gives no numbers.
_NOT_KNOWN = (1 << 64) - 1
_NOT_FOUND = 6
"""NVML_ERROR_NOT_FOUND."""

_TIMEOUT = 10
"""NVML_ERROR_TIMEOUT."""
_LOST = 15
"""NVML_ERROR_GPU_IS_LOST."""

_DOUBLE_BIT_ECC, _XID = 0x2, 0x8
"""nvmlEventTypeDoubleBitEccError and nvmlEventTypeXidCriticalError: what tells of a loss."""

_EVERY = 10.0
"""Seconds between two lines about the devices while they are watched.

Less than between two looks at a server, so that each look has a line about the time before it.
"""

_SAMPLED, _PAUSE = 0.5, 0.02
"""Seconds to wait for a sample of the engines, and between two questions for it."""

_LISTS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")
_OF_MPS = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
"""Clients of the Multi-Process Service, which are in no other list."""


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


class _Utilization(ctypes.Structure):
    # nvmlProcessUtilizationSample_t of nvml.h

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time", ctypes.c_ulonglong),
        *((name, ctypes.c_uint) for name in ("sm", "memory", "encoder", "decoder")),
    )


class _Rates(ctypes.Structure):
    # nvmlUtilization_t of nvml.h

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Event(ctypes.Structure):
    # nvmlEventData_t of nvml.h

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    )


def main() -> None:
    """Print the devices with their memory, each process's share of it, and who works there.

    With the argument ``watch`` go on: print them every 10 seconds, and each fault at once, until
    nobody reads the lines any more.
    """
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
    version = driver.value.decode("utf-8", "replace")
    if sys.argv[2] == "watch":
        _watch(nvml, count.value, version)
        return
    since = int(sys.argv[2])
    # One limit for all devices: those without a process never have a sample.
    end = time.monotonic() + _SAMPLED
    devices = [_device(nvml, index, since, end) for index in range(count.value)]
    _print({"driver": version, "devices": devices})


def _print(document: dict[str, Any]) -> None:
    os.write(1, json.dumps(document).encode("ascii") + b"\n")


def _watch(nvml: ctypes.CDLL, count: int, driver: str) -> None:
    """Print lines as ``main`` says; the wait for an event takes no processor time."""
    events = ctypes.c_void_p()
    handles: dict[int | None, int] = {}
    # Older drivers have the first version, with a shorter event.
    wait = getattr(nvml, "nvmlEventSetWait_v2", None) or getattr(nvml, "nvmlEventSetWait", None)
    listens = wait is not None and nvml.nvmlEventSetCreate(ctypes.byref(events)) == 0
    for index in range(count):
        handle, known = ctypes.c_void_p(), ctypes.c_ulonglong()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            continue
        handles[handle.value] = index
        # A device may know only one of the kinds, and refuses a request with another one.
        if listens and not nvml.nvmlDeviceGetSupportedEventTypes(handle, ctypes.byref(known)):
            wanted = known.value & (_DOUBLE_BIT_ECC | _XID)
            if wanted:
                nvml.nvmlDeviceRegisterEvents(handle, ctypes.c_ulonglong(wanted), events)
    since = 0
    while True:
        lost = [index for index in range(count) if _is_lost(nvml, index)]
        began = time.time_ns() // 1000
        # No wait for a sample: those since the line before are there.
        devices = [_device(nvml, index, since, 0.0) for index in range(count)]
        since = began
        _print({"driver": driver, "devices": devices, "lost": lost})
        end = time.monotonic() + _EVERY
        while (left := end - time.monotonic()) > 0:
            event = _Event()
            code = (
                wait(events, ctypes.byref(event), int(left * 1000) + 1) if wait and listens else -1
            )
            if code == 0 and event.type in (_XID, _DOUBLE_BIT_ECC):
                xid = event.data if event.type == _XID else None
                _print({"fault": xid, "device": handles.get(event.device)})
            elif code == 0:
                # Nothing that was asked for; a driver that goes on so must not take a core.
                time.sleep(min(left, 1.0))
            elif code == _TIMEOUT:
                break
            else:
                # Without events, or with a lost device: the next line tells what is left.
                time.sleep(left)


def _is_lost(nvml: ctypes.CDLL, index: int) -> bool:
    handle, memory = ctypes.c_void_p(), _MemoryInfo()
    code = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    return _LOST in (code, code or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)))


def _device(nvml: ctypes.CDLL, index: int, since: int, end: float) -> dict[str, Any]:
    handle, memory = ctypes.c_void_p(), _MemoryInfo()
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return {}
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return {}
    found = [_users(nvml, name, handle) for name in _LISTS]
    # A driver without this list has no such clients.
    listed = [*found, _users(nvml, _OF_MPS, handle)]
    # A process may be in several lists, with the same memory: count it once.
    users = {pid: used for each in listed for pid, used in (each or {}).items()}
    name = ctypes.create_string_buffer(_SIZE)
    nvml.nvmlDeviceGetName(handle, name, _SIZE)
    return {
        "name": name.value.decode("utf-8", "replace"),
        "total": memory.total,
        "used": memory.used,
        "processes": users,
        "complete": None not in found,
        "working": _working(nvml, handle, since, end) if since else None,
        "idle": _is_idle(nvml, handle),
    }


def _is_idle(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> bool:
    """Tell whether the device has done nothing in its last second; False if it does not tell."""
    rates, ask = _Rates(), getattr(nvml, "nvmlDeviceGetUtilizationRates", None)
    return ask is not None and ask(handle, ctypes.byref(rates)) == 0 and rates.gpu == 0


def _working(
    nvml: ctypes.CDLL, handle: ctypes.c_void_p, since: int, end: float
) -> list[int] | None:
    """Return the processes for which the device worked since then; None if it does not tell.

    The others may have worked as well: less than a percent of the time between two samples (about
    0.2 seconds) is not seen.
    """
    ask = getattr(nvml, "nvmlDeviceGetProcessUtilization", None)
    while ask:
        samples, count = (_Utilization * _MOST)(), ctypes.c_uint(_MOST)
        code = ask(handle, samples, ctypes.byref(count), ctypes.c_ulonglong(since))
        if code == 0:
            # Drivers have returned older samples as well, so compare the times here too.
            found = samples[: count.value]
            return [each.pid for each in found if each.sm and each.time > since]
        # The driver has no sample until it takes the next one.
        if code != _NOT_FOUND:
            break
        if time.monotonic() > end:
            return []
        time.sleep(_PAUSE)
    return None


def _users(nvml: ctypes.CDLL, name: str, handle: ctypes.c_void_p) -> dict[int, int | None] | None:
    """Return a list's processes with their memory, None for memory that it does not tell.

    None if the driver refuses the list, or has more processes than fit.
    """
    # Older drivers have only version 2, with the same structure.
    ask = getattr(nvml, name, None) or getattr(nvml, name.replace("_v3", "_v2"), None)
    count, users = ctypes.c_uint(_MOST), (_ProcessInfo * _MOST)()
    if ask is None or ask(handle, ctypes.byref(count), users):
        return None
    return {
        user.pid: None if user.used == _NOT_KNOWN else user.used for user in users[: count.value]
    }
