"""Intel's Level Zero. Structures and numbers: ze_api.h."""

# ze_api.h documents the structures.

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_char, c_uint8, c_uint32, c_uint64, c_void_p

from .. import search
from ..protocol import Channel, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RUNTIME = "libze_intel_gpu.so.1"
DEVICE_PROPERTIES, MEMORY_PROPERTIES = 3, 7


class ZeDeviceProperties(ctypes.Structure):
    _fields_ = (
        ("stype", c_uint32),
        ("next", c_void_p),
        ("type", c_uint32),
        ("vendor", c_uint32),
        ("device", c_uint32),
        ("flags", c_uint32),
        ("subdevice", c_uint32),
        ("clock", c_uint32),
        ("largest_allocation", c_uint64),
        ("contexts", c_uint32),
        ("priority", c_uint32),
        ("threads", c_uint32),
        ("simd_width", c_uint32),
        ("units", c_uint32),
        ("subslices", c_uint32),
        ("slices", c_uint32),
        ("timer", c_uint64),
        ("timestamp_bits", c_uint32),
        ("kernel_timestamp_bits", c_uint32),
        ("uuid", c_uint8 * 16),
        ("name", c_char * 256),
    )


class ZeMemoryProperties(ctypes.Structure):
    _fields_ = (
        ("stype", c_uint32),
        ("next", c_void_p),
        ("flags", c_uint32),
        ("clock", c_uint32),
        ("bus_width", c_uint32),
        ("size", c_uint64),
        ("name", c_char * 256),
    )


def ask(channel: Channel, root: str) -> None:
    """Initialise Level Zero and list the devices of each driver."""
    zero = channel.open(["ze_loader.dll" if sys.platform == "win32" else "libze_loader.so.1"])
    if zero is None:
        return
    if channel.call(zero, "zeInit", 0) != 0:
        # The loader's code is the same without a driver, and with one that finds no GPU.
        channel.answer("runtime", found=search.find(root, RUNTIME) is not None)
        return
    count = c_uint32()
    tell = lambda: {"count": count.value}
    if channel.call(zero, "zeDriverGet", byref(count), None, tell=tell) != 0:
        return
    # Level Zero, like OpenCL, is asked twice: for the count, then for the handles.
    drivers = (c_void_p * max(1, count.value))()
    if count.value and zero.zeDriverGet(byref(count), drivers) != 0:
        return
    for number in range(count.value):
        _driver(channel, zero, c_void_p(drivers[number]), number)


def _driver(channel: Channel, zero: ctypes.CDLL, driver: c_void_p, number: int) -> None:
    version, count = c_uint32(), c_uint32()
    channel.call(
        zero,
        "zeDriverGetApiVersion",
        driver,
        byref(version),
        tell=lambda: {"driver": number, "version": version.value},
    )
    tell = lambda: {"driver": number, "count": count.value}
    if channel.call(zero, "zeDeviceGet", driver, byref(count), None, tell=tell) != 0:
        return
    devices = (c_void_p * max(1, count.value))()
    if count.value and zero.zeDeviceGet(driver, byref(count), devices) != 0:
        return
    for index in range(count.value):
        channel.before(f"device {index}")
        channel.answer(
            "device", driver=number, index=index, **_device(zero, c_void_p(devices[index]))
        )


def _device(zero: ctypes.CDLL, device: c_void_p) -> dict[str, Any]:
    properties = ZeDeviceProperties(stype=DEVICE_PROPERTIES)
    code = zero.zeDeviceGetProperties(device, byref(properties))
    if code:
        return {"code": code}
    return {
        "code": 0,
        "name": text(properties.name),
        "type": properties.type,
        "vendor": properties.vendor,
        "device": properties.device,
        "flags": properties.flags,
        "uuid": bytes(properties.uuid).hex(),
        "memories": _memories(zero, device),
    }


def _memories(zero: ctypes.CDLL, device: c_void_p) -> list[int]:
    count = c_uint32()
    if zero.zeDeviceGetMemoryProperties(device, byref(count), None) or not count.value:
        return []
    found = (ZeMemoryProperties * count.value)()
    for memory in found:
        memory.stype = MEMORY_PROPERTIES
    if zero.zeDeviceGetMemoryProperties(device, byref(count), found):
        return []
    return [memory.size for memory in found[: count.value]]
