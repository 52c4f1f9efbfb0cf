"""NVIDIA's CUDA driver API. Function names and codes: cuda.h."""

from __future__ import annotations

import ctypes
import sys

from ..protocol import Channel, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ATTRIBUTES = {"integrated": 18, "pci_domain": 50, "pci_bus": 33, "pci_device": 34}
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76


def ask(channel: Channel, _root: str) -> None:
    """Ask for the driver's CUDA version, initialise it, and list its devices."""
    cuda = channel.open(["nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"])
    if cuda is None:
        return
    version, count = ctypes.c_int(), ctypes.c_int()
    # This call works without cuInit, so the version is known even if the driver does not
    # initialise.
    channel.call(
        cuda, "cuDriverGetVersion", ctypes.byref(version), tell=lambda: {"version": version.value}
    )
    if channel.call(cuda, "cuInit", 0) != 0:
        return
    tell = lambda: {"count": count.value}
    if channel.call(cuda, "cuDeviceGetCount", ctypes.byref(count), tell=tell) != 0:
        return
    for index in range(count.value):
        channel.before(f"device {index}")
        channel.answer("device", index=index, **_device(cuda, index))


def _device(cuda: ctypes.CDLL, index: int) -> dict[str, Any]:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name, uuid = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    # No context is created: that would take time and memory on the GPU.
    code = cuda.cuDeviceGet(ctypes.byref(device), index)
    if code:
        return {"code": code}
    facts: dict[str, Any] = {"code": 0}
    if cuda.cuDeviceGetName(name, 256, device) == 0:
        facts["name"] = text(name.value)
    if cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device) == 0:
        facts["memory"] = memory.value
    capability = [
        _attribute(cuda, number, device) for number in (CAPABILITY_MAJOR, CAPABILITY_MINOR)
    ]
    facts["capability"] = capability
    facts |= {key: _attribute(cuda, number, device) for key, number in ATTRIBUTES.items()}
    # Drivers before CUDA 9.2 lack it.
    if hasattr(cuda, "cuDeviceGetUuid") and cuda.cuDeviceGetUuid(uuid, device) == 0:
        facts["uuid"] = uuid.raw.hex()
    return facts


def _attribute(cuda: ctypes.CDLL, number: int, device: ctypes.c_int) -> int | None:
    value = ctypes.c_int()
    code = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return None if code else value.value
