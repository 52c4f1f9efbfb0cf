"""NVIDIA's management library: it tells the driver's version even if CUDA fails."""

from __future__ import annotations

import ctypes
import os
import sys

from ..protocol import Channel, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIZE = 96


def ask(channel: Channel, _root: str) -> None:
    """Ask for the driver's version and the devices of the kernel module."""
    nvml = channel.open(_names())
    if nvml is None or channel.call(nvml, "nvmlInit_v2") != 0:
        return
    driver, count = ctypes.create_string_buffer(SIZE), ctypes.c_uint()
    channel.call(
        nvml,
        "nvmlSystemGetDriverVersion",
        driver,
        SIZE,
        tell=lambda: {"version": text(driver.value)},
    )
    channel.call(
        nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count), tell=lambda: {"count": count.value}
    )
    for index in range(count.value):
        channel.before(f"device {index}")
        channel.answer("device", index=index, **_device(nvml, index))


def _names() -> list[str]:
    if sys.platform != "win32":
        return ["libnvidia-ml.so.1"]
    programs = os.environ.get("PROGRAMFILES", r"C:\Program Files")
    return ["nvml.dll", rf"{programs}\NVIDIA Corporation\NVSMI\nvml.dll"]


def _device(nvml: ctypes.CDLL, index: int) -> dict[str, Any]:
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(SIZE)
    code = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    if code:
        return {"code": code}
    facts: dict[str, Any] = {"code": 0}
    if nvml.nvmlDeviceGetName(handle, name, SIZE) == 0:
        facts["name"] = text(name.value)
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    # Older drivers lack the call. CUDA lists no device of a GPU in MIG mode without an instance.
    mode = getattr(nvml, "nvmlDeviceGetMigMode", None)
    if mode and mode(handle, ctypes.byref(current), ctypes.byref(pending)) == 0:
        facts["mig"] = current.value
    return facts
