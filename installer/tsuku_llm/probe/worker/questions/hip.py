"""AMD's HIP runtime. Names and attribute numbers: hip_runtime_api.h."""

from __future__ import annotations

import ctypes
import sys

from ..protocol import Channel, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The newest first; the unversioned name and ROCm's default folder are the last resort.
VERSIONS = ("10", "9", "8", "7", "6")
LINUX = [f"libamdhip64.so.{version}" for version in VERSIONS]
LINUX += ["libamdhip64.so", "/opt/rocm/lib/libamdhip64.so"]
WINDOWS = [*(f"amdhip64_{version}.dll" for version in VERSIONS), "amdhip64.dll"]
INTEGRATED = 16
LENGTHS = range(3, 6)
HEX_DIGITS = b"0123456789abcdef"


def ask(channel: Channel, _root: str) -> None:
    """Ask for the runtime's version and its devices."""
    hip = channel.open(WINDOWS if sys.platform == "win32" else LINUX)
    if hip is None:
        return
    version, count = ctypes.c_int(), ctypes.c_int()
    channel.call(
        hip,
        "hipRuntimeGetVersion",
        ctypes.byref(version),
        tell=lambda: {"version": version.value},
    )
    tell = lambda: {"count": count.value}
    if channel.call(hip, "hipGetDeviceCount", ctypes.byref(count), tell=tell) != 0:
        return
    for index in range(count.value):
        channel.before(f"device {index}")
        channel.answer("device", index=index, **_device(hip, index))


def _device(hip: ctypes.CDLL, index: int) -> dict[str, Any]:
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    integrated = ctypes.c_int()
    facts: dict[str, Any] = {"code": int(hip.hipDeviceGetName(name, 256, index))}
    facts["name"] = text(name.value)
    if hip.hipDeviceTotalMem(ctypes.byref(memory), index) == 0:
        facts["memory"] = memory.value
    if hip.hipDeviceGetAttribute(ctypes.byref(integrated), INTEGRATED, index) == 0:
        facts["integrated"] = integrated.value
    facts["gfx"] = _gfx(hip, index)
    address = ctypes.create_string_buffer(32)
    if hip.hipDeviceGetPCIBusId(address, 32, index) == 0:
        facts["pci"] = text(address.value)
    return facts


def _gfx(hip: ctypes.CDLL, index: int) -> str | None:
    """Return the target's name from the properties, whose layout changed with ROCm 6.

    The name is searched in the raw bytes, which works for both layouts.
    """
    function = getattr(hip, "hipGetDevicePropertiesR0600", None) or getattr(
        hip, "hipGetDeviceProperties", None
    )
    properties = ctypes.create_string_buffer(8192)
    if function is None or function(properties, index) != 0:
        return None
    return find_target(properties.raw)


def find_target(raw: bytes) -> str | None:
    """Return the first "gfx" with three to five hexadecimal digits before a colon or zero byte."""
    for piece in raw.split(b"gfx")[1:]:
        digits = piece[: len(piece) - len(piece.lstrip(HEX_DIGITS))]
        if len(digits) in LENGTHS and piece[len(digits) : len(digits) + 1] in (b":", b"\0"):
            return "gfx" + digits.decode("ascii")
    return None
