"""macOS: the kernel's facts about the processor and the memory (sysctl)."""

from __future__ import annotations

import ctypes

from ..protocol import Channel, text

TEXTS = (
    "kern.osproductversion",
    "machdep.cpu.brand_string",
    "machdep.cpu.vendor",
    "machdep.cpu.features",
    "machdep.cpu.leaf7_features",
    "machdep.cpu.extfeatures",
)
NUMBERS = (
    "hw.memsize",
    "sysctl.proc_translated",
    "hw.optional.arm.FEAT_DotProd",
    "hw.optional.arm.FEAT_I8MM",
    "hw.optional.arm.FEAT_BF16",
    "hw.optional.arm.FEAT_SME",
    "hw.optional.arm.FEAT_SME2",
)


def ask(channel: Channel, _root: str) -> None:
    """Ask for each value by name; a name that this system lacks is left out."""
    system = ctypes.CDLL("/usr/lib/libSystem.B.dylib")
    for name in TEXTS:
        raw = _read(system, name)
        if raw is not None:
            channel.answer(name, value=text(raw.rstrip(b"\0")))
    for name in NUMBERS:
        raw = _read(system, name)
        if raw is not None:
            # A number has four or eight bytes, depending on its name.
            channel.answer(name, value=int.from_bytes(raw, "little"))


def _read(system: ctypes.CDLL, name: str) -> bytes | None:
    size = ctypes.c_size_t(4096)
    buffer = ctypes.create_string_buffer(size.value)
    code = system.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if code else buffer.raw[: size.value]
