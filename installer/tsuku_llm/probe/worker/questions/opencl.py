"""OpenCL: its platforms and their devices. Numbers: cl.h."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

from ..protocol import Channel, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PLATFORM = {"name": 0x0902, "vendor": 0x0903, "version": 0x0901}
DEVICE_TEXTS = {"name": 0x102B, "driver": 0x102D, "version": 0x102F}
DEVICE_NUMBERS = {"type": 0x1000, "vendor": 0x1001, "memory": 0x101F, "unified": 0x1035}
DEVICE_UUID = 0x106A  # cl_khr_device_uuid: the same as Vulkan's and Level Zero's
ALL_DEVICES = 0xFFFFFFFF
TEXT_LIMIT = 4096
LIBRARIES = {
    "win32": ["OpenCL.dll"],
    "linux": ["libOpenCL.so.1", "libOpenCL.so"],  # Android and some Adreno systems: no ".1"
}


def ask(channel: Channel, _root: str) -> None:
    """List the devices of each platform."""
    opencl = channel.open(LIBRARIES.get(sys.platform, LIBRARIES["linux"]))
    if opencl is None:
        return
    count = c_uint32()
    tell = lambda: {"count": count.value}
    if channel.call(opencl, "clGetPlatformIDs", 0, None, byref(count), tell=tell) != 0:
        return
    platforms = (c_void_p * max(1, count.value))()
    if opencl.clGetPlatformIDs(count, platforms, None) != 0:
        return
    for number in range(count.value):
        channel.before(f"platform {number}")
        _platform(channel, opencl, c_void_p(platforms[number]), number)


def _platform(channel: Channel, opencl: ctypes.CDLL, platform: c_void_p, number: int) -> None:
    get = opencl.clGetPlatformInfo
    facts = {key: _text(get, platform, name) for key, name in PLATFORM.items()}
    channel.answer("platform", index=number, **facts)
    count = c_uint32()
    kind = c_uint64(ALL_DEVICES)
    # A platform without devices returns CL_DEVICE_NOT_FOUND; the other platforms are still asked.
    code = opencl.clGetDeviceIDs(platform, kind, 0, None, byref(count))
    channel.answer("clGetDeviceIDs", code=code, platform=number, count=count.value)
    devices = (c_void_p * max(1, count.value))()
    if code or opencl.clGetDeviceIDs(platform, kind, count, devices, None) != 0:
        return
    for index in range(count.value):
        channel.before(f"device {index}")
        facts = _device(opencl, c_void_p(devices[index]))
        channel.answer("device", platform=number, index=index, **facts)


def _device(opencl: ctypes.CDLL, device: c_void_p) -> dict[str, Any]:
    get = opencl.clGetDeviceInfo
    facts: dict[str, Any] = {key: _text(get, device, name) for key, name in DEVICE_TEXTS.items()}
    facts |= {key: _number(get, device, name) for key, name in DEVICE_NUMBERS.items()}
    uuid = ctypes.create_string_buffer(16)
    if get(device, DEVICE_UUID, c_size_t(16), uuid, None) == 0:
        facts["uuid"] = uuid.raw.hex()
    return facts


def _number(get: Any, owner: c_void_p, name: int) -> int | None:
    value = c_uint64()
    return None if get(owner, name, c_size_t(8), byref(value), None) else value.value


def _text(get: Any, owner: c_void_p, name: int) -> str | None:
    size = c_size_t()
    if get(owner, name, c_size_t(0), None, byref(size)) or size.value > TEXT_LIMIT:
        return None
    buffer = ctypes.create_string_buffer(size.value + 1)
    return None if get(owner, name, size, buffer, None) else text(buffer.value)
