"""Apple's Metal, through the Objective-C runtime. Selectors: MTLDevice."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_char_p, c_long, c_uint64, c_ulong, c_void_p

from ..protocol import Channel, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A program without windows gets no Metal device unless it loads CoreGraphics.
CORE_GRAPHICS = "/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics"
METAL = "/System/Library/Frameworks/Metal.framework/Metal"
FAMILIES = {"apple7": 1007, "mac2": 2002, "metal3": 5001, "metal4": 5002}


def ask(channel: Channel, _root: str) -> None:
    """List the devices of Metal."""
    if channel.open([CORE_GRAPHICS]) is None:
        return
    metal = channel.open([METAL])
    if metal is None:
        return
    send = ctypes.CDLL("/usr/lib/libobjc.A.dylib")
    channel.before("MTLCopyAllDevices")
    metal.MTLCopyAllDevices.restype = c_void_p
    devices = metal.MTLCopyAllDevices()
    count = _send(send, devices, "count", c_ulong) if devices else 0
    channel.answer("MTLCopyAllDevices", code=0, count=count)
    for index in range(count):
        channel.before(f"device {index}")
        device = _send(send, devices, "objectAtIndex:", c_void_p, c_ulong(index))
        channel.answer("device", code=0, index=index, **_device(send, device))


def _device(send: ctypes.CDLL, device: int) -> dict[str, Any]:
    name = _send(send, _send(send, device, "name", c_void_p), "UTF8String", c_char_p)
    families = [
        family
        for family, number in FAMILIES.items()
        if _send(send, device, "supportsFamily:", c_bool, c_long(number))
    ]
    return {
        "name": text(name or b""),
        "memory": _send(send, device, "recommendedMaxWorkingSetSize", c_uint64),
        "unified": bool(_send(send, device, "hasUnifiedMemory", c_bool)),
        "low_power": bool(_send(send, device, "isLowPower", c_bool)),
        "families": families,
    }


def _send(library: ctypes.CDLL, receiver: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Send a message with a function type made for this method.

    ``objc_msgSend`` is declared without a type: it must be called with the type of the method.
    """
    library.sel_registerName.restype = c_void_p
    selector = library.sel_registerName(name.encode())
    types: list[Any] = [c_void_p, c_void_p, *(type(argument) for argument in arguments)]
    address = ctypes.cast(library.objc_msgSend, c_void_p).value or 0
    return ctypes.CFUNCTYPE(result, *types)(address)(receiver, selector, *arguments)
