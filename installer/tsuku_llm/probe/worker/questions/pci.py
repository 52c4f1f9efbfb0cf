"""Display controllers and accelerators on the PCI bus, as sysfs lists them."""

from __future__ import annotations

import os

from ..protocol import Channel

# The first byte of the PCI class code.
DISPLAY_OR_ACCELERATOR = ("0x03", "0x12")


def ask(channel: Channel, root: str) -> None:
    """List the devices; a missing bus is normal (WSL, containers, virtual machines)."""
    bus = root + "/sys/bus/pci/devices"
    try:
        slots = sorted(os.listdir(bus))
    except OSError:
        return
    for slot in slots:
        kind = _read(f"{bus}/{slot}/class")
        if kind.startswith(DISPLAY_OR_ACCELERATOR):
            channel.answer(
                "device",
                slot=slot,
                kind=kind,
                vendor=_read(f"{bus}/{slot}/vendor"),
                device=_read(f"{bus}/{slot}/device"),
                driver=_link(f"{bus}/{slot}/driver"),
                power=_read(f"{bus}/{slot}/power_state"),
            )


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _link(path: str) -> str | None:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None
