"""Windows: memory, instruction sets, the Visual C++ runtime, and the display adapters."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

from ..protocol import Channel

if sys.platform == "win32":
    import winreg

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# winnt.h, PF_*
FEATURES = {
    "cx16": 14,
    "pni": 13,
    "ssse3": 36,
    "sse4_1": 37,
    "sse4_2": 38,
    "avx": 39,
    "avx2": 40,
    "avx512f": 41,
    "asimddp": 43,
    "i8mm": 66,
    "sve": 46,
}
PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
RUNTIMES = r"SOFTWARE\Microsoft\VisualStudio\14.0\VC\Runtimes"
ADAPTERS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
DLLS = ("vcruntime140.dll", "vcruntime140_1.dll", "msvcp140.dll")
MOST_ADAPTERS = 32


class MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX, of which the first three members are read."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 6),
    )


def ask(channel: Channel, _root: str) -> None:
    """Ask the kernel and the registry."""
    if sys.platform == "win32":
        kernel = ctypes.WinDLL("kernel32")
        status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
        if kernel.GlobalMemoryStatusEx(ctypes.byref(status)):
            channel.answer("memory", value=status.total)
        present = [
            name for name, number in FEATURES.items() if kernel.IsProcessorFeaturePresent(number)
        ]
        channel.answer("features", value=present)
        names = ("ProcessorNameString", "VendorIdentifier")
        channel.answer("processor", **_values(PROCESSOR, names))
        for machine in ("X64", "ARM64"):
            values = _values(rf"{RUNTIMES}\{machine}", ("Version", "Installed"))
            channel.answer("runtime", machine=machine, **values)
        for name in DLLS:
            channel.answer("dll", name=name, present=_is_there(kernel, name))
        for index in range(MOST_ADAPTERS):
            key = rf"{ADAPTERS}\{index:04}"
            values = _values(key, ("DriverDesc", "MatchingDeviceId", "DriverVersion"))
            # Numbers of removed adapters are missing: a gap does not end the list.
            if values:
                channel.answer("adapter", **values)


def _values(key: str, names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if sys.platform == "win32":
        with suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
            for name in names:
                found[name] = None
                with suppress(OSError):  # the key lacks this value
                    value = winreg.QueryValueEx(opened, name)[0]
                    found[name] = value if isinstance(value, (str, int)) else None
    return found


def _is_there(kernel: Any, name: str) -> bool:
    """Tell whether the system's own folder has a file; the file is not loaded."""
    folder = ctypes.create_unicode_buffer(260)
    kernel.GetSystemDirectoryW(folder, 260)
    return bool(kernel.GetFileAttributesW(f"{folder.value}\\{name}") != -1)
